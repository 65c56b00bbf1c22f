"""What can be removed without loss: engines that a newer one of their kind replaced, and what builds left behind.

An engine is kept while an instance runs on it, and while it is the newest with its backend and its patches.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from launcher.engine.pins import read_pin
from launcher.engine.store import Store
from launcher.paths import Places

_PINNED = re.compile(r"b\d+-")  # other things build in the cache too


@dataclass(frozen=True, slots=True)
class Candidate:
    """One folder or file that may go, and why."""

    path: Path
    bytes: int
    why: str


def candidates(places: Places, *, everything: bool = False) -> list[Candidate]:
    """What is unused. `everything`: also what only saves time."""
    found = [*_superseded(places), *_unfinished(places), *_of_other_pins(places)]
    if everything:
        known = {item.path for item in found}
        for folder in ("trees", "sources", "downloads"):
            found += [_candidate(path, "saves time") for path in _entries(places.cache / folder) if path not in known]
    return found


def remove(found: Sequence[Candidate]) -> None:
    """Remove them; of an engine the manifest goes first, so that what is half removed is no engine."""
    for item in found:
        (item.path / "manifest.json").unlink(missing_ok=True)
        if item.path.is_dir():
            shutil.rmtree(item.path)
            item.path.with_name(item.path.name + ".json").unlink(missing_ok=True)
        else:
            item.path.unlink(missing_ok=True)


def _superseded(places: Places) -> Iterator[Candidate]:
    running = _running(places)
    seen: set[tuple[str, frozenset[str], bool]] = set()
    for engine in Store.of(places).all():  # the newest first
        kind = (engine.manifest.backend, engine.manifest.patch_ids, engine.manifest.unity)
        if kind in seen and engine.key not in running:
            yield Candidate(engine.path, engine.size, "a newer engine has its place")
        seen.add(kind)


def _running(places: Places) -> set[str]:
    """Keys of engines that an instance was last seen to use: stopped ones count, for `up` would want it again."""
    keys = set()
    for file in places.state.glob("*/status.json"):
        try:
            keys.add(str(json.loads(file.read_text("utf-8")).get("engine")))
        except (OSError, ValueError, AttributeError):
            continue
    return keys


def _unfinished(places: Places) -> Iterator[Candidate]:
    for path in Store.of(places).unfinished():
        key = path.name.strip(".").split(".")[0]
        try:
            with FileLock(places.engines / f".{key}.lock", timeout=0):
                yield _candidate(path, "left by an interrupted build")
        except Timeout:
            continue  # it is being built just now


def _of_other_pins(places: Places) -> Iterator[Candidate]:
    pin = read_pin()
    for folder in ("trees", "sources"):
        for path in _entries(places.cache / folder):
            if _PINNED.match(path.name) and not path.name.startswith(f"{pin.name}-"):
                yield _candidate(path, "of another pin")


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in sorted(folder.iterdir()) if not p.name.startswith(".") and (p.is_dir() or p.suffix != ".json")]


def _candidate(path: Path, why: str) -> Candidate:
    files = [path] if path.is_file() else path.rglob("*")
    return Candidate(path, sum(f.lstat().st_size for f in files if f.is_file() and not f.is_symlink()), why)
