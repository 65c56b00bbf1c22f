from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.bench.instance import gone
from launcher.supervise import leftover, proc
from launcher.supervise.files import InstanceFiles


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_ours_is_ended_by_pid_and_birth(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    files = InstanceFiles(tmp_path)
    leftover.remember(files, sleeper.pid, proc.start_time(sleeper.pid), "key")
    assert leftover.reap(files) == [sleeper.pid]
    assert gone(sleeper.pid)
    assert leftover.reap(files) == []


def test_another_process_with_its_pid_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    files = InstanceFiles(tmp_path)
    birth = proc.start_time(sleeper.pid)
    assert birth is not None
    leftover.remember(files, sleeper.pid, birth - 1, "key")
    assert leftover.reap(files) == []
    assert proc.is_alive(sleeper.pid)


def test_what_is_forgotten_is_not_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    files = InstanceFiles(tmp_path)
    leftover.remember(files, sleeper.pid, proc.start_time(sleeper.pid), "key")
    leftover.remember(files, 2**22, 1, "key")
    leftover.forget(files, sleeper.pid)
    assert leftover.reap(files) == []
    assert proc.is_alive(sleeper.pid)


def test_a_broken_record_is_no_record(tmp_path: Path) -> None:
    files = InstanceFiles(tmp_path)
    for text in ("{", '{"pid": 1}', '[{"pid": "1"}]', '[{"pid": 1, "birth": null, "boot": ""}]'):
        (tmp_path / "engine.json").write_text(text)
        assert leftover.reap(files) == []


def test_one_lock_a_name(tmp_path: Path) -> None:
    first, second = InstanceFiles(tmp_path), InstanceFiles(tmp_path)
    assert first.lock()
    assert not second.lock()
