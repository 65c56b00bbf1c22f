"""Which groups hold us, and what they leave: both versions, nested, in containers."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.machine.cgroups import cpu_quota, levels, memory_levels
from launcher.machine.tree import Tree

GIB = 1 << 30
NO_LIMIT = 9223372036854771712  # what v1 writes

V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2_MOUNT = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"


def v2(box: Any, path: str, *, limit: str = "max", high: str = "max", current: int = 0, inactive: int = 0) -> None:
    at = f"/sys/fs/cgroup{path}"
    box.write(f"{at}/memory.max", limit + "\n")
    box.write(f"{at}/memory.high", high + "\n")
    box.write(f"{at}/memory.current", f"{current}\n")
    box.write(f"{at}/memory.stat", f"anon 1\ninactive_file {inactive}\nactive_file 7\n")


def v1(box: Any, path: str, *, limit: int = NO_LIMIT, usage: int = 0, inactive: int = 0, hierarchy: int = 1) -> None:
    at = f"/sys/fs/cgroup/memory{path}"
    box.write(f"{at}/memory.limit_in_bytes", f"{limit}\n")
    box.write(f"{at}/memory.usage_in_bytes", f"{usage}\n")
    box.write(f"{at}/memory.use_hierarchy", f"{hierarchy}\n")
    box.write(
        f"{at}/memory.stat",
        f"inactive_file 1\nhierarchical_memory_limit {NO_LIMIT}\ntotal_inactive_file {inactive}\n",
    )


def test_v2_nested(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT)
    box.write("/proc/self/cgroup", "0::/user.slice/app.scope\n")
    v2(box, "/user.slice", limit=str(8 * GIB), current=6 * GIB, inactive=1 * GIB)
    v2(box, "/user.slice/app.scope", limit=str(10 * GIB), current=1 * GIB)
    found = memory_levels(Tree(box.root))
    assert [(level.name, level.limit, level.left) for level in found] == [
        ("/user.slice/app.scope", 10 * GIB, 9 * GIB),
        ("/user.slice", 8 * GIB, 3 * GIB),
    ]


def test_v2_high_counts_as_a_limit(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT)
    box.write("/proc/self/cgroup", "0::/a\n")
    v2(box, "/a", limit=str(8 * GIB), high=str(4 * GIB), current=GIB)
    assert [level.left for level in memory_levels(Tree(box.root))] == [3 * GIB]


def test_v2_without_limits(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT)
    box.write("/proc/self/cgroup", "0::/a/b\n")
    v2(box, "/a/b")
    v2(box, "/a")
    assert memory_levels(Tree(box.root)) == []


def test_v1_nested_and_unlimited_parents(box: Any) -> None:
    box.write("/proc/self/mountinfo", V1_MOUNT)
    box.write("/proc/self/cgroup", "4:memory:/jobs/one\n3:cpuset:/\n0::/\n")
    v1(box, "/jobs/one", limit=2 * GIB, usage=GIB, inactive=GIB // 2)
    v1(box, "/jobs")
    v1(box, "")
    assert [(level.name, level.left) for level in memory_levels(Tree(box.root))] == [("/jobs/one", 2 * GIB - GIB // 2)]


def test_v1_parent_that_does_not_charge_children(box: Any) -> None:
    box.write("/proc/self/mountinfo", V1_MOUNT)
    box.write("/proc/self/cgroup", "4:memory:/jobs/one\n")
    v1(box, "/jobs/one", limit=4 * GIB, hierarchy=0)
    v1(box, "/jobs", limit=1 * GIB, hierarchy=0)
    assert [level.limit for level in memory_levels(Tree(box.root))] == [4 * GIB]


def test_v1_limit_of_an_ancestor_that_the_container_hides(box: Any) -> None:
    box.write("/proc/self/mountinfo", V1_MOUNT.replace(" / /sys", " /docker/abc /sys"))
    box.write("/proc/self/cgroup", "4:memory:/docker/abc\n")
    v1(box, "")
    stat = f"hierarchical_memory_limit {3 * GIB}\ntotal_inactive_file 0\n"
    box.write("/sys/fs/cgroup/memory/memory.stat", stat)
    assert [level.limit for level in memory_levels(Tree(box.root))] == [3 * GIB]


@pytest.mark.parametrize(
    ("mount_root", "own", "directories"),
    [
        ("/", "/a/b", ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]),
        ("/", "/", ["/sys/fs/cgroup"]),
        ("/docker/abc", "/docker/abc", ["/sys/fs/cgroup"]),
        ("/docker/abc", "/docker/abc/in", ["/sys/fs/cgroup/in", "/sys/fs/cgroup"]),
        ("/docker/abc", "/docker/abcdef", ["/sys/fs/cgroup"]),
        ("/", "/../../elsewhere", ["/sys/fs/cgroup"]),
        ("/../..", "/../../a/b", ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]),
        ("/../a", "/../../b", ["/sys/fs/cgroup"]),
    ],
)
def test_paths_under_the_mount(box: Any, mount_root: str, own: str, directories: list[str]) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT.replace(" / /sys", f" {mount_root} /sys"))
    box.write("/proc/self/cgroup", f"0::{own}\n")
    assert [level.directory for level in levels(Tree(box.root), "memory")] == directories


def test_a_mount_point_with_a_blank(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT.replace("/sys/fs/cgroup ", "/odd\\040place "))
    box.write("/proc/self/cgroup", "0::/\n")
    assert [level.directory for level in levels(Tree(box.root), "memory")] == ["/odd place"]


def test_hybrid_takes_the_controller_where_it_is(box: Any) -> None:
    box.write("/proc/self/mountinfo", V1_MOUNT + V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "))
    box.write("/proc/self/cgroup", "4:memory:/m\n0::/u\n")
    v1(box, "/m", limit=GIB)
    assert [level.limit for level in memory_levels(Tree(box.root))] == [GIB]


def test_quota_of_the_tightest(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT)
    box.write("/proc/self/cgroup", "0::/a/b\n")
    box.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    box.write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    assert cpu_quota(Tree(box.root)) == 2.5


@pytest.mark.parametrize(("quota", "found"), [("-1", None), ("150000", 1.5), ("x", None), ("0", None)])
def test_quota_v1(box: Any, quota: str, found: float | None) -> None:
    box.write("/proc/self/mountinfo", "5 3 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n")
    box.write("/proc/self/cgroup", "2:cpu,cpuacct:/g\n")
    box.write("/sys/fs/cgroup/cpu/g/cpu.cfs_quota_us", quota + "\n")
    box.write("/sys/fs/cgroup/cpu/g/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(Tree(box.root)) == found


def test_usage_over_the_limit_leaves_nothing(box: Any) -> None:
    box.write("/proc/self/mountinfo", V2_MOUNT)
    box.write("/proc/self/cgroup", "0::/a\n")
    v2(box, "/a", limit=str(GIB), current=2 * GIB)
    assert [level.left for level in memory_levels(Tree(box.root))] == [0]
