"""The storage types of the cache, and lists of layers: `"q8_0:q4_0"`, `"0-9,20"`. Nothing here knows a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

CACHE_TYPES = (
    "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",  # upstream: common/arg.cpp kv_cache_types
    "turbo4", "turbo3", "turbo2",  # patches 0073, 0074
)  # fmt: skip

_PLAIN = frozenset({"f32", "f16", "bf16"})
_LAST_LAYER = 511  # LLAMA_MAX_LAYERS - 1: src/llama-hparams.h:11


@dataclass(frozen=True, slots=True)
class Tier:
    """The storage type of K and of V."""

    k: str
    v: str

    @property
    def quantized(self) -> bool:
        return self.k not in _PLAIN or self.v not in _PLAIN

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"{self.k}:{self.v}"


def parse_tier(text: str) -> Tier:
    """`"q8_0:q4_0"` is K:V; one name means both. Raises ValueError that names the part it does not know."""
    parts = text.strip().lower().split(":")
    if len(parts) > 2:
        raise ValueError(f'{text!r} has more than a K and a V part; write "q8_0:q4_0" (K:V), or one name for both')
    for part in parts:
        if part not in CACHE_TYPES:
            raise ValueError(f"{part!r} is no cache type; known are {', '.join(CACHE_TYPES)}")
    return Tier(parts[0], parts[-1])


@dataclass(frozen=True, slots=True)
class Layers:
    """A set of layers, kept as the ranges (first and last) that were written."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, layer: int) -> bool:
        return any(first <= layer <= last for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({layer for first, last in self.ranges for layer in range(first, last + 1)}))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges)


def parse_layers(text: str) -> Layers:
    """`"0-9,20"`; the empty string is no layer. Raises ValueError."""
    ranges = []
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise ValueError(f'{part.strip()!r} is no layer or range of layers; write numbers from 0, such as "0-9,20"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {part.strip()!r} ends before it begins")
        if last > _LAST_LAYER:
            raise ValueError(f"no model has a layer {last}")
        ranges.append((first, last))
    return Layers(tuple(ranges))
