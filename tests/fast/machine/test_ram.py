"""Host RAM: the least of the box's own figure and what each group leaves."""

from __future__ import annotations

from typing import Any

from launcher.machine.ram import read_memory
from launcher.machine.tree import Tree

GIB = 1 << 30


def limited(box: Any, limit: int, current: int, inactive: int = 0) -> None:
    box.write("/proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    box.write("/proc/self/cgroup", "0::/app\n")
    box.write("/sys/fs/cgroup/app/memory.max", f"{limit}\n")
    box.write("/sys/fs/cgroup/app/memory.current", f"{current}\n")
    box.write("/sys/fs/cgroup/app/memory.stat", f"inactive_file {inactive}\n")


def test_the_box_alone(box: Any) -> None:
    box.memory(64 * GIB, 50 * GIB)
    memory = read_memory(Tree(box.root))
    assert (memory.total, memory.available, memory.limit, memory.limited_by) == (64 * GIB, 50 * GIB, None, None)
    assert (memory.swap_total, memory.swap_free) == (0, 0)


def test_the_group_is_tighter(box: Any) -> None:
    box.memory(64 * GIB, 50 * GIB)
    limited(box, 16 * GIB, 6 * GIB, inactive=2 * GIB)
    memory = read_memory(Tree(box.root))
    assert (memory.total, memory.available) == (64 * GIB, 12 * GIB)
    assert (memory.limit, memory.limited_by) == (16 * GIB, "/app")


def test_the_box_is_tighter_than_the_group(box: Any) -> None:
    box.memory(64 * GIB, 5 * GIB)
    limited(box, 16 * GIB, 0)
    memory = read_memory(Tree(box.root))
    assert (memory.available, memory.limit, memory.limited_by) == (5 * GIB, 16 * GIB, None)


def test_a_limit_above_the_box_is_none(box: Any) -> None:
    box.memory(64 * GIB, 50 * GIB)
    limited(box, 100 * GIB, 0)
    assert read_memory(Tree(box.root)).limit is None


def test_a_limit_without_meminfo_is_still_known(box: Any) -> None:
    limited(box, 16 * GIB, 4 * GIB)
    memory = read_memory(Tree(box.root))
    assert (memory.total, memory.available, memory.limit) == (None, 12 * GIB, 16 * GIB)


def test_an_old_kernel_without_memavailable(box: Any) -> None:
    box.write("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 100 kB\n")
    assert read_memory(Tree(box.root)).available == 400 * 1024


def test_what_may_be_locked(box: Any) -> None:
    box.memory(64 * GIB, 50 * GIB)
    line = "Max locked memory         {}              8388608              bytes     \n"
    box.write("/proc/self/limits", "Limit                     Soft Limit\n" + line.format("8388608"))
    assert read_memory(Tree(box.root)).lockable == 8388608
    box.write("/proc/self/limits", line.format("unlimited"))
    assert read_memory(Tree(box.root)).lockable == 64 * GIB
    box.write("/proc/self/limits", "garbage\n")
    assert read_memory(Tree(box.root)).lockable is None


def test_an_empty_box_knows_nothing(box: Any) -> None:
    memory = read_memory(Tree(box.root))
    assert set(memory.as_json().values()) == {None}


def test_this_box() -> None:
    memory = read_memory(Tree())
    assert memory.total is not None
    assert memory.available is not None
    assert 0 < memory.available <= memory.total
