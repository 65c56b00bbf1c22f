"""The committed record of the pin says what a built engine's own help says.

After a pin bump or a new option: KVLAUNCH_WRITE_RECORD=1 pytest tests/engine/build/test_capability.py
"""

from __future__ import annotations

import os

import pytest

from launcher.engine.builder import build_engine
from launcher.engine.capability import of_pin, parse_help, write_record
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.series import read_series
from launcher.engine.store import Engine
from launcher.paths import Places, shipped


@pytest.mark.skipif(not os.environ.get("KVLAUNCH_WRITE_RECORD"), reason="writes the record: KVLAUNCH_WRITE_RECORD=1")
@pytest.mark.timeout(1200)
def test_write_the_record(engine_places: Places) -> None:
    everything = tuple(patch.id for patch in read_series())
    whole = build_engine(BuildRequest(backend="cpu", patches=everything), engine_places, Silent())
    text = whole.help_text.read_text("utf-8")
    write_record(parse_help(text, "its help"), shipped("build") / "capability" / "options.json")


def test_the_record_is_what_the_built_engine_says(engine: Engine) -> None:
    told, record = parse_help(engine.help_text.read_text("utf-8"), "its help"), of_pin("default")
    assert record.options == told.options
    assert record.cache_types == told.cache_types
    assert record.patches is not None and set(record.patches) == engine.manifest.patch_ids
    for entry in told.entries:
        known = record.option(entry.spellings[0])
        assert known is not None and (known.value, known.env) == (entry.value, entry.env)
