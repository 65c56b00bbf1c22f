"""What building costs: cold against plain cmake and ninja of the same targets, and again after an edit of one file.

Both cold builds run on this machine, one after the other, without a compiler cache, with the same extensions and the
same number of jobs. `--quick` leaves them out: they take minutes by nature.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench.record import check, row
from launcher.engine import compiling, worktree
from launcher.engine.compiling import BuildPlace
from launcher.engine.recipe import TARGETS, cpu_options
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.resolve import Resolved, resolve
from launcher.engine.source import pristine
from launcher.paths import places

_COLD = 0.6  # ours ÷ plain, at most
_EDIT = 60.0  # seconds, at most
_EDITED = "tools/server/server-context.cpp"  # the largest file that the series touches


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the wall, and of processor time in all children: the latter hardly sees what else runs here."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Cost:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.monotonic(), used.ru_utime + used.ru_stime)

    def since(self, before: Cost) -> Cost:
        return Cost(self.wall - before.wall, self.cpu - before.cpu)

    def rows(self, case: str) -> list[dict[str, Any]]:
        return [row(case, "wall", round(self.wall, 1), "s"), row(case, "processor", round(self.cpu, 1), "s")]


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """The rows and checks. The engine and the models that other benches take have no part in it."""
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    skipped: list[str] = []
    jobs = compiling.default_jobs()
    with tempfile.TemporaryDirectory(prefix="kvlaunch-bench-build-", dir=_roomy()) as scratch:
        wanted = resolve(BuildRequest(backend="cpu", jobs=jobs))
        tree = Path(scratch) / "src"
        source = pristine(wanted.pin, places(), Silent())
        worktree.sync(source, worktree.patch_all(source, wanted.patches), tree)
        if quick:
            skipped.append("cold builds and the rebuild after an edit: minutes by nature (run without --quick)")
            return {"rows": rows, "checks": checks, "skipped": skipped}
        plain = _build(wanted, tree, Path(scratch) / "plain", jobs, glue=False)
        ours = _build(wanted, tree, Path(scratch) / "ours", jobs, glue=True)
        ratio = round(ours.wall / plain.wall, 3)
        rows += [*plain.rows("cold, plain cmake and ninja"), *ours.rows("cold, kvlaunch")]
        rows.append(row("cold", "kvlaunch ÷ plain, wall", ratio, "ratio"))
        rows.append(row("cold", "kvlaunch ÷ plain, processor", round(ours.cpu / plain.cpu, 3), "ratio"))
        checks.append(check("cold build", ratio <= _COLD, ratio, f"≤ {_COLD}"))
        with (tree / _EDITED).open("a") as file:
            file.write("\nint kvlaunch_bench_edit(void);\nint kvlaunch_bench_edit(void) { return 1; }\n")
        edit = _build(wanted, tree, Path(scratch) / "ours", jobs, glue=True)
        rows += edit.rows(f"rebuild after an edit of {_EDITED}")
        checks.append(check("rebuild after an edit", edit.wall <= _EDIT, round(edit.wall, 1), f"≤ {_EDIT:.0f} s"))
    return {"rows": rows, "checks": checks, "skipped": skipped}


def _roomy() -> Path:
    """Beside the cache: /tmp may be a small memory disk."""
    folder = places().cache
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build(wanted: Resolved, tree: Path, build: Path, jobs: int, *, glue: bool) -> Cost:
    """From nothing (or from an edit) to the linked targets."""
    environ = compiling.environment(os.environ, tree.parent) | {"CCACHE_DISABLE": "1", "SCCACHE_NO_CACHE": "1"}
    options = dict(wanted.recipe.options) | cpu_options(wanted.recipe.cpu, ())
    began = Cost.now()
    if glue:
        options |= {"KVLAUNCH_UNITY": "ON"}
        place = BuildPlace(tree, build, build.with_suffix(".log"))
        compiling.configure(place, options, environ)
        compiling.compile_targets(place, TARGETS, environ, jobs, Silent())
        return Cost.now().since(began)
    cmake, ninja = compiling.tools()
    command = [str(cmake), "-S", str(tree), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(
        [*command, *(f"-D{k}={v}" for k, v in options.items())], env=environ, check=True, capture_output=True
    )
    subprocess.run(
        [str(ninja), "-C", str(build), "-j", str(jobs), *TARGETS], env=environ, check=True, capture_output=True
    )
    cost = Cost.now().since(began)
    shutil.rmtree(build)
    return cost
