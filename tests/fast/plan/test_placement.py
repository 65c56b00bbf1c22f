"""Layers over devices, weights by device; against what the engine's log said of the same settings."""

from __future__ import annotations

import pytest

from launcher.plan.kv import HOST
from launcher.plan.placement import (
    Loading,
    choose_layers,
    expert_layers,
    on_host,
    place,
    repacks,
    weights_by_device,
)

AVX2 = Loading(cpu_features=frozenset({"avx2"}))


def test_the_last_layers_go_to_the_device(smollm2):
    placement = place(smollm2, devices=["CUDA0"], gpu_layers=11)
    assert placement.layers == (HOST,) * 20 + ("CUDA0",) * 10
    assert placement.output == "CUDA0"  # the output layer is the first of them
    assert placement.gpu_layers == 11
    assert place(smollm2, devices=["CUDA0"], gpu_layers=99).gpu_layers == 31
    assert place(smollm2, devices=["CUDA0"], gpu_layers=0).output == HOST


def test_without_devices_all_is_on_the_host(smollm2):
    assert place(smollm2, gpu_layers=99) == on_host(smollm2)


def test_layers_are_divided_by_shares(smollm2):
    placement = place(smollm2, devices=["CUDA0", "CUDA1"], weights=(1, 1))
    # 31 layers with the output: upper_bound(splits, il / 31) as in src/llama-model.cpp:1600
    assert (placement.layers.count("CUDA0"), placement.layers.count("CUDA1")) == (16, 14)
    placement = place(smollm2, devices=["CUDA0", "CUDA1"], weights=(3, 1))
    assert placement.layers.count("CUDA0") == 24
    assert place(smollm2, devices=["CUDA0", "CUDA1"], split="none", main_gpu=1).layers == ("CUDA1",) * 30


def test_shares_that_say_nothing_are_even(smollm2):
    for shares in ((), (0, 0), (1,)):
        placement = place(smollm2, devices=["CUDA0", "CUDA1"], weights=shares)
        assert placement.layers.count("CUDA0") == 16


def test_the_cache_can_stay_on_the_host(smollm2):
    assert set(place(smollm2, devices=["CUDA0"], cache_on_host=None).cache) == {HOST}
    placement = place(smollm2, devices=["CUDA0"], cache_on_host=range(10))
    assert placement.cache == (HOST,) * 10 + ("CUDA0",) * 20


def test_a_tied_embedding_is_loaded_twice(smollm2):
    embedding = smollm2.tensors[0].size
    weights = weights_by_device(smollm2, place(smollm2, devices=["CUDA0"]))
    assert weights["CUDA0"].bytes == smollm2.tensor_bytes
    assert weights[HOST].bytes == weights[HOST].mapped == embedding
    alone = weights_by_device(smollm2, on_host(smollm2))
    assert list(alone) == [HOST]


def test_mapped_weights_span_their_file(smollm2):
    first, last = smollm2.tensors[0], smollm2.tensors[-1]
    weights = weights_by_device(smollm2, on_host(smollm2))[HOST]
    assert weights.mapped == last.offset + last.size - first.offset
    copied = weights_by_device(smollm2, on_host(smollm2), Loading(mapped=False))[HOST]
    assert (copied.bytes, copied.mapped) == (smollm2.tensor_bytes, 0)


def test_rearranged_weights_are_held_twice_when_mapped(mixture):
    matrices = [tensor for tensor in mixture.tensors if repacks(tensor, AVX2)]
    names = {tensor.name.split(".", 2)[-1] for tensor in matrices}
    assert "ffn_up_exps.weight" in names and "attn_q.weight" in names
    assert not any(name.startswith("token_embd") for name in names)  # looked up, not multiplied
    mapped = weights_by_device(mixture, on_host(mixture), AVX2)[HOST]
    assert mapped.repacked == sum(tensor.size for tensor in matrices)
    assert mapped.bytes == mapped.mapped + mapped.repacked
    copied = weights_by_device(mixture, on_host(mixture), Loading(False, AVX2.cpu_features))[HOST]
    assert copied.bytes == mixture.tensor_bytes  # read straight into the new form
    assert weights_by_device(mixture, on_host(mixture), Loading())[HOST].repacked == 0  # a CPU without AVX2


@pytest.mark.parametrize(
    ("kind", "features", "expected"),
    [
        ("q4_0", {"avx2"}, True),
        ("q4_0", {"asimddp"}, True),
        ("q4_0", {"sse3"}, False),
        ("q8_0", {"avx2", "avx512f"}, False),
        ("q8_0", {"i8mm"}, True),
        ("q2_K", {"avx512f"}, True),
        ("q2_K", {"avx2"}, False),
        ("f16", {"avx2"}, False),
    ],
)
def test_which_types_a_cpu_rearranges(table, kind, features, expected):
    (tensor,) = table(("blk.0.ffn_up.weight", kind, (512, 64)))
    assert repacks(tensor, Loading(cpu_features=frozenset(features))) is expected
    assert not repacks(tensor, Loading(cpu_features=frozenset(features), repack=False))


def test_experts_of_the_first_layers_stay_on_the_host(mixture):
    assert expert_layers(mixture) == tuple(range(8))
    every = weights_by_device(mixture, place(mixture, devices=["CUDA0"]), Loading(mapped=False))
    three = weights_by_device(mixture, place(mixture, devices=["CUDA0"], experts_on_host=3), Loading(mapped=False))
    expert_bytes = sum(t.size for t in mixture.tensors if "_exps." in t.name) // 8
    assert every["CUDA0"].bytes - three["CUDA0"].bytes == 3 * expert_bytes
    assert three[HOST].bytes - every[HOST].bytes == 3 * expert_bytes


@pytest.mark.parametrize("capacity", [0, 3, 8, 17, 30, 31])
def test_auto_takes_as_many_layers_as_fit(smollm2, capacity):
    assert choose_layers(smollm2, lambda layers, experts: layers <= capacity) == (capacity, 0)


def test_auto_gives_up_experts_before_layers(mixture):
    def fits(layers: int, experts: int) -> bool:
        return layers * 10 - experts * 8 <= 60

    assert choose_layers(mixture, fits) == (9, 4)  # 90 − 32 = 58; three are not enough
    assert choose_layers(mixture, lambda layers, experts: layers <= 5) == (5, 8)
    assert choose_layers(mixture, lambda layers, experts: True) == (9, 0)
    assert choose_layers(mixture, lambda layers, experts: layers == 0) == (0, 0)


@pytest.mark.parametrize("split", ["row", "tensor"])
def test_matrices_are_cut_by_the_shares(mixture, split):
    placement = place(mixture, devices=["CUDA0", "CUDA1"], weights=(3, 1), split=split)
    weights = weights_by_device(mixture, placement, Loading(mapped=False))
    on_devices = weights["CUDA0"].bytes + weights["CUDA1"].bytes
    assert on_devices + weights[HOST].bytes == mixture.tensor_bytes
    assert weights["CUDA0"].bytes / on_devices == pytest.approx(0.75, abs=0.01)


def test_inputs_are_copied_for_a_pipeline(smollm2):
    assert place(smollm2, devices=["CUDA0", "CUDA1"]).copies == 4
    assert place(smollm2, devices=["CUDA0"]).copies == 1
    assert place(smollm2, devices=["CUDA0", "CUDA1"], gpu_layers=20).copies == 1
    assert place(smollm2, devices=["CUDA0", "CUDA1"], cache_on_host=None).copies == 1
    assert place(smollm2, devices=["CUDA0", "CUDA1"], split="row").copies == 1
