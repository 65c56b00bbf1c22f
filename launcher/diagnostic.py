"""One finding about a profile: which rule, how bad, where in the file, why, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """`error`: the engine would refuse, or do something else than asked. Exit code 10."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file that a person wrote. `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """`key` is the dotted key (`context.slots`); `place` is None for what stands in no file (a default, `--set`)."""

    rule: str
    slug: str
    severity: Severity
    key: str
    message: str
    why: str = ""
    help: str = ""
    place: Place | None = None

    def as_json(self) -> dict[str, object]:
        """The object that `check --json` lists (contract.md)."""
        return {
            "rule": self.rule,
            "slug": self.slug,
            "severity": str(self.severity),
            "key": self.key,
            "file": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
            "column": self.place.column if self.place else None,
            "message": self.message,
            "why": self.why,
            "help": self.help,
        }
