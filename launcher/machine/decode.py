"""Reads an object out of a machine file and names the field that is missing or of another kind than meant.

Knows nothing about machines: only objects, lists, counts, texts, and where each stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from launcher.errors import ProfileError

Choice = TypeVar("Choice", bound=StrEnum)

_LARGEST = 1 << 62  # more than any count of bytes there is; JSON itself has no limit


@dataclass(frozen=True, slots=True)
class Reader:
    """One JSON object, with its place in the file (`devices[0].pcie`) and the file's name."""

    data: Mapping[str, Any]
    source: str
    place: str = ""

    @classmethod
    def top(cls, data: Any, source: str) -> Reader:
        """The whole file's object."""
        if not isinstance(data, Mapping):
            raise ProfileError(
                f"{source} holds {_kind(data)}, not the object that `kvlaunch probe --json` prints",
                help="write it with `kvlaunch probe --json > FILE`",
            )
        return cls(data, source)

    def check_schema(self, newest: int) -> None:
        """Refuse a file that a newer kvlaunch wrote; one without a number is of the first kind."""
        schema = self.data.get("schema", 1)
        if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
            raise self._wrong("schema", "a whole number from 1", schema)
        if schema > newest:
            raise ProfileError(
                f"{self.source} is of schema {schema}; this kvlaunch reads up to {newest}",
                help="probe the box with this version, or update kvlaunch here",
            )

    def text(self, key: str, *, optional: bool = False) -> str | None:
        """A string or null."""
        value = self._get(key, optional)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, "a string or null", value)

    def required_text(self, key: str) -> str:
        """A string."""
        value = self._get(key, False)
        if isinstance(value, str):
            return value
        raise self._wrong(key, "a string", value)

    def count(self, key: str, *, optional: bool = False) -> int | None:
        """A whole number from 0, or null."""
        value = self._get(key, optional)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST):
            return value
        raise self._wrong(key, "a whole number from 0, or null", value)

    def required_count(self, key: str) -> int:
        """A whole number from 0."""
        value = self.count(key)
        if value is None:
            raise self._wrong(key, "a whole number from 0", value)
        return value

    def number(self, key: str, *, optional: bool = False) -> float | None:
        """A number that is not negative, or null."""
        value = self._get(key, optional)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
            return float(value)
        raise self._wrong(key, "a number from 0, or null", value)

    def flag(self, key: str, *, optional: bool = False) -> bool | None:
        """true, false or null."""
        value = self._get(key, optional)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, "true, false or null", value)

    def choice(self, key: str, choices: type[Choice]) -> Choice | None:
        """One of the names of an enumeration, or null."""
        value = self.text(key)
        if value is None:
            return None
        try:
            return choices(value)
        except ValueError:
            raise self._wrong(key, f"one of {', '.join(choices)}, or null", value) from None

    def texts(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of strings; null is an empty one."""
        value = self._get(key, optional)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self._wrong(key, "a list of strings", value)

    def child(self, key: str) -> Reader | None:
        """An object or null."""
        value = self._get(key, False)
        return None if value is None else self._object(key, value)

    def required_child(self, key: str) -> Reader:
        """An object."""
        return self._object(key, self._get(key, False))

    def children(self, key: str, *, optional: bool = False) -> tuple[Reader, ...] | None:
        """A list of objects, or null."""
        value = self._get(key, optional)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return tuple(self._object(f"{key}[{index}]", item) for index, item in enumerate(value))

    def _object(self, key: str, value: Any) -> Reader:
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return Reader(value, self.source, self._path(key))

    def _get(self, key: str, optional: bool) -> Any:
        if key in self.data:
            return self.data[key]
        if optional:
            return None
        raise ProfileError(
            f"{self.source} lacks {self._path(key)}",
            help=f"add `{key}` there (null where it is not known), or write the file anew with `kvlaunch probe --json`",
        )

    def _path(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def _wrong(self, key: str, wanted: str, value: object) -> ProfileError:
        return ProfileError(f"{self.source}: {self._path(key)} is {_kind(value)}; it must be {wanted}")


def _kind(value: object) -> str:
    """A value in few words, however large it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    if isinstance(value, int):
        return str(value) if abs(value) <= _LARGEST else "a number without measure"
    if isinstance(value, str):
        return f'"{value[:40]}…"' if len(value) > 40 else f'"{value}"'
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, Mapping) else str(value)
