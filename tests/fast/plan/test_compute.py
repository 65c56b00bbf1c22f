"""The compute buffer, against what the engine's log said of SmolLM2-135M and gemma-3-270m (MiB, two digits)."""

from __future__ import annotations

import time

import pytest

from launcher.plan.compute import compute_bytes
from launcher.plan.context import allocate
from launcher.plan.kv import HOST, KvSettings
from launcher.plan.placement import on_host, place
from launcher.plan.replay import Graph
from launcher.plan.sketch import Batch
from launcher.profile.tier import Tier
from launcher.units import MIB

# context, slots, unified, ubatch, tier: "CPU compute buffer size" of the pin
SMOLLM2 = [
    (512, 1, False, 512, "f16", 15.14),
    (4096, 1, False, 512, "f16", 18.64),
    (8192, 1, False, 512, "f16", 22.64),
    (4096, 1, False, 128, "f16", 4.66),
    (4096, 1, False, 2048, "f16", 74.57),
    (4096, 4, False, 512, "f16", 15.64),
    (4096, 4, True, 512, "f16", 18.64),
    (4096, 1, False, 512, "q8_0", 18.67),
    (8192, 4, False, 64, "q4_0", 2.11),
]


@pytest.mark.parametrize(("tokens", "slots", "unified", "ubatch", "tier", "seen"), SMOLLM2)
def test_smollm2(smollm2, tokens, slots, unified, ubatch, tier, seen):
    settings = KvSettings(tier=Tier(tier, tier), ubatch=ubatch)
    computed = compute_bytes(smollm2, allocate(tokens, slots, unified), settings, on_host(smollm2))
    assert computed[HOST] / MIB == pytest.approx(seen, rel=0.01)


# the devices' figures with one and with two rpc workers
@pytest.mark.parametrize(
    ("devices", "layers", "seen"),
    [
        (["RPC0"], None, {"RPC0": 17.51, HOST: 8.52}),
        (["RPC0"], 10, {"RPC0": 15.26, HOST: 18.64}),
        (["RPC0", "RPC1"], None, {"RPC0": 43.05, "RPC1": 32.91, HOST: 27.32}),
    ],
)
def test_smollm2_on_devices(smollm2, devices, layers, seen):
    placement = place(smollm2, devices=devices, gpu_layers=layers, weights=[1] * len(devices))
    computed = compute_bytes(smollm2, allocate(4096, 1, False), KvSettings(), placement)
    for device, size in seen.items():
        # the second of two: a row's hole opens later than in the engine
        assert computed[device] / MIB == pytest.approx(size, rel=0.04 if device == "RPC1" else 0.005), device


def test_more_outputs_need_more(smollm2):
    context, placement = allocate(4096, 1, False), on_host(smollm2)
    one = compute_bytes(smollm2, context, KvSettings(), placement)[HOST]
    many = compute_bytes(smollm2, context, KvSettings(), placement, 512)[HOST]
    assert many > 512 * 49152 * 4 > one


def test_it_grows_with_the_context_by_its_mask_alone(smollm2):
    small, large = (
        compute_bytes(smollm2, allocate(size, 1, False), KvSettings(), on_host(smollm2))[HOST] for size in (4096, 8192)
    )
    assert large - small == 4096 * 512 * 2


def test_a_mixture_needs_room_for_the_experts_in_use(mixture):
    settings = KvSettings()
    computed = compute_bytes(mixture, allocate(4096, 1, False), settings, on_host(mixture))[HOST]
    # gate, up and their product of four experts, for 512 tokens
    assert computed > 3 * 4 * 1024 * 512 * 4


def test_it_is_quick(smollm2):
    placement, began = on_host(smollm2), time.process_time()
    for size in range(20):
        compute_bytes(smollm2, allocate(256 * (size + 1), 1, False), KvSettings(), placement)
    assert (time.process_time() - began) / 20 < 0.02


def test_results_are_freed_after_their_last_reader():
    graph = Graph()
    first = graph.op(1024)
    second = graph.op(1024, first)
    third = graph.op(1024, second)  # may lie where the first was
    graph.op(1024, third)
    assert graph.peak() == 2048


def test_an_operation_writes_over_its_only_parent():
    graph = Graph()
    graph.over(1024, graph.over(1024, graph.op(1024)))
    assert graph.peak() == 1024
    shared = Graph()
    parent = shared.op(1024)
    shared.op(32, parent, shared.over(1024, parent))  # read again: it may not
    assert shared.peak() == 2048 + 32


def test_a_hole_is_filled_by_what_fits_best():
    graph = Graph()
    large, keep, small, kept = graph.op(4096), graph.op(32), graph.op(1024), graph.op(32)
    freed = graph.op(0, large), graph.op(0, small)
    fits = graph.op(1024, *freed)  # the smaller hole, not the larger
    graph.op(4096, fits)
    graph.op(0, keep, kept)
    assert graph.peak() == 4096 + 32 + 1024 + 32


def test_inputs_that_nobody_reads_stay():
    graph = Graph()
    graph.input(1000)
    graph.op(24)
    assert graph.peak() == 1024 + 32


def test_a_view_keeps_its_source():
    graph = Graph()
    source = graph.op(1024)
    looked = graph.view(source)
    other = graph.op(1024)
    graph.op(32, looked, other)
    assert graph.peak() == 2048 + 32


def test_nothing_is_written_over_a_view():
    """The allocator doesn't count a view among its own: what is turned after a reshape has a place of its own."""
    graph = Graph()
    graph.over(1024, graph.view(graph.op(1024)))
    assert graph.peak() == 2048


def test_copies_of_a_pipeline_stay():
    graph = Graph()
    kept = graph.input(1024, kept=True)
    graph.op(1024, graph.over(1024, kept))
    assert graph.peak() == 3072


def test_a_ubatch_has_as_many_tokens_of_each_sequence():
    batch = Batch.of(allocate(777, 5, False), KvSettings(ubatch=32))
    assert (batch.tokens, batch.outputs) == (35, 5)


def test_layers_left_out_of_the_drawing_bring_their_constants(shape, table):
    """Every layer with an indexer has a plane of zeros, laid out before anything is evaluated."""

    def needed(blocks: int) -> int:
        rows = [("token_embd.weight", "f32", (128, 128)), ("output_norm.weight", "f32", (128,))]
        for block in range(blocks):
            rows += [
                (f"blk.{block}.{name}.weight", "f32", dims)
                for name, dims in (
                    ("attn_norm", (128,)),
                    ("attn_q_a", (128, 512)),
                    ("attn_q_b", (512, 192)),
                    ("attn_kv_a_mqa", (128, 576)),
                    ("attn_output", (128, 128)),
                    ("ffn_norm", (128,)),
                    ("ffn_up", (128, 192)),
                    ("ffn_gate", (128, 192)),
                    ("ffn_down", (192, 128)),
                )
            ]
        keys = {
            "block_count": blocks, "embedding_length": 128, "attention.head_count": 1, "attention.head_count_kv": 1,
            "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
            "attention.value_length_mla": 128, "attention.kv_lora_rank": 512, "feed_forward_length": 192,
            "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 64,
            "context_length": 4096,
        }  # fmt: skip
        model = shape("deepseek32", keys, table(*rows), 128)
        return compute_bytes(model, allocate(4096, 1, False), KvSettings(), on_host(model))[HOST]

    assert needed(9) - needed(4) == 5 * 4096 * 512 * 4
