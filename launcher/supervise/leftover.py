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
    """Note one down before it has done anything. Two live during a hand-over."""
    files.write("engine", [*_records(files), {"pid": pid, "birth": birth, "key": key, "boot": _boot()}])


def forget(files: InstanceFiles, pid: int) -> None:
    left = [record for record in _records(files) if record["pid"] != pid]
    if left:
        files.write("engine", left)
    else:
        files.forget("engine")


def reap(files: InstanceFiles) -> list[int]:
    """Kill what engine.json names, where it is that very process. Returns the pids of those there were."""
    found = [record["pid"] for record in _records(files) if _end(record)]
    files.forget("engine")
    return found


def _records(files: InstanceFiles) -> list[dict[str, Any]]:
    saved = files.read("engine")
    records = saved if isinstance(saved, list) else []
    return [record for record in records if isinstance(record, dict) and isinstance(record.get("pid"), int)]


def _end(record: dict[str, Any]) -> bool:
    pid, birth = record["pid"], record.get("birth")
    if record.get("boot") != _boot() or not isinstance(birth, int) or proc.start_time(pid) != birth:
        return False  # gone, or the pid is another's now
    found = proc.is_alive(pid, birth) or proc.group_members(pid) != []
    limit = time.monotonic() + _PATIENCE
    while time.monotonic() < limit and (proc.is_alive(pid, birth) or proc.group_members(pid)):
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            break
        time.sleep(0.02)
    return found


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
