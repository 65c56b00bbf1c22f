"""A start in the background, as its waiter sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from launcher.cli.run import _start_detached
from launcher.errors import EngineRefused

if TYPE_CHECKING:
    from conftest import Stage


def test_an_engine_that_ends_well_but_too_early_is_a_failure_of_the_start(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.engine.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(EngineRefused, match="f ended before it was ready"):
        _start_detached(stage.spec(), as_json=False)
    assert capsys.readouterr().out == ""


def test_an_engine_that_fails_at_once_gives_its_code_and_words_however_quick_it_was(stage: Stage) -> None:
    stage.engine.write_text("#!/bin/sh\necho 'error: invalid argument: --x' >&2\nexit 1\n")
    for _ in range(5):
        with pytest.raises(EngineRefused, match="invalid argument: --x"):
            _start_detached(stage.spec(), as_json=False)
