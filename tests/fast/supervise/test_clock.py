"""Wall clocks jump. Nothing may be decided by them, and what is told must be right by the clock as it stands."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.bench.instance import Instance, wait_for
from launcher.supervise import clock
from launcher.supervise.clock import Moment

if TYPE_CHECKING:
    from conftest import Stage

_ROOM = Path(clock.__file__).parent


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_moment_follows_a_jump_and_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, told = Moment(), str(Moment())
    monkeypatch.setattr(clock, "wall", lambda: time.time() + 0.5)
    assert abs(_seconds(str(moment)) - _seconds(told)) < 0.1
    for jump in (-1e9, -7200.0, 7200.0, 1e9):
        monkeypatch.setattr(clock, "wall", lambda jump=jump: time.time() + jump)
        assert abs(_seconds(str(moment)) - _seconds(told) - jump) < 1.0


def test_nobody_else_reads_it() -> None:
    """`report` names a file by it, for a person, in a process of its own."""
    reads = re.compile(r"\btime\.time\(|\btime\.time_ns\(|datetime\.(now|utcnow)\(|\btime\.strftime\(")
    found = {file.name for file in _ROOM.glob("*.py") if reads.search(file.read_text())}
    assert found == {"clock.py", "report.py"}


def test_jumps_while_it_waits_and_while_it_serves(stage: Stage) -> None:
    ahead = stage.home / "ahead"
    ahead.write_text("0")
    spec = stage.spec(backoff=(2.0, 2.0))
    instance = Instance(spec, program=("launcher.bench.jumpy", str(ahead)))
    stage.started.append(instance)
    instance.ready()
    engine = instance.engine

    for jump in (3e8, -3e8):
        ahead.write_text(str(jump))
        time.sleep(2)
        status = instance.status
        assert (status["state"], status["engine_pid"]) == ("ready", engine)
        assert 0 < time.time() + jump - _seconds(status["since"]) < 60

        ahead.write_text("0")
        begin = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: instance.status["state"] == "backoff")
        ahead.write_text(str(jump))
        assert -1 < _seconds(instance.status["next_try"]) - (time.time() + jump) < 3
        instance.ready(but_not=engine)
        assert 1.7 < time.monotonic() - begin < 6
        engine = instance.engine
