"""docs/supervise.md says what the code does: classes, codes and steps are compared."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.supervise.classes import KINDS
from launcher.supervise.policy import Rules
from launcher.supervise.states import State

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "supervise.md").read_text()


def test_every_class_with_its_exit_code() -> None:
    rows = dict(re.findall(r"^\| ([a-z-]+) \| [^|]* \| (\d+) \|", PAGE, re.MULTILINE))
    assert {str(kind): meaning.code for kind, meaning in KINDS.items()} == {
        name: int(code) for name, code in rows.items()
    }


def test_every_state_and_the_steps() -> None:
    assert all(f"{state}" in PAGE for state in State if state not in (State.PLANNING, State.BUILDING))
    steps = ", ".join(f"{step:g}" for step in Rules().backoff[1:])
    assert f"Then after {steps} s" in PAGE
    assert f"ready for {Rules().stable_after / 60:g} minutes" in PAGE
