"""The memory cgroup that an engine lives in: one of its own where ours has been handed to us, else ours.

In one of its own the engine alone is killed when memory runs out, by the profile's limit or the unit's, and a kill that
is counted there was the engine's. It has been handed to us when nobody else lives in it, and systemd says so
(Delegate=yes), or it belongs to our user, or it is the top of all that a container sees.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.cgroups import Level, levels
from launcher.machine.tree import Tree

_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_EVENTS = {1: "memory.oom_control", 2: "memory.events"}
_MARKS = ("user.delegate", "trusted.delegate")
"""What systemd writes on a cgroup that it has handed over (systemd's CGROUP_DELEGATION.md)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Where one engine lives."""

    directory: Path | None
    """None: there is none that could be read."""
    version: int = 2
    own: bool = False

    @property
    def door(self) -> str | None:
        """The file that a process enters by, writing 0; None where it stays where it was made."""
        return str(self.directory / "cgroup.procs") if self.directory is not None and self.own else None

    def holds(self, pid: int) -> bool:
        """Whether the process lives in here, and nobody who isn't the engine's."""
        if self.directory is None or not self.own:
            return False
        with contextlib.suppress(OSError):
            return str(pid) in (self.directory / "cgroup.procs").read_text().split()
        return False

    def oom_kills(self) -> int:
        """How often the kernel has killed for memory in here; 0 where that can't be read."""
        try:
            lines = (self.directory / _EVENTS[self.version]).read_text().splitlines() if self.directory else []
            return next((int(line[9:]) for line in lines if line.startswith("oom_kill ")), 0)
        except (OSError, ValueError):
            return 0

    def remove(self) -> None:
        """When its engine has ended."""
        if self.directory is not None and self.own:
            with contextlib.suppress(OSError):
                self.directory.rmdir()


class Home:
    """The cgroup that this process was started in."""

    def __init__(self, tree: Tree | None = None, controller: str = "memory") -> None:
        self._tree = tree or Tree()
        self._controller = controller
        self._level = self._find()
        root = "" if self._tree.live else self._tree.root
        self._directory = Path(root + self._level.directory) if self._level is not None else None
        self._made = 0
        self.is_ours = False

    def settle(self) -> None:
        """Once, before the first engine: make room for groups below, if it has been handed to us."""
        if self._level is None or self._directory is None or not self._handed_over(self._level, self._directory):
            return
        for left in self._directory.glob("engine-*"):
            with contextlib.suppress(OSError):
                left.rmdir()
        self.is_ours = self._level.version == 1 or self._make_room(self._directory)

    def group(self, limit: int = 0) -> Group:
        """For one engine, with so many bytes at most (0: no limit). Not `own`: it lives where we do, without limit."""
        version = self._level.version if self._level is not None else 2
        if self.is_ours and self._directory is not None:
            self._made += 1
            directory = self._directory / f"engine-{self._made}"
            with contextlib.suppress(OSError):
                directory.mkdir(exist_ok=True)
                if limit:
                    _limit(directory, version, limit)
                return Group(directory, version, own=True)
        return Group(self._directory, version)

    def _find(self) -> Level | None:
        """A controller belongs to one version at a time."""
        innermost: dict[int, Level] = {}
        for level in levels(self._tree, self._controller):
            innermost.setdefault(level.version, level)
        for level in innermost.values():
            there = self._tree.line(f"{level.directory}/cgroup.controllers") or ""
            if level.version == 1 or self._controller in there.split():
                return level
        return None

    def _handed_over(self, level: Level, directory: Path) -> bool:
        alone = (self._tree.text(f"{level.directory}/cgroup.procs") or "").split() == [str(os.getpid())]
        if not alone or not os.access(directory, os.W_OK):
            return False
        # version 1 has no mark to look for; and what a user who isn't root may write to was given to him
        return (
            level.version == 1 or os.geteuid() != 0 or level.name == "/" or any(_marked(directory, m) for m in _MARKS)
        )

    def _make_room(self, directory: Path) -> bool:
        """In version 2 no process may live in a group whose children have controllers: we move below as well."""
        ours = directory / "supervisor"
        try:
            ours.mkdir(exist_ok=True)
            (ours / "cgroup.procs").write_text(str(os.getpid()))
            (directory / "cgroup.subtree_control").write_text(f"+{self._controller}")
        except OSError:
            with contextlib.suppress(OSError):
                (directory / "cgroup.procs").write_text(str(os.getpid()))
                ours.rmdir()
            return False
        return True


def _limit(directory: Path, version: int, limit: int) -> None:
    (directory / _LIMIT[version]).write_text(str(limit))
    if version == 2:
        # a cache that is swapped out would be slower than no answer: at the limit it ends. Absent: there is no swap
        with contextlib.suppress(OSError):
            (directory / "memory.swap.max").write_text("0")


def _marked(directory: Path, name: str) -> bool:
    try:
        return os.getxattr(directory, name) == b"1"
    except OSError:
        return False
