"""The graphs of many architectures against what the engine reserved for them.

zoo.json has headers of the tiny models that upstream's own `test-llama-archs -o DIR` writes (keys; tensors with their
dims and blocks) and the engine's "CPU compute buffer size" (MiB, two digits) of up to six starts each: context, slots,
unified, tier, ubatch, swa-full.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.model.shape import ModelShape
from launcher.plan.compute import compute_bytes
from launcher.plan.context import allocate
from launcher.plan.kv import HOST, KvSettings, kv_parts
from launcher.plan.placement import on_host, place
from launcher.plan.plan import DRAFTED, kv_settings
from launcher.profile.load import load_profile
from launcher.profile.tier import parse_tier
from launcher.units import MIB

ZOO = json.loads((Path(__file__).parent / "zoo.json").read_text())
_WITHOUT_FLASH = {"grok"}


def _list(value: object) -> object:
    return array("f", value) if isinstance(value, list) and any(isinstance(one, float) for one in value) else value


@pytest.fixture
def zoo(shape, table) -> Callable[[str], ModelShape]:
    """The model of this name, without its file."""
    return partial(_model, shape, table)


def _model(shape, table, name):
    entry = ZOO[name]
    keys = {key: _list(value) for key, value in entry["keys"].items()}
    rows = [
        (f"blk.{block}.{tensor}" if blocks else tensor, "f32", dims)
        for tensor, dims, blocks in entry["tensors"]
        for block in (blocks or [0])
    ]
    return shape(entry["arch"], keys, table(*rows), entry["vocabulary"])


@pytest.mark.parametrize("name", ZOO)
def test_the_engine_reserved_as_much(name, zoo):
    entry, model = ZOO[name], zoo(name)
    assert entry["seen"]
    for context, slots, unified, tier, ubatch, swa_full, seen in entry["seen"]:
        settings = KvSettings(
            tier=parse_tier(tier), swa_full=swa_full, ubatch=ubatch, flash=entry["arch"] not in _WITHOUT_FLASH
        )
        computed = compute_bytes(model, allocate(context, slots, unified), settings, on_host(model))[HOST] / MIB
        assert computed == pytest.approx(seen, rel=0.015, abs=0.015), (context, slots, unified, tier, ubatch)


# with `--spec-type draft-mtp`: context, slots, unified, ubatch; "RS buffer size" and "CPU compute buffer size"
TAKEN_BACK = [
    ("qwen35-dense", 1024, 1, False, 512, 0.54, 7.02),
    ("qwen35-dense", 2048, 3, False, 64, 1.61, 2.77),
    ("qwen35-dense", 2048, 4, True, 128, 2.14, 4.54),
    ("nemotron_h-dense", 2048, 3, False, 64, 3.14, 4.99),
    ("lfm2-dense", 2048, 4, True, 128, 0.03, 1.25),
    ("kimi-k3-moe", 2048, 4, True, 128, 1.07, 2.13),
    ("deepseek4-moe", 2048, 3, False, 64, 1.03, 6.30),
    ("glm5-next-moe", 2048, 4, True, 128, 1.07, 21.90),
]


@pytest.mark.parametrize(("name", "tokens", "slots", "unified", "ubatch", "states", "compute"), TAKEN_BACK)
def test_states_of_drafted_tokens_are_kept(tmp_path, zoo, name, tokens, slots, unified, ubatch, states, compute):
    """A model that drafts with heads of its own can take a draft back: every state three times more."""
    model = zoo(name)
    (tmp_path / "p.toml").write_text('[model]\npath = "x.gguf"\n[model.draft]\ntype = "mtp"\n')
    sets = [f"compute.ubatch={ubatch}"]
    settings = kv_settings(load_profile(tmp_path / "p.toml", sets, {}), model, on_host(model))
    assert settings.rollback == DRAFTED
    context = allocate(tokens, slots, unified)
    parts = kv_parts(model, context, settings)
    assert sum(part.bytes for part in parts if part.kind == "recurrent") / MIB == pytest.approx(states, abs=0.006)
    found = compute_bytes(model, context, settings, on_host(model), 1 + DRAFTED)[HOST] / MIB
    assert found == pytest.approx(compute, rel=0.01, abs=0.01)


@pytest.mark.parametrize(
    ("name", "draft"), [("mamba2-dense", "mtp"), ("qwen35-dense", "ngram"), ("gemma3-dense", "mtp")]
)
def test_others_take_nothing_back(tmp_path, zoo, name, draft):
    model = zoo(name)
    (tmp_path / "p.toml").write_text(f'[model]\npath = "x.gguf"\n[model.draft]\ntype = "{draft}"\n')
    assert kv_settings(load_profile(tmp_path / "p.toml", (), {}), model, on_host(model)).rollback == 0


def test_a_model_that_lacks_something_is_a_figure_or_a_fault(zoo):
    """Whatever tensor is missing, or shaped in another way: no traceback, nothing absurd."""
    dice = random.Random(5)
    for name in ZOO:
        model = zoo(name)
        for _ in range(12):
            kept = [tensor for tensor in model.tensors if dice.random() > 0.15]
            odd = [replace(one, dims=(dice.choice([1, 3, 4096]),) * dice.randint(1, 3)) for one in kept[:3]]
            broken = replace(model, tensors=(*odd, *kept[3:]))
            try:
                found = compute_bytes(broken, allocate(1024, 2, False), KvSettings(ubatch=64), on_host(broken))
            except ProfileError as fault:
                assert "has no tensor" in fault.message
            else:
                assert 0 < found[HOST] < 1 << 40


# one rpc worker, all layers on it, the experts of the first so many on the host: what the worker and the host reserved
# (uncertain: which rows wait on the worker for what comes back, and when inputs go on where states come first)
EXPERTS_AWAY = [
    ("llama-moe", 1, 5.51, 6.02, 0.005),
    ("llama-moe", 99, 5.51, 6.02, 0.005),
    ("qwen3next-moe", 2, 6.50, 7.52, 0.2),
]


@pytest.mark.parametrize(("name", "experts", "worker", "host", "off"), EXPERTS_AWAY)
def test_experts_on_the_host_are_multiplied_there(zoo, name, experts, worker, host, off):
    model = zoo(name)
    placement = place(model, devices=["RPC0"], experts_on_host=experts)
    found = compute_bytes(model, allocate(2048, 1, False), KvSettings(), placement)
    assert found[HOST] / MIB == pytest.approx(host, rel=off)
    assert found["RPC0"] / MIB == pytest.approx(worker, rel=0.12)
