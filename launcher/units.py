"""Sizes, token counts and durations, with their units. Nothing here knows what they measure.

Bytes are bytes; MiB and GiB are binary, MB and GB decimal; `k` in a token count is 1024 tokens.
"""

from __future__ import annotations

import re
from typing import NewType

Bytes = NewType("Bytes", int)
Tokens = NewType("Tokens", int)
Seconds = NewType("Seconds", float)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_TOKEN_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_LARGEST = 1 << 62  # beyond this no size, count or time in a profile can be meant


def _split(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> tuple[str, float]:
    match = _QUANTITY.fullmatch(text)
    if match is None or (unit := match[2].lower()) not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"{text!r} is not {what}; write a number and a unit ({known}), such as {example}")
    return match[1], units[unit]


def _whole(number: str, factor: float, text: str) -> int:
    value = float(number) * factor
    if value > _LARGEST:
        raise ValueError(f"{text!r} is larger than anything that exists")
    # float() would lose the low digits of a long plain integer
    return int(number) * int(factor) if "." not in number else int(value)


def parse_bytes(text: str) -> Bytes:
    """`"12GiB"`, `"8GB"`, `"512 B"` to bytes. Raises ValueError with what to write instead."""
    number, factor = _split(text, _BYTE_UNITS, "a size", '"12GiB"')
    return Bytes(_whole(number, factor, text))


def parse_tokens(text: str) -> Tokens:
    """`"32k"` (32 × 1024) or `"32768"` to a token count. Raises ValueError."""
    number, factor = _split(text, _TOKEN_UNITS, "a token count", '"32k" or 32768')
    return Tokens(_whole(number, factor, text))


def parse_duration(text: str) -> Seconds:
    """`"10s"`, `"5min"`, `"1.5h"`, `"250ms"` to seconds. Raises ValueError."""
    number, factor = _split(text, _DURATION_UNITS, "a duration", '"10s" or "5min"')
    if float(number) * factor > _LARGEST:
        raise ValueError(f"{text!r} is longer than anything that lasts")
    return Seconds(float(number) * factor)


def format_bytes(count: int) -> str:
    """A size for people, binary units, three significant digits or so: `180.0 MiB`, `12.3 GiB`, `512 B`."""
    for factor, unit in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def format_tokens(count: int) -> str:
    """A token count for people: `32k` where it is exact, else the digits."""
    return f"{count >> 10}k" if count >= 1024 and count % 1024 == 0 else str(count)


def format_duration(seconds: float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
