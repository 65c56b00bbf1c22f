"""Memory that starts under way will take, so that two of them don't both count the same free bytes.

A start writes what it needs when its plan is made; the entry counts until the instance serves (its memory then shows
in what is free), has ended, or its processes are gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.paths import Places

if TYPE_CHECKING:
    from filelock import FileLock

_UNDER_WAY = ("planning", "building", "starting", "loading")


def lock(here: Places) -> FileLock:
    """Held from reading the reservations to writing one's own: planning is milliseconds."""
    from filelock import FileLock  # `check` only reads, and need not import it

    folder = _folder(here)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return FileLock(folder / "lock")


def reserve(here: Places, name: str, needs: Mapping[str, int]) -> None:
    """Note that instance `name` is about to take `needs` (bytes by device). The caller holds the lock."""
    entry = {"pid": os.getpid(), "needs": dict(needs)}
    (_folder(here) / f"{name}.json").write_text(json.dumps(entry))


def reserved(here: Places, *, besides: str) -> dict[str, int]:
    """Bytes by device that other starts will take. Entries that count no longer are removed."""
    sums: dict[str, int] = {}
    for file, entry in _entries(here):
        if file.stem == besides:
            continue
        if not _counts(here, file.stem, entry):
            file.unlink(missing_ok=True)
            continue
        for device, size in entry["needs"].items():
            sums[device] = sums.get(device, 0) + int(size)
    return sums


def _folder(here: Places) -> Path:
    return here.state / ".reservations"


def _entries(here: Places) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted(_folder(here).glob("*.json")):
        try:
            entry = json.loads(file.read_text())
            if isinstance(entry["needs"], dict) and isinstance(entry["pid"], int):
                yield file, entry
        except (OSError, ValueError, KeyError, TypeError):
            file.unlink(missing_ok=True)


def _counts(here: Places, name: str, entry: Mapping[str, Any]) -> bool:
    if _alive(entry["pid"]) and not _serves(here, name):
        return True
    return _status(here, name).get("state") in _UNDER_WAY and _alive(int(_status(here, name).get("pid") or 0))


def _serves(here: Places, name: str) -> bool:
    status = _status(here, name)
    return status.get("state") in ("ready", "degraded") and _alive(int(status.get("pid") or 0))


def _status(here: Places, name: str) -> dict[str, Any]:
    try:
        found = json.loads((here.instance(name) / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _alive(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()
