"""The small files of one instance in its state folder: written whole or not at all, and a full disk stops nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any


class InstanceFiles:
    """`state/NAME`: status.json, tally.json, engine.json (the child, to find a leftover), port.json, the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock: int | None = None

    def lock(self) -> bool:
        """Held until this process ends, by whatever cause. False: another supervisor of this name has it."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def write(self, name: str, data: object) -> bool:
        """False when it could not be written (disk full, read-only): the old file then stands."""
        path = self.folder / f"{name}.json"
        fresh = path.with_suffix(".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may clean up under us
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(data, file, indent=1)
                file.write("\n")
            fresh.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            return False
        return True

    def read(self, name: str) -> Any:
        """None where it is not there or broken."""
        try:
            return json.loads((self.folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None

    def forget(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / f"{name}.json").unlink()
