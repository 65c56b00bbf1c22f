from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.supervise import logs
from launcher.supervise.flood import Brake
from launcher.supervise.logs import Log


def written(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_lines_are_structured_and_the_users_alone(tmp_path: Path) -> None:
    log = Log(tmp_path / "l")
    log.add("engine", "warn", "grüße")
    log.close()
    (record,) = written(tmp_path / "l")
    assert (record["source"], record["level"], record["text"]) == ("engine", "warn", "grüße")
    assert (tmp_path / "l" / "log.jsonl").stat().st_mode & 0o077 == 0


def test_repeats_are_folded(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for text in ("a", *["b"] * 1000, "c"):
        log.add("engine", "info", text)
    log.close()
    assert [(record["text"], record.get("repeated")) for record in written(tmp_path)] == [
        ("a", None),
        ("b", None),
        ("b", 1000),
        ("c", None),
    ]
    assert [record["text"] for record in log.ring] == ["a", "b", "c"]


def test_rotation_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_FILE_BYTES", 10_000)
    log = Log(tmp_path)
    for n in range(2000):
        log.add("engine", "info", f"line {n}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log.jsonl", *(f"log.jsonl.{n}" for n in range(1, 5))]
    assert all(file.stat().st_size <= 10_000 for file in files)
    assert written(tmp_path)[-1]["text"] == "line 1999"


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        log = Log(tmp_path)
        for n in range(100):
            log.add("engine", "info", f"line {n}")
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert log.counts.lines == 100
    assert log.counts.unwritten > 50
    assert log.ring[-1]["text"] == "line 99"


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LOOK", 0.0)
    folder = tmp_path / "l"
    log = Log(folder)
    log.add("engine", "info", "before")
    end = time.monotonic() + 5
    while not (folder / "log.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.01)
    shutil.rmtree(folder)
    log.add("engine", "info", "after")
    log.close()
    assert [record["text"] for record in written(folder)] == ["after"]


def test_what_the_writer_cannot_follow_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_QUEUE_BYTES", 0)
    log = Log(tmp_path)
    for n in range(3000):
        log.add("engine", "info", f"line {n}")
    assert log.counts.dropped > 0
    log.close()


def test_a_flood_is_braked_and_errors_last(tmp_path: Path) -> None:
    brake = Brake()
    passed = sum(brake.lets_pass(b"chatter", 5.0 + n / 1e5) for n in range(10_000))
    assert passed == 2000
    assert brake.lets_pass(b"anything", 6.0)
    assert brake.take() == 8000
    assert brake.take() == 0
    for _ in range(2500):
        brake.lets_pass(b"chatter", 7.0)
    assert brake.lets_pass(b"CUDA error: lost", 7.0)
