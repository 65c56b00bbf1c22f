"""A real memory cgroup around a real process: what is left is what the kernel will give. Needs the right to make it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_LIMIT, _LARGER = 600 * MIB, 900 * MIB

# inside: probe, take 200 MiB, probe, leave 100 MiB of file pages in the page cache, probe
_INSIDE = """
import json, pathlib, sys
from launcher.machine.probe import probe
seen = [probe().memory]
held = bytearray(200 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
seen.append(probe().memory)
pathlib.Path(sys.argv[1]).write_bytes(bytes(100 << 20))
seen.append(probe().memory)
print(json.dumps([memory.as_json() for memory in seen]))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 900 MiB in one of 600 MiB: the outer one is what counts."""
    v1 = (_V1 / "memory.limit_in_bytes").exists()
    root = _V1 if v1 else _V2
    file = "memory.limit_in_bytes" if v1 else "memory.max"
    outer = root / f"kvlaunch-test-{os.getpid()}"
    inner = outer / "in"
    try:
        inner.mkdir(parents=True)
        if not v1:
            (outer / "cgroup.subtree_control").write_text("+memory")
        (outer / file).write_text(str(_LIMIT))
        (inner / file).write_text(str(_LARGER))
    except OSError as error:
        _remove(inner, outer)
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield inner
    _remove(inner, outer)


def _remove(*groups: Path) -> None:
    for group in groups:
        for _ in range(50):  # the kernel lets go of the last process a moment after it has ended
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.1)


def test_what_is_left_in_nested_groups(group: Path, tmp_path: Path) -> None:
    join_and_run = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", join_and_run, str(group), sys.executable, "-c", _INSIDE, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    before, holding, cached = json.loads(done.stdout)
    for memory in (before, holding, cached):
        assert memory["limit"] == _LIMIT
        assert memory["limited_by"] == f"/{group.parent.name}"
    assert _LIMIT - 60 * MIB < before["available"] < _LIMIT
    assert before["available"] - holding["available"] == pytest.approx(200 * MIB, abs=8 * MIB)
    # file pages are charged to the group and given back on demand: they count as free
    assert holding["available"] - cached["available"] < 20 * MIB
