"""A brake for an engine that writes too much: lines beyond a rate are counted, not kept, errors last of all."""

from __future__ import annotations

import re

_LINES = 2000
"""A second. The engine writes some 200 at its start and 20 for a request; one costs us 20 µs."""
_GRAVE = re.compile(rb"error|assert|abort|terminate", re.IGNORECASE)


class Brake:
    def __init__(self) -> None:
        self._second = 0
        self._seen = 0
        self.left_out = 0
        """Since it was last asked for (`take`)."""

    def lets_pass(self, raw: bytes, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._seen = int(now), 0
        self._seen += 1
        if self._seen <= _LINES or (self._seen <= 2 * _LINES and _GRAVE.search(raw)):
            return True
        self.left_out += 1
        return False

    def take(self) -> int:
        """How many were left out since the last call."""
        count, self.left_out = self.left_out, 0
        return count
