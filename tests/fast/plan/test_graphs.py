"""The graphs of many architectures against what the engine reserved for them.

zoo.json has headers of the tiny models that upstream's own `test-llama-archs -o DIR` writes (keys; tensors with their
dims and blocks) and the engine's "CPU compute buffer size" (MiB, two digits) of up to six starts each: context, slots,
unified, tier, ubatch, swa-full.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from launcher.plan.compute import compute_bytes
from launcher.plan.context import allocate
from launcher.plan.kv import HOST, KvSettings
from launcher.plan.placement import on_host
from launcher.profile.tier import parse_tier
from launcher.units import MIB

ZOO = json.loads((Path(__file__).parent / "zoo.json").read_text())
_WITHOUT_FLASH = {"grok"}
# what is not drawn to the byte: where a hole opens a little earlier or later than in the engine
_ROUGHLY = {"minicpm3": 0.07, "minimax-m3": 0.07, "minimax-01": 0.07}


def _list(value: object) -> object:
    return array("f", value) if isinstance(value, list) and any(isinstance(one, float) for one in value) else value


@pytest.mark.parametrize("name", ZOO)
def test_the_engine_reserved_as_much(name, shape, table):
    entry = ZOO[name]
    keys = {key: _list(value) for key, value in entry["keys"].items()}
    rows = [
        (f"blk.{block}.{tensor}" if blocks else tensor, "f32", dims)
        for tensor, dims, blocks in entry["tensors"]
        for block in (blocks or [0])
    ]
    model = shape(entry["arch"], keys, table(*rows), entry["vocabulary"])
    assert entry["seen"]
    for context, slots, unified, tier, ubatch, swa_full, seen in entry["seen"]:
        settings = KvSettings(
            tier=parse_tier(tier), swa_full=swa_full, ubatch=ubatch, flash=entry["arch"] not in _WITHOUT_FLASH
        )
        computed = compute_bytes(model, allocate(context, slots, unified), settings, on_host(model))[HOST] / MIB
        limit = _ROUGHLY.get(entry["arch"], 0.015)
        assert computed == pytest.approx(seen, rel=limit, abs=0.015), (context, slots, unified, tier, ubatch)
