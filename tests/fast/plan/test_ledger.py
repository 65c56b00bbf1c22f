"""One line a consumer, its formula true to its figure; dry runs and measurements take their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.plan.compute import compute_bytes
from launcher.plan.context import allocate
from launcher.plan.dryrun import parse_dry_run
from launcher.plan.kv import HOST, KvSettings
from launcher.plan.ledger import Demand, Draft, Source, checkpoint_bytes, ledger, needs
from launcher.plan.placement import Loading, on_host, place
from launcher.profile.tier import Tier
from launcher.units import GIB, MIB


def _demand(shape, size=8192, slots=1, **more) -> Demand:
    return Demand(shape, allocate(size, slots, False), more.pop("settings", KvSettings()), on_host(shape), **more)


def _line(demand: Demand, item: str, device: str = HOST):
    found = [line for line in ledger(demand) if (line.item, line.device) == (item, device)]
    return found[0] if found else None


def test_lines_of_a_small_model(smollm2):
    lines = ledger(_demand(smollm2))
    assert {line.item for line in lines} == {"weights", "kv", "compute", "output", "prompt-cache", "reserve"}
    assert _line(_demand(smollm2), "kv").bytes == 180 * MIB
    assert _line(_demand(smollm2), "output").bytes == 49152 * 4
    assert _line(_demand(smollm2, slots=4), "output").bytes == 49152 * 4 * 4
    assert _line(_demand(smollm2), "prompt-cache").bytes == 8 * GIB  # what the engine takes when nobody says
    assert needs(lines) == {HOST: sum(line.bytes for line in lines)}


def test_every_line_explains_itself(gemma3):
    for line in ledger(_demand(gemma3, 32768, 4)):
        assert line.formula and line.source in Source
        assert set(line.as_json()) >= {"item", "device", "bytes", "source", "reclaimable"}


def test_the_formula_of_the_cache_multiplies_to_its_bytes(gemma3):
    line = _line(_demand(gemma3, 32768), "kv")
    total = 0.0
    for part in line.formula.split(" + "):
        words = part.split()
        total += int(words[1]) * int(words[4]) * float(words[7])
    assert total == line.bytes


def test_mapped_weights_are_reclaimable(smollm2):
    line = _line(_demand(smollm2), "weights")
    assert line.reclaimable == line.bytes and line.source is Source.HEADER
    copied = _line(_demand(smollm2, loading=Loading(mapped=False)), "weights")
    assert copied.reclaimable == 0 and copied.bytes == smollm2.tensor_bytes


def test_no_prompt_cache_no_line(smollm2):
    assert _line(_demand(smollm2, prompt_cache=0), "prompt-cache") is None


def test_checkpoints_only_where_something_cannot_be_rolled_back(smollm2, gemma3):
    assert _line(_demand(smollm2), "checkpoints") is None
    assert _line(_demand(gemma3, settings=KvSettings(swa_full=True)), "checkpoints") is None
    line = _line(_demand(gemma3, 32768, 2), "checkpoints")
    # 15 sliding layers, 1024 cells (window and ubatch), K and V of 256 halves
    assert line.bytes == 2 * 32 * 15 * 1024 * 2 * 512
    assert line.grows
    assert _line(_demand(gemma3, checkpoints=0), "checkpoints") is None


def test_a_checkpoint_of_a_state_is_one_slots_share(shape):
    keys = {"block_count": 2, "context_length": 4096, "embedding_length": 64, "attention.head_count": 0,
            "ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 1}  # fmt: skip
    mamba = shape("mamba2", keys)
    sizes = {checkpoint_bytes(mamba, allocate(4096, slots, False), KvSettings()) for slots in (1, 4)}
    assert sizes == {2 * (3 * 160 + 16 * 128) * 4}


def test_devices_come_before_the_host(smollm2):
    demand = replace(
        _demand(smollm2), placement=place(smollm2, devices=["CUDA0"], gpu_layers=20), reserves={"CUDA0": 500 * MIB}
    )
    lines = ledger(demand)
    assert [line.device for line in lines] == sorted((line.device for line in lines), key=lambda d: d == HOST)
    assert _line(demand, "reserve", "CUDA0").bytes == 500 * MIB
    assert _line(demand, "kv", "CUDA0").bytes + _line(demand, "kv").bytes == 180 * MIB


def test_tensor_split_cuts_the_cache_too(smollm2):
    placement = place(smollm2, devices=["CUDA0", "CUDA1"], weights=(3, 1), split="tensor")
    demand = replace(_demand(smollm2), placement=placement)
    assert (_line(demand, "kv", "CUDA0").bytes, _line(demand, "kv", "CUDA1").bytes) == (135 * MIB, 45 * MIB)
    rows = replace(demand, placement=replace(placement, split="row"))
    assert _line(rows, "kv", "CUDA0").bytes == 24 * 6 * MIB  # by layers, as ever


def test_what_was_measured_wins(smollm2):
    demand = _demand(smollm2, measured={("kv", HOST): 123, ("prompt-cache", HOST): 5})
    line = _line(demand, "kv")
    assert (line.bytes, line.source) == (123, Source.MEASURED)
    assert "180.0 MiB" in line.formula  # what was computed is still said
    assert _line(demand, "prompt-cache").source is Source.FORMULA  # a limit is not a measurement


def test_a_dry_run_is_read():
    text = "some log line\nRPC0 92 90 104 \nHost 28 0 8 \n"
    dry = parse_dry_run(text)
    assert dry.compute("RPC0") == 104 * MIB + MIB // 2
    assert (dry.lines[HOST].model, dry.lines[HOST].context) == (28 * MIB + MIB // 2, 0)
    assert dry.compute("CUDA0") is None
    assert parse_dry_run("error: no such model\n") is None
    assert parse_dry_run("RPC0 1 2 99999999999999999999999\n") is None


def test_a_dry_run_is_mended_for_its_outputs(shape, table):
    """A small vocabulary: the outputs it adds are little, and what is left is trusted over the formula."""
    keys = {"block_count": 2, "context_length": 4096, "embedding_length": 256, "attention.head_count": 4}
    rows = [("token_embd.weight", "f16", (256, 100))]
    rows += [(f"blk.{n}.ffn_up.weight", "f16", (256, 1024)) for n in range(2)]
    rows += [(f"blk.{n}.ffn_norm.weight", "f32", (256,)) for n in range(2)]
    small = shape("llama", keys, table(*rows), 100)
    demand = _demand(small, 4096)
    formula = _line(demand, "compute").bytes
    said = parse_dry_run(f"Host 1 1 {formula // MIB + 40}")
    line = _line(replace(demand, dry_run=said), "compute")
    assert line.source is Source.DRY_RUN
    assert line.bytes == pytest.approx(formula + 40 * MIB, abs=2 * MIB)
    assert "dry run" in line.formula


def test_a_dry_run_that_agrees_confirms_the_finer_figure(smollm2):
    demand = _demand(smollm2, 4096, dry_run=parse_dry_run("Host 92 90 106"))  # what the pin really printed
    line = _line(demand, "compute")
    assert line.source is Source.DRY_RUN
    assert line.bytes / MIB == pytest.approx(18.64, abs=0.01)  # what the server then took


def test_a_dry_run_that_is_all_outputs_and_disagrees_is_taken_for_the_worse(smollm2):
    demand = _demand(smollm2, 4096, dry_run=parse_dry_run("Host 92 90 140"))
    line = _line(demand, "compute")
    assert line.source is Source.DRY_RUN and "140" in line.formula
    assert line.bytes / MIB == pytest.approx(18.64 + 34, abs=1.5)


def test_a_dry_run_that_says_less_does_not_hide_what_the_server_takes(smollm2):
    """It reserves the graph of a prompt only."""
    line = _line(_demand(smollm2, 4096, dry_run=parse_dry_run("Host 92 90 90")), "compute")
    assert line.source is Source.FORMULA and line.bytes / MIB == pytest.approx(18.64, abs=0.01)
    assert "dry run 90.5 MiB" in line.formula


def test_less_than_a_mib_is_not_nothing(shape, table):
    keys = {"block_count": 1, "context_length": 4096, "embedding_length": 64, "attention.head_count": 1}
    rows = [("token_embd.weight", "f16", (64, 100)), ("blk.0.ffn_up.weight", "f16", (64, 64))]
    small = _demand(shape("llama", keys, table(*rows), 100), 256)
    said = parse_dry_run("Host 1 1 0")
    assert _line(replace(small, dry_run=said), "compute").bytes == _line(small, "compute").bytes > 0


def test_a_card_borrows_weights_of_the_host(smollm2):
    """For a large batch; a worker does not, nor is there anything to borrow where all lies on the card."""
    largest = max(tensor.size for tensor in smollm2.tensors if tensor.layer is not None)

    def compute(device, layers, ubatch=512):
        placement = place(smollm2, devices=[device], gpu_layers=layers)
        demand = _demand(smollm2, 4096, settings=KvSettings(ubatch=ubatch))
        return _line(replace(demand, placement=placement), "compute", device)

    worker, card = compute("RPC0", 10), compute("CUDA0", 10)
    assert card.bytes - worker.bytes == largest and "uncertain" in card.formula
    assert compute("CUDA0", None).bytes == compute("RPC0", None).bytes
    assert compute("CUDA0", 10, 16).bytes == compute("RPC0", 10, 16).bytes


def test_adapters_lie_beside_what_they_change(smollm2, shape, table):
    rows = table(("blk.0.attn_q.weight.lora_a", "f32", (576, 8)), ("blk.29.attn_q.weight.lora_a", "f32", (576, 8)))
    adapter = shape("llama", {"block_count": 30}, rows)
    demand = replace(_demand(smollm2), loras=(adapter,), placement=place(smollm2, devices=["CUDA0"], gpu_layers=2))
    assert _line(demand, "lora").bytes == _line(demand, "lora", "CUDA0").bytes == 576 * 8 * 4


def test_a_draft_model_brings_weights_cache_and_compute(smollm2):
    draft = Draft(smollm2, KvSettings(), on_host(smollm2))
    line = _line(_demand(smollm2, draft=draft), "draft")
    compute = compute_bytes(smollm2, allocate(8192, 1, False), KvSettings(), on_host(smollm2))[HOST]
    assert line.bytes >= smollm2.tensor_bytes + 180 * MIB + compute
    assert line.reclaimable < line.bytes


def test_a_model_that_drafts_for_itself(shape, smollm2):
    keys = {"block_count": 5, "nextn_predict_layers": 1, "context_length": 4096, "embedding_length": 64,
            "attention.head_count": 4, "attention.head_count_kv": 2}  # fmt: skip
    glm = shape("glm4moe", keys)
    assert _line(_demand(glm, 4096), "draft") is None
    line = _line(_demand(glm, 4096, mtp=True), "draft")
    assert _line(_demand(glm, 4096), "kv").bytes == 4 * 4096 * 2 * 32 * 2  # the trunk alone
    assert line.bytes == 4096 * 2 * 32 * 2 + _line(_demand(glm, 4096), "compute").bytes
    assert _line(_demand(smollm2, mtp=True), "draft") is None  # it has no such blocks


def test_a_projector(smollm2, shape, table):
    projector = shape("clip", {}, table(("v.blk.0.up.weight", "f16", (1024, 4096))))
    line = _line(_demand(smollm2, mmproj=projector), "mmproj")
    assert line.bytes == projector.tensor_bytes + 64 * MIB


def test_a_smaller_tier_is_a_smaller_line(smollm2):
    sizes = [_line(_demand(smollm2, settings=KvSettings(tier=Tier(t, t))), "kv").bytes for t in ("f16", "q8_0", "q4_0")]
    assert sizes == sorted(sizes, reverse=True)


def test_a_guess_is_called_one(shape, smollm2):
    keys = {"block_count": 2, "embedding_length": 64, "context_length": 4096, "wkv.head_size": 64}
    keys |= {"attention.head_count": 0, "feed_forward_length": 128, "token_shift_count": 2}
    assert "uncertain: how rwkv6 keeps its states" in _line(_demand(shape("rwkv6", keys, (), 100)), "compute").formula
    assert "uncertain" not in _line(_demand(smollm2), "compute").formula
