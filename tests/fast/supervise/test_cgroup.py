"""When a cgroup counts as handed to us, and what is made in it, on recorded trees. The kernel's: tests/system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.machine.tree import Tree
from launcher.supervise.cgroup import Group, Home

_V2 = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
_V1 = "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
_OURS = "user.slice/x.service"


class Box:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def v2(self, *lodgers: int, controllers: str = "cpu memory") -> Path:
        self.write("/proc/self/mountinfo", _V2)
        self.write("/proc/self/cgroup", f"0::/{_OURS}\n")
        procs = self.write(f"/sys/fs/cgroup/{_OURS}/cgroup.procs", "".join(f"{pid}\n" for pid in lodgers))
        (procs.parent / "cgroup.controllers").write_text(controllers)
        return procs.parent

    def v1(self, *lodgers: int) -> Path:
        self.write("/proc/self/mountinfo", _V1)
        self.write("/proc/self/cgroup", f"4:memory:/{_OURS}\n0::/\n")
        procs = self.write(f"/sys/fs/cgroup/memory/{_OURS}/cgroup.procs", "".join(f"{pid}\n" for pid in lodgers))
        return procs.parent

    def home(self) -> Home:
        home = Home(Tree(self.root))
        home.settle()
        return home


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # what an ordinary user may write to was given to him
    return Box(tmp_path)


def test_a_group_of_its_own_with_its_limit(box: Box) -> None:
    ours = box.v2(os.getpid())
    group = box.home().group(5 << 30)
    assert group == Group(ours / "engine-1", 2, own=True)
    assert group.door == str(ours / "engine-1" / "cgroup.procs")
    assert (ours / "engine-1" / "memory.max").read_text() == str(5 << 30)
    assert (ours / "engine-1" / "memory.swap.max").read_text() == "0"
    assert (ours / "supervisor" / "cgroup.procs").read_text() == str(os.getpid())
    assert (ours / "cgroup.subtree_control").read_text() == "+memory"


def test_each_engine_has_another_and_without_a_limit_none_is_written(box: Box) -> None:
    ours = box.v2(os.getpid())
    (ours / "engine-7").mkdir()  # left by one that was killed
    home = box.home()
    assert [home.group().directory, home.group().directory] == [ours / "engine-1", ours / "engine-2"]
    assert not (ours / "engine-7").exists()
    assert list((ours / "engine-1").iterdir()) == []
    home.group().remove()
    assert not (ours / "engine-3").exists()


def test_version_1(box: Box) -> None:
    ours = box.v1(os.getpid())
    group = box.home().group(1 << 30)
    assert group == Group(ours / "engine-1", 1, own=True)
    assert (ours / "engine-1" / "memory.limit_in_bytes").read_text() == str(1 << 30)
    assert not (ours / "supervisor").exists()
    (ours / "engine-1" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert group.oom_kills() == 3


def test_where_others_live_too_nothing_is_made(box: Box) -> None:
    """A login session's scope, a shell's."""
    ours = box.v2(os.getpid(), 1)
    (ours / "memory.events").write_text("low 0\noom 2\noom_kill 2\noom_group_kill 0\n")
    group = box.home().group(1 << 30)
    assert (group.own, group.door, group.holds(os.getpid())) == (False, None, False)
    assert group.oom_kills() == 2
    group.remove()
    assert sorted(file.name for file in ours.iterdir()) == ["cgroup.controllers", "cgroup.procs", "memory.events"]


def test_root_needs_systemds_word(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = box.v2(os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not box.home().is_ours
    marks = {(ours, "trusted.delegate"): b"1"}

    def getxattr(path: Path, name: str) -> bytes:
        try:
            return marks[path, name]
        except KeyError:
            raise OSError(61, "No data available") from None

    monkeypatch.setattr(os, "getxattr", getxattr)
    assert box.home().is_ours


def test_without_the_controller_or_any_cgroup(box: Box) -> None:
    box.v2(os.getpid(), controllers="cpu")
    assert box.home().group() == Group(None)
    assert Group(None).oom_kills() == 0


def test_a_kernel_that_says_no_leaves_everything_as_it_was(box: Box) -> None:
    ours = box.v2(os.getpid())
    (ours / "cgroup.subtree_control").mkdir()  # cannot be written
    home = box.home()
    assert not home.is_ours
    assert (ours / "cgroup.procs").read_text() == str(os.getpid())
