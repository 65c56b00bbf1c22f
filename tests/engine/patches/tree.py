"""The patched source in trees of its own: other targets or other choices of patches than an engine of the store has.

Kept in the cache between runs, so that only what changed is compiled again; ccache, where there is one, does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from launcher.engine import compiling, source, worktree
from launcher.engine.compiling import BuildPlace
from launcher.engine.pins import read_pin
from launcher.engine.recipe import cpu_options, read_recipe
from launcher.engine.report import Silent
from launcher.engine.series import Patch, read_series, select
from launcher.paths import Places

# links and runs, no more: an optimizer would take most of the time
UNOPTIMIZED = {"CMAKE_BUILD_TYPE": "Debug", "CMAKE_C_FLAGS_DEBUG": "-O0", "CMAKE_CXX_FLAGS_DEBUG": "-O0"}


def build(
    name: str, patches: Sequence[Patch], targets: Sequence[str], places: Places, options: Mapping[str, str] = {}
) -> Path:
    """Compile the targets by the recipe of the CPU backend, changed by `options`; gives the folder of the binaries."""
    root = places.cache / "trees" / name
    place = BuildPlace(root / "src", root / "build", places.logs / f"build-{name}.log")
    recipe = read_recipe("cpu")
    with FileLock(root.with_name(f".{name}.lock")):
        pristine = source.pristine(read_pin(None), places, Silent())
        worktree.sync(pristine, worktree.patch_all(pristine, patches), place.source)
        env = compiling.environment(os.environ, root)
        wanted = dict(recipe.options) | cpu_options(recipe.cpu, set()) | {"KVLAUNCH_UNITY": "ON"} | dict(options)
        compiling.configure(place, wanted, env)
        compiling.compile_targets(place, targets, env, compiling.default_jobs(), Silent())
    return place.build / "bin"


def closure(ids: Iterable[str]) -> list[Patch]:
    """These patches and those that they depend on, in the order of the series."""
    return list(select(read_series(), list(ids)))
