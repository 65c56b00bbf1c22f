"""Plain words on a terminal: errors and small helpers. Colour only where a person looks."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from launcher.errors import KvlaunchError, ProfileError

_CODES = {"red": "31", "yellow": "33", "green": "32", "blue": "34", "bold": "1", "dim": "2"}


def wants_colour(stream: TextIO) -> bool:
    """A person looks, and hasn't asked for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colour(text: str, *names: str, stream: TextIO | None = None) -> str:
    """`text` in the named colours when `stream` (stdout) is a terminal and NO_COLOR isn't set."""
    if not wants_colour(stream or sys.stdout):
        return text
    codes = ";".join(_CODES[name] for name in names)
    return f"\033[{codes}m{text}\033[0m"


def print_error(error: KvlaunchError) -> None:
    """The error's words on stderr, with what to do; a profile's diagnostics first, each at its place."""
    err = sys.stderr
    if isinstance(error, ProfileError) and error.diagnostics:
        from launcher.diagnostic import Severity
        from launcher.rules.render import render_diagnostics, summary

        print(render_diagnostics(error.diagnostics, colour=wants_colour(err)), file=err)
        if any(found.severity is Severity.ERROR for found in error.diagnostics):
            print(f"\n{summary(error.diagnostics)}", file=err)
            return  # each stands above, with its help
    rule = f"[{error.rule}]" if error.rule else ""
    print(f"{colour('error' + rule, 'red', 'bold', stream=err)}: {error.message}", file=err)
    if error.help:
        lines = error.help.splitlines()
        print(f"  {colour('help', 'blue', stream=err)}: {lines[0]}", file=err)
        for line in lines[1:]:
            print(f"        {line}", file=err)
