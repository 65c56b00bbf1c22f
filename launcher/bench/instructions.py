"""Counts the user instructions that a server takes for a token.

The same work takes the same number of them however busy the box is: where time is known to a few percent, this is known
to a millionth. They are counted over a server's whole life, for two amounts of work that differ in one thing; what both
have in common - start, model, end – drops out of the difference. By the CPU's counters where perf may read them, else
by valgrind, fifty times slower, which knows no instructions newer than AVX2: engines are built without them for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from launcher.bench.bare import launched
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.series import Choice
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree
from launcher.paths import places

_START, _WORK, _END = 600.0, 1800.0, 120.0  # seconds that are never needed
_LOADED = "model loaded"  # the server's own last word before it answers (tools/server/server.cpp:498)


@dataclass(frozen=True, slots=True)
class Counter:
    """A program that runs another and counts. `knows`: the only x86 extensions that may be in it, where not all."""

    name: str
    prefix: Callable[[Path], list[str]]
    read: Callable[[str], int | None]
    knows: frozenset[str] | None

    def engine(self, patches: Choice) -> Path:
        """A server of the CPU's backend with instructions that this counter knows, built if need be."""
        from launcher.engine.builder import build_engine

        flags = None if self.knows is None else self.knows.intersection(read_cpu(Tree()).features)
        return build_engine(BuildRequest("cpu", patches, cpu_flags=flags), places(), Silent()).server


@dataclass(frozen=True, slots=True)
class Work:
    """What one server does between its start and its end."""

    read: int
    written: int


# what reading and what writing costs is the difference of each to the first
SHORT = Work(4, 1)
LONG = {"prefill": Work(20, 1), "decode": Work(4, 9)}


@dataclass(frozen=True, slots=True)
class Counted:
    """Instructions of a server's life by the work that it did; the short one twice, to see whether the count is one."""

    short: int
    again: int
    long: dict[str, int]

    def per_token(self, kind: str) -> float:
        work = LONG[kind]
        return (self.long[kind] - self.short) / (work.read - SHORT.read + work.written - SHORT.written)


def find_counter() -> Counter | None:
    """What can count here: perf, valgrind or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for counter in (_PERF, _VALGRIND):
            out = Path(folder) / counter.name
            argv = counter.prefix(out)
            if shutil.which(argv[0]) is None or (counter.knows and os.uname().machine != "x86_64"):
                continue
            done = subprocess.run([*argv, "/bin/true"], capture_output=True, check=False)
            if done.returncode == 0 and out.is_file() and counter.read(out.read_text()):
                return counter
    return None


def count(server: Path, model: Path, counter: Counter, prompt: list[int]) -> Counted:
    """All works of one engine, one server each; as many at once as there are cores."""
    works = [SHORT, SHORT, *LONG.values()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        short, again, *long = pool.map(lambda work: _life(server, model, counter, prompt, work), works)
    return Counted(short, again, dict(zip(LONG, long, strict=True)))


def _life(server: Path, model: Path, counter: Counter, prompt: list[int], work: Work) -> int:
    """Start, one completion, TERM. Nothing is asked while it loads: how often would depend on the clock."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "count"
        arguments = ("-c", 512, "-np", 1, "-t", 1, "-tb", 1)
        with launched(server, model, *arguments, under=counter.prefix(out)) as spawned:
            end = time.monotonic() + _START
            while _LOADED not in spawned.log():
                if spawned.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the engine did not come up under {counter.name}:\n{spawned.log()[-2000:]}")
                time.sleep(0.1)
            body = {"prompt": prompt[: work.read], "n_predict": work.written, "temperature": 0, "ignore_eos": True}
            # a connection that is kept would be looked at every few milliseconds until the end
            once = {"Connection": "close"}
            url = f"{spawned.url}/completion"
            httpx.post(url, json=body, headers=once, timeout=_WORK, trust_env=False).raise_for_status()
            spawned.end(signal.SIGTERM)
            spawned.process.wait(_END)
        found = counter.read(out.read_text())
    if not found:
        raise RuntimeError(f"{counter.name} counted nothing")
    return found


def _perf_prefix(out: Path) -> list[str]:
    return ["perf", "stat", "-x", ",", "-e", "instructions:u", "-o", str(out), "--"]


def _perf_count(text: str) -> int | None:
    """`123,,instructions:u,…`; words in the place of the number where it can't be counted."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions"):
            return int(fields[0]) if fields[0].isdigit() else None
    return None


def _valgrind_prefix(out: Path) -> list[str]:
    return ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out}", "--"]


def _valgrind_count(text: str) -> int | None:
    """The `summary:` line of a cachegrind file."""
    found = [line.split()[1] for line in text.splitlines() if line.startswith("summary:")]
    return int(found[0]) if found and found[0].isdigit() else None


_PERF = Counter("perf", _perf_prefix, _perf_count, None)
_VALGRIND = Counter(
    "valgrind", _valgrind_prefix, _valgrind_count, frozenset({"sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"})
)
