"""Host RAM as this process may use it: the box's own memory under the limits of every cgroup above us."""

from __future__ import annotations

from launcher.machine.cgroups import memory_levels
from launcher.machine.tree import Tree, whole
from launcher.machine.types import Memory


def read_memory(tree: Tree) -> Memory:
    """Total, available, limits and swap; each None where the tree doesn't say."""
    info = tree.pairs("/proc/meminfo")
    total = info.get("MemTotal")
    available = info.get("MemAvailable")
    if available is None and "MemFree" in info:
        # kernels before 3.14: what the newer ones would estimate, on the low side
        available = info["MemFree"] + info.get("Inactive(file)", 0)
    limit: int | None = None
    limited_by: str | None = None
    for level in memory_levels(tree):
        if total is not None and level.limit >= total and level.left >= total:
            continue  # no limit in practice
        limit = level.limit if limit is None else min(limit, level.limit)
        if available is None or level.left < available:
            available, limited_by = level.left, level.name
    return Memory(
        total=total,
        available=available,
        limit=limit,
        limited_by=limited_by,
        swap_total=info.get("SwapTotal"),
        swap_free=info.get("SwapFree"),
        lockable=_lockable(tree, total),
    )


def _lockable(tree: Tree, total: int | None) -> int | None:
    """The soft RLIMIT_MEMLOCK, at most all of RAM; CAP_IPC_LOCK would lift it, and is not counted on."""
    for line in (tree.text("/proc/self/limits") or "").splitlines():
        if line.startswith("Max locked memory"):
            soft = (line[len("Max locked memory") :].split() or [""])[0]
            if soft == "unlimited":
                return total
            value = whole(soft)
            return value if value is None or total is None else min(value, total)
    return None
