"""What a person sees while an instance starts and runs: a line for each stage, then what matters in the log.

It reads events and log records only, so that the foreground and a waiter on the control socket show the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, TextIO

from launcher.units import format_bytes, format_duration

_NAME_WIDTH = 8
_TIME_WIDTH = 10
_LINE_WIDTH = 78
_BAR = 24
_COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2"}

_LOCAL = ("http://127.", "http://[::1]", "http://localhost", "unix:")
_ONLY_IN_PUBLIC = "security: no API key is set"
"""A warning of the engine's that alarms for nothing while only this machine can reach it."""


def columns(stream: TextIO) -> int:
    """The width of the terminal; 80 where there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def timed(detail: str, seconds: float, stream: TextIO) -> str:
    """What stands after a stage's name: the detail, and at the right edge how long it took."""
    width = max(min(_LINE_WIDTH, columns(stream) - 1) - _NAME_WIDTH - _TIME_WIDTH - 4, 0)
    return f"{detail:<{width}}  {format_duration(seconds):>{_TIME_WIDTH}}"


class View:
    """Writes to `stream`; a bar and colours only where it is a terminal."""

    def __init__(self, name: str, alias: str | None = None, stream: TextIO | None = None) -> None:
        self._name = name
        self._alias = alias or name
        self._stream = stream = stream or sys.stderr
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._live and not os.environ.get("NO_COLOR")
        self._began = time.monotonic()
        self._bytes = 0
        self._bar_shown = False
        self._greeted = False
        self._local = False

    def event(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "spawn":
                self._began = time.monotonic()
                self._bytes = event.get("model_bytes") or 0
            case "progress":
                self._bar(event.get("fraction"), event.get("bytes") or 0)
            case "state":
                self._state(event)
            case "exit" if event.get("class") != "stopped-by-us":
                self._say("ended", f"{event['class']}: {event.get('line') or _how(event)}", "red")
            case "problem":
                self._say("warn", event["reason"], "yellow")
            case "replan":
                without = ", ".join(event["given_up"])
                self._say("replan", f"without {without}" if without else "with all that was asked for", "yellow")

    def record(self, record: dict[str, Any]) -> None:
        """A line of the engine that a person should see: warnings and errors."""
        if self._local and record["text"].startswith(_ONLY_IN_PUBLIC):
            return
        if record["source"] == "engine" and record["level"] in ("warn", "error"):
            colour = "red" if record["level"] == "error" else "yellow"
            self._say(record["level"], record["text"].splitlines()[0], colour)

    def _state(self, event: dict[str, Any]) -> None:
        state, reason, was = event["state"], event.get("reason"), event.get("was")
        self._local = str(event.get("url")).startswith(_LOCAL)
        if state in ("ready", "degraded"):
            if was in ("starting", "loading"):
                size = f"  {format_bytes(self._bytes)}" if self._bytes else ""
                self._say("load", f"{self._name}{size}", "green", time.monotonic() - self._began)
            if state == "ready":
                self._say("ready", f"{event['url']}", "green")
                self._greet(event["url"])
            else:
                self._say("degraded", f"{event['url']}  {reason}", "yellow")
        elif state == "backoff":
            self._say("backoff", f"{reason}; next try {event.get('next_try')}", "yellow")
        elif state == "failed":
            self._say("failed", str(reason), "red")
        elif state == "draining":
            self._say("stop", str(reason or event.get("cause")), "dim")
        elif state == "stopped":
            self._say("stopped", str(reason or event.get("cause")), "dim")
        elif state == "starting" and was not in ("planning", "building"):
            self._say("start", str(event.get("cause")), "dim")

    def _greet(self, url: str) -> None:
        if self._greeted or url.startswith("unix:"):
            return
        self._greeted = True
        body = f'{{"model": "{self._alias}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        self._print(f"\n  curl {url}/v1/chat/completions -d '{body}'\n\n")

    def _say(self, name: str, detail: str, colour: str, seconds: float | None = None) -> None:
        self._clear_bar()
        label = f"{name:<{_NAME_WIDTH}}"
        if self._colour:
            label = f"\033[{_COLOURS[colour]}m{label}\033[0m"
        rest = timed(detail, seconds, self._stream) if seconds is not None else detail
        self._print(f"{label}  {rest}\n")

    def _print(self, text: str) -> None:
        """A terminal that was closed takes nothing more, and that must not end what is supervised."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _bar(self, fraction: float | None, resident: int) -> None:
        if not self._live:
            return
        full = round((fraction or 0) * _BAR)
        bar = "━" * full + "╌" * (_BAR - full) if fraction is not None else ""
        words = f"{'load':<{_NAME_WIDTH}}  {self._name}  {bar}  {format_bytes(resident)}"
        words = words[: columns(self._stream) - 1]  # a line that wraps could not be cleared
        self._print(f"\r\033[2K{words}")
        self._bar_shown = True

    def _clear_bar(self) -> None:
        if self._bar_shown:
            self._print("\r\033[2K")
            self._bar_shown = False


def _how(event: dict[str, Any]) -> str:
    if event.get("signal"):
        return f"signal {event['signal']}"
    return f"exit code {event.get('code')}"
