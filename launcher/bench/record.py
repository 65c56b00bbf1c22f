"""The envelope of a bench: which engine and machine, its rows and checks (contract: `bench X --json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Record:
    """Rows are figures; checks compare one with its target. `skipped`: what didn't run, and why."""

    bench: str
    engine: str
    machine: Mapping[str, Any]
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    rows: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def take(self, body: Mapping[str, Any]) -> None:
        """Add what a bench's `run` gave back."""
        self.rows += body.get("rows", [])
        self.checks += body.get("checks", [])
        self.skipped += body.get("skipped", [])

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The hard checks that did not hold: exit code 20."""
        return [check for check in self.checks if check["hard"] and not check["ok"]]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "bench": self.bench,
            "at": self.at,
            "engine": self.engine,
            "machine": dict(self.machine),
            "rows": self.rows,
            "checks": self.checks,
            "skipped": self.skipped,
        }

    def write(self, folder: Path) -> Path:
        """`results/BENCH-DATE.json`; never over an older one."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self.bench}-{self.at[:10]}"
        path = folder / f"{stem}.json"
        number = 2
        while path.exists():
            path = folder / f"{stem}-{number}.json"
            number += 1
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path


def row(case: str, metric: str, value: float | int | str | None, unit: str) -> dict[str, Any]:
    """One figure with its unit."""
    return {"case": case, "metric": metric, "value": value, "unit": unit}


def check(name: str, ok: bool, value: float | int | str | None, target: str, *, hard: bool = True) -> dict[str, Any]:
    """One comparison. A hard one that fails makes the bench fail."""
    return {"name": name, "hard": hard, "ok": ok, "value": value, "target": target}
