"""An engine that outlived its supervisor all the same: ours is ended at the next start, nobody else's is touched."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from launcher.supervise import proc
from launcher.supervise.files import InstanceFiles

_PATIENCE = 2.0


def remember(files: InstanceFiles, pid: int, birth: int | None, key: str) -> None:
    files.write("engine", {"pid": pid, "birth": birth, "key": key, "boot": _boot()})


def reap(files: InstanceFiles) -> int | None:
    """Kill what engine.json names, if it is that very process. Returns its pid when there was one to kill."""
    record: Any = files.read("engine")
    files.forget("engine")
    if not isinstance(record, dict) or record.get("boot") != _boot():
        return None
    pid, birth = record.get("pid"), record.get("birth")
    if not isinstance(pid, int) or not isinstance(birth, int) or proc.start_time(pid) != birth:
        return None  # gone, or the pid is another's now
    found = proc.is_alive(pid, birth) or proc.group_members(pid) != []
    limit = time.monotonic() + _PATIENCE
    while time.monotonic() < limit and (proc.is_alive(pid, birth) or proc.group_members(pid)):
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            break
        time.sleep(0.02)
    return pid if found else None


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
