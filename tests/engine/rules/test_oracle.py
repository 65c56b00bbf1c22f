"""A seeded sample of `bench rules`: what check says of mutated profiles is what the real engine does."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.bench.rules import run


@pytest.mark.timeout(600)
def test_the_engine_does_what_check_says(reference_server: Path, smollm2: Path, gemma3: Path) -> None:
    """The unpatched engine: every option of ours that a profile asks for is one that it lacks."""
    body = run(reference_server, {"smollm2": smollm2, "gemma3": gemma3}, quick=True, seed=20)
    found = [(miss["key"], miss["engine"], miss["profile"]) for miss in body["misses"]]
    assert found == []
    assert body["false_alarms"] == []
    started = next(row["value"] for row in body["rows"] if row["metric"] == "profiles")
    assert started >= 100
