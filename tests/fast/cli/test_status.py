"""`status` takes a way of its own past typer: the same words and codes come out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import _plain
from launcher.cli.app import run

_PROGRAM = """
import sys
from launcher.__main__ import main
try:
    main()
finally:
    print(*sorted({"typer", "pydantic", "rich"} & sys.modules.keys()), file=sys.stderr)
"""


def _asked(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_it_imports_no_typer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _asked("status") == (0, "nothing runs\n", "\n")
    code, _, said = _asked("status", "nobody")
    assert (code, said.splitlines()[0]) == (17, "error: nobody is not running")
    assert said.endswith("\n\n")
    code, shown, _ = _asked("status", "nobody", "--json")
    assert (code, json.loads(shown)["error"]["message"]) == (17, "nobody is not running")


@pytest.mark.parametrize("words", [["--help"], ["a", "b"], ["-x"], ["a", "--set", "b"]])
def test_what_is_more_than_a_name_is_typers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _plain(words) is None
    code = run(["status", *words])
    shown = capsys.readouterr()
    assert code == (0 if words == ["--help"] else 2)
    assert "kvlaunch status" in shown.out + shown.err
