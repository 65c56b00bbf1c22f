"""The key by which our own requests are let in: the first of the instance's key file."""

from __future__ import annotations

from pathlib import Path


def first_key(file: str | None) -> str | None:
    """One key a line, `#` begins a comment. None where there is no file, or no key to read in it."""
    if not file:
        return None
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.strip() for line in lines if line.strip() and not line.startswith("#")), None)
