"""What the patches cost while every option is off: speed against the unpatched engine of the same pin.

That the two say the same, token for token and byte for byte, is tests/engine/patches/test_off_path.py. Here both run at
once and are asked in the order A B B A, so that a slow moment of the box meets both; the lower bound of the ratio is
bootstrapped over the pairs. Speed is tokens per second that the process computed, in all of its threads: on one core,
that is tokens per second but for what a neighbour took.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.bench.bare import BareEngine, bare_engine
from launcher.bench.record import check, row
from launcher.bench.setup import bench_engine
from launcher.engine.report import Silent

_PROMPT, _WRITTEN = 256, 64  # tokens read and written in one request
_TARGET = 0.98
_RESAMPLES = 2000


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """Rows and checks: prefill and decode speed, patched ÷ unpatched."""
    reference = bench_engine(Silent(), "none").server
    pairs = 4 if quick else 24
    draw = random.Random(seed)
    rows, checks = [], []
    for name, model in models.items():
        with (
            bare_engine(reference, model, "-c", 1024, "-np", 1, "-t", 1) as plain,
            bare_engine(server, model, "-c", 1024, "-np", 1, "-t", 1) as patched,
        ):
            prompt = [draw.randrange(100, 30000) for _ in range(_PROMPT)]
            for engine in (plain, patched):
                _speeds(engine, prompt)  # unmeasured: pages come in, threads start
            ratios: dict[str, list[float]] = {"prefill": [], "decode": []}
            for _ in range(pairs):
                order = (plain, patched, patched, plain)
                first, second, third, fourth = (_speeds(engine, prompt) for engine in order)
                for number, kind in enumerate(ratios):
                    unpatched = first[number] + fourth[number]
                    ratios[kind].append((second[number] + third[number]) / unpatched)
        for kind, found in ratios.items():
            low = lower_bound(found, draw)
            rows.append(row(f"{name}, {kind}", "patched ÷ unpatched, median", statistics.median(found), "ratio"))
            rows.append(row(f"{name}, {kind}", "95 % lower bound", low, "ratio"))
            checks.append(check(f"{name}, {kind}", low >= _TARGET, low, f"≥ {_TARGET}", hard=not quick))
    return {"rows": rows, "checks": checks}


def _speeds(engine: BareEngine, prompt: Sequence[int]) -> tuple[float, float]:
    """Tokens per second of reading and of writing."""
    begin = engine.cpu_seconds()
    engine.complete(prompt, 1, cache_prompt=True)
    between = engine.cpu_seconds()
    engine.complete(prompt, _WRITTEN, cache_prompt=True)
    end = engine.cpu_seconds()
    engine.erase()
    return len(prompt) / (between - begin), _WRITTEN / (end - between)


def lower_bound(values: Sequence[float], draw: random.Random) -> float:
    """The 2.5 % quantile of the bootstrapped mean."""
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)]
