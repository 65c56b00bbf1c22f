"""What is wrong with a value, in words: the error that readers raise, and how values are shown to people."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

_MAX_SHOWN = 60


class BadValue(ValueError):
    """`code` is the fault (faults.py); `help` is what to write instead."""

    def __init__(self, code: str, message: str, help: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.help = code, message, help


class BadItems(ValueError):
    """What is wrong with each element of an array, by its index, or of a table, by its key."""

    def __init__(self, items: Sequence[tuple[int | str, BadValue]]) -> None:
        super().__init__("; ".join(bad.message for _, bad in items))
        self.items = tuple(items)


def shown(value: object) -> str:
    """A value as a person wrote it, in TOML, cut where it is long."""
    match value:
        case bool():
            text = "true" if value else "false"
        case str():
            text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        case list() | tuple():
            text = "[" + ", ".join(shown(item) for item in value[:8]) + (", …]" if len(value) > 8 else "]")
        case dict():
            text = "{ " + ", ".join(f"{key} = …" for key in list(value)[:4]) + " }"
        case int():
            # CPython refuses to write out an integer of more than 4300 digits
            text = str(value) if value.bit_length() < 256 else "a very long number"
        case _:
            text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def kind(value: object) -> str:
    """TOML's name for the type of a value, with its article."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        ((list, tuple), "an array"),
        (dict, "a table"),
        ((datetime.date, datetime.time), "a date or time"),
    )
    return next((name for types, name in names if isinstance(value, types)), type(value).__name__)


def wrong_type(expected: str, value: object, help: str = "") -> BadValue:
    return BadValue("KV003", f"expected {expected}, found {kind(value)}: {shown(value)}", help)


def near(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word that was probably meant."""
    import difflib  # 5 ms that only a mistake has to pay

    return next(iter(difflib.get_close_matches(word, list(known), 1, likeness)), None)


def not_one_of(words: Iterable[str], value: object, rest: str = "") -> BadValue:
    """The value is no known word; `rest` says what else could stand here."""
    words = tuple(words)
    known = ", ".join(f'"{word}"' for word in words) + (f" or {rest}" if rest else "")
    if not isinstance(value, str):
        # true and false stand for on and off in many people's fingers
        swap = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else None
        return wrong_type(f"one of {known}", value, f'write "{swap}"' if swap in words else "")
    meant = near(value.lower(), words)
    help = f'did you mean "{meant}"?' if meant else f"write one of {known}"
    return BadValue("KV004", f"{shown(value)} is none of {known}", help)
