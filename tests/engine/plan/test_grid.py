"""The plan against the real engine: what its log says it allocated, over a grid of starts.

`KVLAUNCH_BENCH_ZOO` names a folder with the tiny models of all architectures (`test-llama-archs -o FOLDER` of the pin);
with it the grid has over 150 starts, without it the two real models only.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.bench.plan import grid, run
from launcher.bench.starts import start
from launcher.model.shape import read_shape
from launcher.plan.context import allocate
from launcher.plan.kv import KvSettings, kv_bytes, kv_parts
from launcher.plan.ledger import needs
from launcher.profile.tier import Tier
from launcher.units import MIB

GOLDEN = [
    ("smollm2", 8192, 1, False, "f16", False, 180.0),
    ("smollm2", 8192, 1, False, "q8_0", False, 95.625),
    ("smollm2", 8192, 1, False, "q4_0", False, 50.625),
    ("gemma3", 32768, 1, False, "f16", False, 111.0),
    ("gemma3", 32768, 4, True, "f16", False, 133.5),
    ("gemma3", 32768, 4, False, "f16", False, 156.0),
    ("gemma3", 32768, 1, False, "f16", True, 576.0),
]


@pytest.mark.parametrize(("model", "context", "slots", "unified", "tier", "full", "expected"), GOLDEN)
def test_golden_numbers_of_the_cache(request, engine_server, model, context, slots, unified, tier, full, expected):
    path: Path = request.getfixturevalue(model)
    argv = ["-m", str(path), "-c", str(context), "-np", str(slots), "-kvu" if unified else "-no-kvu"]
    argv += ["-ctk", tier, "-ctv", tier, *(["--swa-full"] if full else [])]
    seen = start(engine_server, argv)
    assert seen.ready, seen.tail[-5:]
    settings = KvSettings(tier=Tier(tier, tier), swa_full=full)
    planned = kv_bytes(kv_parts(read_shape(path), allocate(context, slots, unified), settings)) / MIB
    assert planned == expected
    assert seen.total("kv") == pytest.approx(expected, abs=0.01)


def test_rounding_up_per_slot(engine_server, smollm2):
    """`-c 163840 -np 6`: 164352 cells, whatever the log says of rounding down."""
    seen = start(
        engine_server, ["-m", str(smollm2), "-c", "163840", "-np", "6", "-no-kvu", "-ctk", "q4_0", "-ctv", "q4_0"]
    )
    assert seen.ready
    assert any("n_ctx " in line and "= 164352" in line for line in seen.tail)
    context = allocate(163840, 6, False)
    assert (context.total, context.per_slot) == (164352, 27392)
    settings = KvSettings(tier=Tier("q4_0", "q4_0"))
    planned = kv_bytes(kv_parts(read_shape(smollm2), context, settings)) / MIB
    assert seen.total("kv") == pytest.approx(planned, abs=0.01)


def test_the_grid(engine_server, smollm2, gemma3):
    """All hard checks of the bench; bounded, with the zoo when it is there."""
    found = run(engine_server, {"smollm2": smollm2, "gemma3": gemma3}, True, 7)
    failed = [entry for entry in found["checks"] if entry["hard"] and not entry["ok"]]
    assert not failed, failed
    starts = next(entry["value"] for entry in found["rows"] if entry["metric"] == "starts")
    late = any("out of time" in reason for reason in found["skipped"])  # a busy box gets through fewer, and says so
    assert starts >= (20 if late else 60 if os.environ.get("KVLAUNCH_BENCH_ZOO") else 24)


def test_the_whole_grid_is_large(smollm2, gemma3):
    zoo = [Path(f"{number}.gguf") for number in range(128)]
    cases = grid([smollm2, gemma3], zoo, quick=False, seed=1)
    assert len(cases) >= 150
    assert len({case.name for case in cases}) == len(cases)
    assert {case.slots for case in cases} >= {1, 2, 3, 8}
    assert {case.unified for case in cases} == {True, False}


def test_what_the_process_holds_is_what_the_ledger_says(engine_server, gemma3):
    """The live process's own memory (mapped weights that were read included) against the host's sum."""
    import psutil

    from launcher.bench.plan import Case, demand_of
    from launcher.machine.probe import probe
    from launcher.plan.ledger import ledger
    from launcher.plan.placement import Loading

    case = Case(gemma3, 4096, 1, False, Tier("f16", "f16"))
    held: list[int] = []

    def look(pid: int) -> None:
        held.append(psutil.Process(pid).memory_full_info().uss)

    seen = start(engine_server, case.argv(), until="all slots are idle", at_end=look, warm=True)
    assert seen.ready
    lines = ledger(demand_of(case, read_shape(gemma3), Loading(cpu_features=frozenset(probe().cpu.features))))
    planned = needs(lines)["host"]
    assert 0.75 * planned <= held[0] <= planned
