"""The first thirty faults of the chaos run, and crashes under clients. What is measured there is not judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.bench import chaos


@pytest.mark.timeout(420)
def test_thirty_faults_and_every_invariant_holds(engine_server: Path, smollm2: Path) -> None:
    result = chaos.run(engine_server, {"smollm2": smollm2}, quick=True, seed=7)
    checks = {check["name"]: check for check in result["checks"]}
    broken = [row["value"] for row in result["rows"] if row["case"] == "broken"]
    assert checks["faults with every invariant held"]["ok"], broken
    if refused := checks.get("refused or 503 under crashes"):
        assert refused["ok"], refused
