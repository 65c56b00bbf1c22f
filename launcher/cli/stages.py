"""The first minute on a terminal: a line for each stage with its name, size and time; a bar where it takes a while.

Implements the Reporter that builder and model sources call. Without a terminal: plain lines, no bar, no colour.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from launcher.cli.render import colour
from launcher.supervise.view import timed
from launcher.units import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_NAME_WIDTH = 8
_INSTANT = ("check", "plan")  # a bar would only flicker, and its library take longer than they do
_PLAIN_STEPS = 10  # without a terminal a long stage says how far it is so many times


class Stages:
    """Reports to `stream` (stderr, so that stdout stays for results). One stage is open at a time."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._name = ""
        self._detail = ""
        self._began = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._told = 0

    def stage(self, name: str, detail: str, size: int | None = None) -> None:
        """A stage begins; `size` in bytes, where it has one."""
        words = f"{detail}  {format_bytes(size)}" if size is not None else detail
        self._name, self._detail, self._began, self._told = name, words, time.monotonic(), 0
        if self._live:
            if name not in _INSTANT:
                self._open_bar()
        elif not self._quiet and self._slow_stage():
            self._say(f"{name:<{_NAME_WIDTH}}  {detail} …")

    def progress(self, fraction: float | None, text: str = "") -> None:
        """How far it is (0 to 1; None: unknown) and a few words (`118/221`, `37.4 MB`)."""
        if self._bar is not None and self._task is not None:
            done = 0 if fraction is None else fraction * 100
            total = None if fraction is None else 100
            self._bar.update(self._task, completed=done, total=total, words=text)
        elif not self._quiet and fraction is not None and self._slow_stage():
            step = int(fraction * _PLAIN_STEPS)
            if step > self._told and step < _PLAIN_STEPS:
                self._told = step
                self._say(f"{self._name:<{_NAME_WIDTH}}  {fraction:4.0%}  {text}")

    def done(self, name: str, seconds: float | None = None, note: str = "") -> None:
        """The stage is done; its line stays. `seconds`: None takes our own clock."""
        self._close_bar()
        if not self._quiet:
            took = time.monotonic() - self._began if seconds is None else seconds
            detail = self._detail + (f"  {note}" if note else "")
            mark = colour(f"{name:<{_NAME_WIDTH}}", "green", stream=self._stream)
            self._say(f"{mark}  {timed(detail, took, self._stream)}")
        self._name = ""

    def note(self, text: str) -> None:
        """A line between stages or within one."""
        if not self._quiet:
            if self._bar is not None:
                self._bar.console.print(text, highlight=False, markup=False)
            else:
                self._say(text)

    def close(self) -> None:
        """Take the bar off the screen, whatever happened."""
        self._close_bar()

    def _slow_stage(self) -> bool:
        return self._name in ("fetch", "model", "compile", "load")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn(f"{{task.description:<{_NAME_WIDTH}}} "),
            TextColumn("{task.fields[detail]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        self._task = self._bar.add_task(self._name, total=None, detail=self._detail, words="")
        self._bar.start()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
