"""Diagnostics as text: the place, the line with a caret, why, what to write instead; or as annotations for GitHub.

Pure but for reading the profile's own lines, which the caller may hand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import wrap

from launcher.diagnostic import Diagnostic, Place, Severity

_WIDTH = 100
_PAINT = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


def read_line(place: Place) -> str | None:
    """The line a person wrote, or None where the file can't be read any more."""
    try:
        return Path(place.file).read_text(encoding="utf-8", errors="replace").splitlines()[place.line - 1]
    except (OSError, IndexError):
        return None


def render_diagnostics(
    diagnostics: Sequence[Diagnostic], *, colour: bool = False, line_of: Callable[[Place], str | None] = read_line
) -> str:
    """All of them, errors first within each file's order, one blank line between."""
    return "\n\n".join(_one(found, colour, line_of) for found in diagnostics)


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """One workflow command a line: a forge shows each beside the line it belongs to."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
    lines = []
    for found in diagnostics:
        place = f"file={found.place.file},line={found.place.line},col={found.place.column}," if found.place else ""
        text = found.message + (f"\nhelp: {found.help}" if found.help else "")
        # %, CR and LF would end the command early
        text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        lines.append(f"::{words[found.severity]} {place}title={found.rule} {found.slug}::{text}")
    return "\n".join(lines)


def summary(diagnostics: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning` or `no findings`."""
    counts = dict.fromkeys(Severity, 0)
    for found in diagnostics:
        counts[found.severity] += 1
    parts = [f"{n} {severity}{'s' if n != 1 else ''}" for severity, n in counts.items() if n]
    return ", ".join(parts) or "no findings"


def _one(found: Diagnostic, colour: bool, line_of: Callable[[Place], str | None]) -> str:
    def paint(text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if colour else text

    head = paint(f"{found.severity}[{found.rule}]", f"1;{_PAINT[found.severity]}")
    out = [f"{head}: {found.message}"]
    gutter = "  "
    if found.place is not None:
        number = str(found.place.line)
        gutter = " " * (len(number) + 1)
        out.append(f"{gutter[:-1]}{paint('-->', '34')} {found.place}")
        line = line_of(found.place)
        if line is not None:
            out.append(f"{gutter}{paint('|', '34')}")
            out.append(f"{paint(number, '34')} {paint('|', '34')} {line.replace(chr(9), ' ')}")
            caret = " " * (found.place.column - 1) + paint("^", _PAINT[found.severity])
            out.append(f"{gutter}{paint('|', '34')} {caret}")
    elif found.key:
        out.append(f"{gutter}{paint('-->', '34')} {found.key}")
    for label, text in (("why", found.why), ("help", found.help)):
        if text:
            out += _labelled(label, text, gutter, paint)
    return "\n".join(out)


def _labelled(label: str, text: str, gutter: str, paint: Callable[[str, str], str]) -> list[str]:
    lead = f"{gutter}= {label}: "
    lines: list[str] = []
    for paragraph in text.splitlines():
        lines += wrap(paragraph, _WIDTH - len(lead), break_long_words=False, break_on_hyphens=False) or [""]
    first = f"{gutter}{paint('=', '34')} {paint(label, '1')}: {lines[0]}"
    return [first, *(" " * len(lead) + line for line in lines[1:])]
