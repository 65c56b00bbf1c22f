"""What a long operation tells while it runs. The command line draws it; nothing here writes to a terminal."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """One stage at a time: `stage`, any number of `progress`, `done`. `note` says something in between."""

    def stage(self, name: str, detail: str, size: int | None = None) -> None:
        """A stage begins: its name, what it works on, its size in bytes where there is one."""

    def progress(self, fraction: float | None, text: str) -> None:
        """How far the stage is (0 to 1, None where that is unknown), and what it does just now."""

    def done(self, name: str, seconds: float, note: str = "") -> None:
        """The stage ended well."""

    def note(self, text: str) -> None:
        """Something a person should know: a fallback, something left out."""


class Silent:
    """A Reporter that says nothing."""

    def stage(self, name: str, detail: str, size: int | None = None) -> None: ...
    def progress(self, fraction: float | None, text: str) -> None: ...
    def done(self, name: str, seconds: float, note: str = "") -> None: ...
    def note(self, text: str) -> None: ...
