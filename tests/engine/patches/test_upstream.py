"""Upstream's own tests on the patched engine: what passes without the patches passes with them.

`test-save-load-state` and `test-state-restore-fragmented` on a real model, `test-backend-ops` on the CPU, and the
server's tests with a tiny random model in place of those that they would download. Many of the last want words of a
model that is not here, and fail without our patches, too: each outcome is compared with that of the unpatched engine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from launcher.engine.series import read_series, select
from launcher.paths import Places

from .engine import clean_environment, free_port
from .tiny import write_tiny
from .tree import build

pytestmark = [
    pytest.mark.skipif(not os.environ.get("KVLAUNCH_TEST_SLOW"), reason="some minutes: set KVLAUNCH_TEST_SLOW=1"),
    pytest.mark.timeout(3000),
]
_PROGRAMS = ("test-save-load-state", "test-state-restore-fragmented", "test-backend-ops")
_ATTENTION = "FLASH_ATTN_EXT"  # half an hour: tests/engine/cpu_attention has a choice of its cases
_PASSED = 50  # of the server's tests: fewer, and there is nothing to compare
# they start many servers at once, or need a second model
_LEFT_OUT = ("test_router.py", "test_tool_call.py", "test_vision_api.py", "test_tools_builtin.py")


@pytest.fixture(scope="module")
def programs(engine_places: Places) -> Path:
    return build(
        "upstream-tests", select(read_series(), "default"), _PROGRAMS, engine_places, {"LLAMA_BUILD_TESTS": "ON"}
    )


def run(program: Path, *args: object, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *map(str, args)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        env=clean_environment(),
        cwd=program.parent,
    )


def test_states_are_saved_and_loaded(programs: Path, smollm2_model: Path, gemma3_model: Path) -> None:
    """In f16: with a quantized cache the unpatched program, too, dies copying a sequence on the device."""
    for model in (smollm2_model, gemma3_model):
        done = run(programs / "test-save-load-state", "-m", model)
        assert done.returncode == 0, f"{model}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_a_state_is_restored_among_other_cells(programs: Path, smollm2_model: Path) -> None:
    done = run(programs / "test-state-restore-fragmented", "-m", smollm2_model)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_operation_agrees_with_its_reference(programs: Path) -> None:
    listed = run(programs / "test-backend-ops", "--list-ops").stdout
    ops = [name for name in re.findall(r"^\s*([A-Z][A-Z0-9_]+)\s*$", listed, re.MULTILINE) if name != _ATTENTION]
    assert len(ops) > 80, listed
    done = run(programs / "test-backend-ops", "test", "-b", "CPU", "-o", ",".join(ops))
    found = re.search(r"(\d+)/(\d+) tests passed", done.stdout)
    assert found and found[1] == found[2], done.stdout[-2000:]
    assert done.returncode == 0
    print(found[0])


def outcomes(tests: Path, server: Path, model: Path, report: Path) -> dict[str, str]:
    """Each of the server's tests by name: passed, failed or skipped."""
    env = clean_environment({"LLAMA_SERVER_BIN_PATH": str(server), "KVLAUNCH_LOCAL_MODEL": str(model)})
    env |= {"PORT": str(free_port()), "PYTHONPATH": f"{tests}{os.pathsep}{Path(__file__).parent}"}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "upstream_plugin", "-p", "no:cacheprovider", "--timeout=60"]
    argv += ["--junit-xml", str(report), "unit", *(f"--ignore=unit/{name}" for name in _LEFT_OUT)]
    log = report.with_suffix(".log")
    with log.open("wb") as out:
        subprocess.run(argv, cwd=tests, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    assert report.is_file(), log.read_text(errors="replace")[-2000:]
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


def test_the_servers_tests_have_the_same_outcomes(
    programs: Path, server_binary: Path, reference_binary: Path, tmp_path: Path
) -> None:
    tests = shutil.copytree(programs.parent.parent / "src" / "tools" / "server" / "tests", tmp_path / "tests")
    (tests / "tmp").mkdir(exist_ok=True)
    model = write_tiny(tmp_path / "tiny.gguf", head=64)
    ours = outcomes(tests, server_binary, model, tmp_path / "ours.xml")
    theirs = outcomes(tests, reference_binary, model, tmp_path / "theirs.xml")
    passed = {name for name, outcome in theirs.items() if outcome == "passed"}
    assert len(passed) >= _PASSED
    worse = sorted(name for name in passed if ours.get(name) != "passed")
    assert worse == []
    print(f"{len(passed)} of {len(theirs)} pass without the patches, and with them")
