"""What the patches cost while every option is off: against the unpatched engine of the same pin.

That the two say the same, token for token and byte for byte, is tests/engine/patches/test_off_path.py. Here it is what
they take for it: instructions (instructions.py), which decide where they can be counted, and time.

Time cannot decide alone. Where a build happens to place its loops, and a process its pages, moves it by some percent
either way: two unpatched engines from two build folders were 2 % apart here. A process's own share of that is drawn
anew by restarting both sides, with addresses as random as they always are (with fixed ones, the same two layouts would
be compared each time, and their difference taken for the patches'). A build's own share stays.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench import instructions
from launcher.bench.bare import BareEngine, bare_engine
from launcher.bench.instructions import Counter
from launcher.bench.record import check, row
from launcher.bench.setup import bench_engine
from launcher.engine.report import Silent
from launcher.errors import BuildError

_CONTEXT = 256  # tokens that the slot holds at each measurement
_READ, _WRITTEN = 32, 8  # tokens of one piece: short, so that a slow moment of the box meets both sides
_SLOWEST = 0.98  # speed, patched ÷ unpatched: its lower bound
_MOST = 1.001  # instructions, patched ÷ unpatched
_STEADY = 0.0002  # of the instructions, between two runs of one engine
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Design:
    """How much is measured: so many restarts of both sides, so many rounds A B B A in each."""

    restarts: int
    rounds: int


FULL, QUICK = Design(10, 6), Design(3, 4)


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """Rows and checks, for each model: instructions for a token, and the speed of reading and writing."""
    reference = bench_engine(Silent(), "none").server
    draw = random.Random(seed)
    rows, checks, skipped = [], [], []
    counter, engines = None, (reference, server)
    try:
        counter = _counter(quick)
        engines = (counter.engine("none"), counter.engine("default"))
    except (LookupError, BuildError) as error:
        counter = None
        skipped.append(f"instructions: {error.args[0]}")
    for name, model in models.items():
        if counter is not None:
            counted = _count(name, model, engines, counter, draw)
            rows += counted[0]
            checks += counted[1]
        ratios = _time(model, (reference, server), QUICK if quick else FULL, draw)
        for kind, found in ratios.items():
            low = lower_bound(found, draw)
            rows.append(row(f"{name}, {kind}", "speed, patched ÷ unpatched, mean", statistics.fmean(found), "ratio"))
            rows.append(row(f"{name}, {kind}", "speed, 95 % lower bound", low, "ratio"))
            hard = counter is None and not quick
            checks.append(check(f"{name}, {kind}, speed", low >= _SLOWEST, low, f"≥ {_SLOWEST}", hard=hard))
    return {"rows": rows, "checks": checks, "skipped": skipped}


def _counter(quick: bool) -> Counter:
    """Raises LookupError where nothing can count, or not in so short a time."""
    counter = instructions.find_counter()
    if counter is None:
        raise LookupError("perf may not read the CPU's counters here, and there is no valgrind")
    if quick and counter.knows is not None:
        raise LookupError(f"{counter.name} takes minutes; without --quick they are counted")
    return counter


def _count(
    name: str, model: Path, engines: tuple[Path, Path], counter: Counter, draw: random.Random
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Instructions for a token, patched against unpatched, and whether counting twice gives the same."""
    prompt = _tokens(draw, _CONTEXT)
    plain, patched = (instructions.count(engine, model, counter, prompt) for engine in engines)
    rows, checks = [], []
    for kind in instructions.LONG:
        case = f"{name}, {kind}"
        ratio = patched.per_token(kind) / plain.per_token(kind)
        rows.append(row(case, f"instructions a token, unpatched ({counter.name})", round(plain.per_token(kind)), ""))
        rows.append(row(case, "instructions, patched ÷ unpatched", ratio, "ratio"))
        checks.append(check(f"{case}, instructions", ratio <= _MOST, ratio, f"≤ {_MOST}"))
    apart = max(abs(one.again / one.short - 1) for one in (plain, patched))
    rows.append(row(name, "instructions of a life of five tokens", patched.short / plain.short, "ratio"))
    rows.append(row(name, "two counts of the same, apart", apart, "share"))
    checks.append(check(f"{name}, the count is steady", apart <= _STEADY, apart, f"≤ {_STEADY}"))
    return rows, checks


def _time(model: Path, engines: tuple[Path, Path], design: Design, draw: random.Random) -> dict[str, list[float]]:
    """Speed of reading and of writing, patched ÷ unpatched: one ratio for each time that both sides were started."""
    core = str(max(os.sched_getaffinity(0)))  # both on one core: only one of them is asked at a time
    under = ("taskset", "-c", core) if shutil.which("taskset") else ()
    ratios: dict[str, list[float]] = {"prefill": [], "decode": []}
    for restart in range(design.restarts):
        # each side is the first to take its pages every other time
        first, second = engines if restart % 2 == 0 else engines[::-1]
        with (
            bare_engine(first, model, "-c", 1024, "-np", 1, "-t", 1, under=under) as one,
            bare_engine(second, model, "-c", 1024, "-np", 1, "-t", 1, under=under) as other,
        ):
            plain, patched = (one, other) if restart % 2 == 0 else (other, one)
            context = _tokens(draw, _CONTEXT)
            for engine in (plain, patched):
                _seconds(engine, context + _tokens(draw, _READ))  # unmeasured: pages come in, threads start
            rounds = [_round(plain, patched, context, draw) for _ in range(design.rounds)]
        for number, kind in enumerate(ratios):
            # the median: a neighbour on the box makes single rounds up to half as fast
            ratios[kind].append(statistics.median(found[number] for found in rounds))
    return ratios


def _round(plain: BareEngine, patched: BareEngine, context: list[int], draw: random.Random) -> tuple[float, float]:
    """A B B A or B A A B, in turns by chance; the ratios of reading and of writing."""
    order = [plain, patched, patched, plain] if draw.random() < 0.5 else [patched, plain, plain, patched]
    tails = [_tokens(draw, _READ) for _ in range(2)]  # both sides read both
    taken = {plain.pid: [0.0, 0.0], patched.pid: [0.0, 0.0]}
    for number, engine in enumerate(order):
        read, written = _seconds(engine, context + tails[number // 2])
        taken[engine.pid][0] += read
        taken[engine.pid][1] += written
    (read, written), (read_patched, written_patched) = taken[plain.pid], taken[patched.pid]
    return read / read_patched, written / written_patched


def _seconds(engine: BareEngine, prompt: Sequence[int]) -> tuple[float, float]:
    """What it computed to read the end of the prompt, whose beginning it holds, and then to write.

    In all of its threads: on one core, that is time but for what a neighbour took.
    """
    begin = engine.cpu_seconds()
    engine.complete(prompt, 1)
    between = engine.cpu_seconds()
    engine.complete(prompt, _WRITTEN)
    return between - begin, engine.cpu_seconds() - between


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(100, 30000) for _ in range(count)]


def lower_bound(values: Sequence[float], draw: random.Random) -> float:
    """The 2.5 % quantile of the bootstrapped mean."""
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)]
