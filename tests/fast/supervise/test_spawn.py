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
