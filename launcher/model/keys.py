"""Typed access to header values, with faults in words: a key that is missing, or holds what it must not."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import ProfileError
from launcher.model.gguf import Skipped, Value, printable

_LARGEST = 1 << 40  # no count in a header is larger: keeps products of a few of them finite


class Keys:
    """The values of one header. Names without a known prefix belong to the architecture: `attention.head_count`."""

    def __init__(self, path: Path, metadata: Mapping[str, Value]) -> None:
        self.path = path
        self._metadata = metadata
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise ProfileError(
                f"{path}: the header does not say what model it is (general.architecture is missing)",
                help="get the file again, or convert it again",
            )
        self.arch = printable(arch)

    def __contains__(self, name: str) -> bool:
        return self._full(name) in self._metadata

    def _full(self, name: str) -> str:
        return name if name.startswith(("general.", "tokenizer.", "split.")) else f"{self.arch}.{name}"

    def value(self, name: str) -> Value | None:
        """The raw value, or None."""
        return self._metadata.get(self._full(name))

    def count(self, name: str, default: int | None = None) -> int:
        """A non-negative integer. Without a default the key must be there."""
        value = self.value(name)
        if value is None:
            if default is None:
                raise self.fault(name, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            if default is not None and isinstance(value, array):
                return default  # a per-layer array, where one number was asked for
            raise self.fault(name, f"is {_shown(value)}; it must be a whole number")
        if not 0 <= value <= _LARGEST:
            raise self.fault(name, f"is {value}, which is absurd")
        return value

    def number(self, name: str, default: float) -> float:
        """A number that may have a fraction."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.fault(name, f"is {_shown(value)}; it must be a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no; old converters wrote 0 and 1."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool | int):
            raise self.fault(name, f"is {_shown(value)}; it must be true or false")
        return bool(value)

    def text(self, name: str, default: str) -> str:
        """A string; here the full name is given."""
        value = self._metadata.get(name)
        return value if isinstance(value, str) else default

    def length(self, name: str) -> int:
        """How many elements an array has, 0 where there is none."""
        value = self.value(name)
        if isinstance(value, Skipped):
            return value.count
        return len(value) if isinstance(value, array) else 0

    def layers(self, name: str, count: int, default: int = 0) -> list[int]:
        """One whole number for each layer: an array of exactly `count`, or one number for all
        (`get_key_or_arr`, src/llama-model-loader.cpp:459)."""
        value = self.value(name)
        if not isinstance(value, array):
            return [self.count(name, default)] * count
        if len(value) != count:
            raise self.fault(name, f"has {len(value)} entries; the model has {count} blocks")
        return self._whole(name, value)

    def pattern(self, name: str) -> list[int] | None:
        """An array of any length, None where the key is missing or no array (`get_arr`, …:351)."""
        value = self.value(name)
        return self._whole(name, value) if isinstance(value, array) else None

    def _whole(self, name: str, value: array[int] | array[float]) -> list[int]:
        numbers = value.tolist()
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number <= _LARGEST:
                raise self.fault(name, f"holds {number!r}; its entries must be whole numbers from 0")
        return [int(number) for number in numbers]

    def fault(self, name: str, what: str) -> ProfileError:
        """An error about one key."""
        return ProfileError(f"{self.path}: {self._full(name)} {what}", help="get the file again, or convert it again")


def _shown(value: Value) -> str:
    if isinstance(value, str):
        return repr(printable(value))
    if isinstance(value, Skipped):
        return f"a list of {value.count} strings"
    return f"a list of {len(value)} numbers" if isinstance(value, array) else repr(value)
