"""The API keys in a key file, as the engine reads them: for the rules, which want one, and for our own requests."""

from __future__ import annotations

from pathlib import Path


def keys_in(path: Path) -> list[str]:
    """One key a line, `#` begins a comment (common/arg.cpp:3513); only keys that a request can carry. Raises OSError.

    The engine strips nothing from a line, but a header's value loses the blanks at its ends on the way: whoever has
    a key with such a blank, or with the \\r of a foreign editor, is never let in.
    """
    lines = path.read_bytes().decode("ascii", "replace").split("\n")
    return [line for line in lines if line and line[0] != "#" and _can_be_sent(line)]


def _can_be_sent(line: str) -> bool:
    return line.isascii() and line.isprintable() and line == line.strip()


def first_key(file: str | None) -> str | None:
    """The key by which our own requests are let in. None where there is no file, or no key to read in it."""
    if not file:
        return None
    try:
        return next(iter(keys_in(Path(file))), None)
    except OSError:
        return None
