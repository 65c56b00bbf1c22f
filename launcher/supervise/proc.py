"""What /proc says about a process: start time, CPU, memory, I/O, state, group, children. Plain reads, no psutil.

Every function answers None or nothing for a process that is gone: it can go at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# fields of /proc/PID/stat after the command name, from 0 (man 5 proc counts them from 3)
_STATE, _PPID, _PGRP, _UTIME, _STIME, _START, _RSS = 0, 1, 2, 11, 12, 19, 21


@dataclass(frozen=True, slots=True)
class Usage:
    """What moves while a process works: each of these only tells something in comparison with an earlier one."""

    cpu: float
    main_cpu: float
    """Of its first thread alone: the engine's queue and the first of its compute threads."""
    rss: int
    read: int
    """Bytes that passed read(2) and the like. A mapped model shows in `rss` and in `faults` of pages instead."""


def _stat(pid: int, thread: int | None = None) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which it started: with the pid it names one process for as long as the box is up."""
    fields = _stat(pid)
    return int(fields[_START]) if fields else None


def is_alive(pid: int, birth: int | None = None) -> bool:
    """Whether it runs. A zombie counts as dead: in a container nobody may ever reap it."""
    fields = _stat(pid)
    return fields is not None and fields[_STATE] not in "ZX" and (birth is None or int(fields[_START]) == birth)


def state(pid: int) -> str | None:
    """The letter of ps: R, S, D, T (stopped), Z …"""
    fields = _stat(pid)
    return fields[_STATE] if fields else None


def usage(pid: int) -> Usage | None:
    fields = _stat(pid)
    if fields is None:
        return None
    read = 0
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("rchar:"):
                read = int(line[6:])
    except OSError:
        pass  # another user's process, or gone
    main = _stat(pid, pid) or fields
    return Usage(cpu=_cpu(fields), main_cpu=_cpu(main), rss=int(fields[_RSS]) * _PAGE, read=read)


def _cpu(fields: list[str]) -> float:
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICK


def written(pid: int) -> int:
    """Bytes that it has had written to disks; a pipe doesn't count. 0 where that can't be read."""
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line[12:])
    except OSError:
        pass
    return 0


def group_members(group: int) -> list[int]:
    """Living processes of a process group. Zombies are left out."""
    return [pid for pid, fields in _all() if int(fields[_PGRP]) == group and fields[_STATE] not in "ZX"]


def zombie_children(parent: int) -> list[int]:
    return [pid for pid, fields in _all() if int(fields[_PPID]) == parent and fields[_STATE] == "Z"]


def descendants(pid: int) -> list[int]:
    """The living processes below one, itself first."""
    parents: dict[int, list[int]] = {}
    for child, fields in _all():
        if fields[_STATE] not in "ZX":
            parents.setdefault(int(fields[_PPID]), []).append(child)
    found = [pid]
    for known in found:  # grows while it is walked
        found.extend(parents.get(known, ()))
    return found


def real(pid: int) -> int:
    """The process that does the work: itself, or below a wrapper (sh, a loader) the one with the most memory."""
    try:
        if not Path(f"/proc/{pid}/task/{pid}/children").read_text():
            return pid
    except OSError:
        return pid
    family = [(found.rss, member) for member in descendants(pid) if (found := usage(member)) is not None]
    return max(family)[1] if family else pid


def command(pid: int) -> str:
    """Its command line for a person, shortened; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    text = raw.replace(b"\0", b" ").decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:77] + "..."


def executable(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return None


def _all() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are all we need, several hundred times
        if entry.isdigit() and (fields := _stat(int(entry))):
            yield int(entry), fields
