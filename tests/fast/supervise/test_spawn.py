"""A start in the background, as its waiter sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.bench.instance import gone
from launcher.cli.run import _start_detached
from launcher.errors import EngineRefused
from launcher.supervise.client import Client
from launcher.supervise.spawn import Detached, start_detached, wait_ready

if TYPE_CHECKING:
    from conftest import Stage


def test_an_engine_that_ends_well_but_too_early_is_a_failure_of_the_start(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.engine.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(EngineRefused, match="f ended before it was ready"):
        _start_detached(Detached("f"), stage.spec(), as_json=False)
    assert capsys.readouterr().out == ""


def test_an_engine_that_fails_at_once_gives_its_code_and_words_however_quick_it_was(stage: Stage) -> None:
    stage.engine.write_text("#!/bin/sh\necho 'error: invalid argument: --x' >&2\nexit 1\n")
    for _ in range(5):
        with pytest.raises(EngineRefused, match="invalid argument: --x"):
            _start_detached(Detached("f"), stage.spec(), as_json=False)


def test_one_that_is_never_handed_a_launch_ends_with_whoever_made_it() -> None:
    """The command that was to start it may be killed while it plans."""
    program = "import os; from launcher.supervise.spawn import Detached; print(Detached('f')._process.pid); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (9, "")
    assert gone(int(done.stdout), 5.0)


def test_it_keeps_nothing_of_the_terminal(stage: Stage) -> None:
    spec = stage.spec()
    pid = start_detached(spec)
    assert wait_ready(spec, pid).code == 0
    shown = {n: str(Path(f"/proc/{pid}/fd/{n}").readlink()) for n in range(3)}
    assert shown == {0: "/dev/null", 1: str(spec.complaints), 2: str(spec.complaints)}
    assert spec.complaints.stat().st_mode & 0o077 == 0
    assert int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[3]) == pid  # its session
    Client(Path(spec.socket), "f").stop()
