"""The control groups that hold this process, from its own up to the highest that shows, both versions.

Only paths and limits; what they mean for memory and processors stands in ram.py and cpu.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.machine.tree import Tree


@dataclass(frozen=True, slots=True)
class Level:
    """One group on the way up."""

    version: int
    name: str
    """Its path below the mount point: `/user.slice/user-1000.slice`."""
    directory: str


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One group's memory, in bytes: `reclaimable` are file pages that the kernel drops before anybody is killed."""

    name: str
    limit: int
    usage: int
    reclaimable: int

    @property
    def left(self) -> int:
        """What the group leaves to a new process."""
        return max(0, self.limit - max(0, self.usage - self.reclaimable))


def levels(tree: Tree, controller: str) -> list[Level]:
    """The groups that hold this process under `controller`, the innermost first; of both versions if mounted."""
    found: list[Level] = []
    own = _own_paths(tree, controller)
    for version, root, point in _mounts(tree, controller):
        if version not in own:
            continue
        below = _below(own[version], root)
        while True:
            found.append(Level(version, below or "/", point + below))
            if not below:
                break
            below = below.rpartition("/")[0]
    return found


def memory_levels(tree: Tree) -> list[MemoryLevel]:
    """Every group with a memory limit that applies to this process."""
    return list(_memory_levels(tree))


def _memory_levels(tree: Tree) -> Iterator[MemoryLevel]:
    applies = {1: True, 2: True}
    innermost = {1: True, 2: True}
    for level in levels(tree, "memory"):
        if level.version == 2:
            # at memory.high the kernel already stalls the process to make it give memory back
            limits = [tree.number(f"{level.directory}/{file}") for file in ("memory.max", "memory.high")]
            usage = tree.number(f"{level.directory}/memory.current")
            stat = tree.pairs(f"{level.directory}/memory.stat")
            reclaimable = stat.get("inactive_file", 0)
        else:
            if not innermost[1] and tree.number(f"{level.directory}/memory.use_hierarchy") == 0:
                applies[1] = False  # a parent without hierarchy does not charge its children
            limits = [tree.number(f"{level.directory}/memory.limit_in_bytes")]
            usage = tree.number(f"{level.directory}/memory.usage_in_bytes")
            stat = tree.pairs(f"{level.directory}/memory.stat")
            reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            if innermost[1]:
                # counts ancestors that a container's mount hides
                limits.append(stat.get("hierarchical_memory_limit"))
        innermost[level.version] = False
        # no limit is "max" in version 2 and 2^63 - 4096 in version 1: both read as None
        given = [limit for limit in limits if limit is not None]
        if given and applies[level.version]:
            yield MemoryLevel(level.name, min(given), usage or 0, reclaimable)


def cpu_quota(tree: Tree) -> float | None:
    """How many processors' worth of time the tightest group grants; None where none limits."""
    quotas: list[float] = []
    for level in levels(tree, "cpu"):
        if level.version == 2:
            quota, _, period = (tree.line(f"{level.directory}/cpu.max") or "").partition(" ")
        else:
            quota = tree.line(f"{level.directory}/cpu.cfs_quota_us") or ""
            period = tree.line(f"{level.directory}/cpu.cfs_period_us") or ""
        if re.fullmatch(r"\d{1,15}", quota, re.ASCII) and re.fullmatch(r"[1-9]\d{0,14}", period, re.ASCII):
            quotas.append(int(quota) / int(period))
    return min((quota for quota in quotas if quota > 0), default=None)


def _own_paths(tree: Tree, controller: str) -> dict[int, str]:
    """This process's group under the controller, by version."""
    own: dict[int, str] = {}
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not parts[2].startswith("/"):
            continue
        if parts[0] == "0" and not parts[1]:
            own[2] = parts[2]
        elif controller in parts[1].split(","):
            own[1] = parts[2]
    return own


def _mounts(tree: Tree, controller: str) -> list[tuple[int, str, str]]:
    """(version, root, mount point) of the hierarchies that can hold the controller."""
    found: list[tuple[int, str, str]] = []
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4]).rstrip("/")
        if kind[0] == "cgroup2":
            found.append((2, root, point))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            found.append((1, root, point))
    # a recorded tree may lack mountinfo: the places where systemd mounts them
    return found or [(1, "/", f"/sys/fs/cgroup/{controller}"), (2, "/", "/sys/fs/cgroup")]


def _below(own: str, root: str) -> str:
    """The group's path below the mount point. In a container its own group may be the mount's root, by another name."""
    own, root = own.rstrip("/"), root.rstrip("/")
    below = own[len(root) :] if own == root or own.startswith(root + "/") else ""
    # both are told from this cgroup namespace's root: what still leads upwards lies outside of the mount
    return "" if ".." in below.split("/") else below


def _unescape(text: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
