"""What the kernel says to a cgroup of version 2 that was handed to us: who lives where, and what becomes of it.

With any controller that version 2 has here; memory is version 1's on many a box that can run this.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.machine.cgroups import levels
from launcher.machine.tree import Tree

_INSIDE = """
import json, os, sys, time
from pathlib import Path
(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from launcher.supervise.cgroup import Home
home = Home(controller=sys.argv[2])
home.settle()
group = home.group()
engine = os.fork()
if not engine:
    if group.door:
        Path(group.door).write_text("0")
    time.sleep(60)
while group.own and not group.holds(engine):
    time.sleep(0.01)
where = [Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].rpartition("/")[2] for pid in (os.getpid(), engine)]
os.kill(engine, 9)
os.waitpid(engine, 0)
group.remove()
print(json.dumps([home.is_ours, *where, sorted(path.name for path in Path(sys.argv[1]).iterdir() if path.is_dir())]))
"""


@pytest.fixture
def handed() -> Iterator[tuple[Path, str]]:
    """A fresh cgroup of version 2, and a controller that it has."""
    top = next((level for level in reversed(levels(Tree(), "none")) if level.version == 2), None)
    if top is None or os.geteuid() != 0:
        pytest.skip("needs root, and cgroups of version 2")
    controllers = Path(top.directory, "cgroup.controllers").read_text().split()
    if not controllers:
        pytest.skip("version 2 has no controller here")
    control = Path(top.directory, "cgroup.subtree_control")
    before, controller = control.read_text().split(), controllers[0]
    control.write_text(f"+{controller}")
    here = Path(top.directory, f"kvlaunch-test-{os.getpid()}")
    here.mkdir()
    try:
        yield here, controller
    finally:
        for folder in (*(path for path in here.iterdir() if path.is_dir()), here):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if controller not in before:
            control.write_text(f"-{controller}")


def _inside(here: Path, controller: str) -> list[object]:
    done = subprocess.run([sys.executable, "-c", _INSIDE, str(here), controller], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer


def test_delegated(handed: tuple[Path, str]) -> None:
    here, controller = handed
    os.setxattr(here, "trusted.delegate", b"1")
    assert _inside(here, controller) == [True, "supervisor", "engine-1", ["supervisor"]]


def test_not_delegated(handed: tuple[Path, str]) -> None:
    here, controller = handed
    assert _inside(here, controller) == [False, here.name, here.name, []]


def test_with_a_lodger(handed: tuple[Path, str]) -> None:
    here, controller = handed
    os.setxattr(here, "trusted.delegate", b"1")
    with subprocess.Popen(["sleep", "60"]) as lodger:
        try:
            (here / "cgroup.procs").write_text(str(lodger.pid))
            assert _inside(here, controller) == [False, here.name, here.name, []]
        finally:
            lodger.kill()
            lodger.wait()
            time.sleep(0.05)  # a group can be removed only some moments after its last process
