from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import reserve
from launcher.paths import Places, places

NOBODY = 2**22 + 1  # beyond the kernel's largest pid


@pytest.fixture
def here(tmp_path: Path) -> Places:
    return replace(places({"HOME": str(tmp_path)}), state=tmp_path / "state")


def _status(here: Places, name: str, state: str, pid: int) -> None:
    folder = here.instance(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status.json").write_text(json.dumps({"state": state, "pid": pid}))


def test_two_starts_at_once_see_each_other(here: Places) -> None:
    with reserve.lock(here):
        reserve.reserve(here, "first", {"host": 100, "CUDA0": 50})
    assert reserve.reserved(here, besides="second") == {"host": 100, "CUDA0": 50}
    assert reserve.reserved(here, besides="first") == {}


def test_what_serves_is_counted_by_the_kernel_and_no_more_by_us(here: Places) -> None:
    with reserve.lock(here):
        reserve.reserve(here, "first", {"host": 100})
    _status(here, "first", "loading", os.getpid())
    assert reserve.reserved(here, besides="second") == {"host": 100}
    _status(here, "first", "ready", os.getpid())
    assert reserve.reserved(here, besides="second") == {}


def test_a_detached_start_counts_after_its_command_has_ended(here: Places) -> None:
    with reserve.lock(here):
        reserve.reserve(here, "first", {"host": 100})
    file = here.state / ".reservations" / "first.json"
    file.write_text(json.dumps({"pid": NOBODY, "needs": {"host": 100}}))
    _status(here, "first", "loading", os.getpid())
    assert reserve.reserved(here, besides="second") == {"host": 100}


def test_what_died_or_is_damaged_counts_for_nothing_and_goes(here: Places) -> None:
    with reserve.lock(here):
        reserve.reserve(here, "dead", {"host": 100})
    folder = here.state / ".reservations"
    (folder / "dead.json").write_text(json.dumps({"pid": NOBODY, "needs": {"host": 100}}))
    (folder / "cut.json").write_text('{"pid": 1, "ne')
    (folder / "odd.json").write_text("[]")
    assert reserve.reserved(here, besides="second") == {}
    assert sorted(file.name for file in folder.glob("*.json")) == []
