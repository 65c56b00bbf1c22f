"""The engine's own test and measuring program for patch 0040 (tests/test-cpu-flash.cpp), for one set of CPU options.

Only ggml is compiled, not the engine: a minute on two cores. Both implementations are in the one program, so that they
are measured in turns in one process. Knows nothing of servers and models.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from launcher.engine import compiling, manifest, source, worktree
from launcher.engine.compiling import BuildPlace
from launcher.engine.pins import read_pin
from launcher.engine.report import Reporter
from launcher.engine.series import read_series, select
from launcher.errors import BuildError
from launcher.paths import Places
from launcher.supervise.process import HUGE_PAGES

PATCH = "0040"
NAME = "test-cpu-flash"
_LIBRARIES = ("libggml.a", "libggml-cpu.a", "libggml-base.a")  # in the order that the linker wants
_CPU_OPTIONS = ("GGML_SSE", "GGML_AVX", "GGML_FMA", "GGML_F16C", "GGML_BMI2", "GGML_AMX")
_FIXED = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "ON",
    # the whole tree is configured, since the packed source lacks what ggml alone would want; only ggml is compiled
    **{f"LLAMA_BUILD_{part}": "OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP", "UI")},
    "LLAMA_USE_PREBUILT_UI": "OFF",
}


@dataclass(frozen=True, slots=True)
class Roofs:
    """The limits of one thread: reading in GB/s, multiply-adds in 1e9/s (`i8`: of bytes; 0 where the CPU has none)."""

    dram: float
    l3: float
    f32: float
    i8: float


@dataclass(frozen=True, slots=True)
class Program:
    """The built program."""

    path: Path

    def test(self, only: str = "", *, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """The matrix against the f64 reference; `only` takes the cases whose text has it."""
        return self._run(["test", only], "", timeout)

    def matrix(self) -> list[str]:
        """The cases of the test."""
        return self._run(["list"], "", 60.0).stdout.splitlines()

    def bench(self, cases: Iterable[str], *, timeout: float = 1800.0) -> list[dict[str, Any]]:
        """Both implementations on each case (`key=value …`, the head of the source says which)."""
        done = self._run(["bench"], "\n".join(cases) + "\n", timeout)
        if done.returncode:
            raise BuildError(f"{NAME} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def roofs(self) -> Roofs:
        """What one thread can do here."""
        lines = self._run(["roof"], "", 120.0).stdout.splitlines()
        found = {got.pop("roof"): got for got in map(json.loads, lines)}
        reads, products = "gb_per_s", "gmac_per_s"
        return Roofs(found["dram"][reads], found["l3"][reads], found["f32"][products], found["i8"][products])

    def _run(self, argv: Sequence[str], text: str, timeout: float) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ) | HUGE_PAGES  # as the cache of an engine lies
        return subprocess.run(
            [str(self.path), *argv], input=text, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """Upstream's test of all operations, which compares a backend with the CPU's reference implementation."""

    path: Path

    def run(self, argv: Sequence[str], extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ) | dict(extra)
        return subprocess.run(
            [str(self.path), *argv], env=env, capture_output=True, text=True, timeout=900, check=False
        )


def options_of(server: Path) -> dict[str, str]:
    """The CPU options that a built server has: from its manifest, or from the cmake cache of its build folder."""
    folder = server.resolve().parent.parent
    if (folder / manifest.FILE).is_file():
        options = manifest.read(folder).options
    elif (cache := folder / "CMakeCache.txt").is_file():
        lines = (line.partition("=") for line in cache.read_text("utf-8", "replace").splitlines())
        options = {name.partition(":")[0]: value for name, _, value in lines if name.startswith("GGML_")}
    else:
        raise BuildError(
            f"{server} was not built here: nothing says with which CPU options",
            help="Measure an engine of the store (`kvlaunch engines`), or one in its build folder.",
        )
    return {name: value for name, value in options.items() if name.startswith(_CPU_OPTIONS) and value in ("ON", "OFF")}


def build_program(name: str, options: Mapping[str, str], places: Places, report: Reporter) -> Program:
    """Build it for these options, in a folder `name` that is kept: only what changed is compiled again."""
    return Program(_build(name, NAME, options, places, report))


def build_upstream_test(name: str, options: Mapping[str, str], places: Places, report: Reporter) -> Judge:
    """Upstream's `test-backend-ops`, in the same way."""
    return Judge(_build(name, "test-backend-ops", options, places, report))


def _build(name: str, program: str, options: Mapping[str, str], places: Places, report: Reporter) -> Path:
    pin = read_pin(None)
    pristine = source.pristine(pin, places, report)
    patched = worktree.patch_all(pristine, select(read_series(), [PATCH]))
    root = places.cache / "trees" / "cpu-flash"
    with FileLock(root.with_name(".cpu-flash.lock")):
        worktree.sync(pristine, patched, root / "src")
        place = BuildPlace(root / "src", root / name, places.logs / f"build-cpu-flash-{name}.log")
        env = compiling.environment(os.environ, root)
        compiling.configure(place, _FIXED | dict(options), env)
        compiling.compile_targets(place, ["ggml"], env, compiling.default_jobs(), report)
        return _link(root / "src", program, place, env)


def _link(tree: Path, program: str, place: BuildPlace, env: Mapping[str, str]) -> Path:
    out = place.build / program
    text = tree / "tests" / f"{program}.cpp"
    libraries = [place.build / "ggml" / "src" / name for name in _LIBRARIES]
    if out.is_file() and all(out.stat().st_mtime_ns > file.stat().st_mtime_ns for file in (text, *libraries)):
        return out
    command = [env.get("CXX") or "c++", "-O2", "-std=c++17", "-pthread", "-fopenmp", f"-I{tree / 'ggml' / 'include'}"]
    command += [str(text), "-o", str(out), *map(str, libraries), "-ldl", "-lm"]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{program} does not compile: {done.stderr.strip()[:300]}")
    return out
