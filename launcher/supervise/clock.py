"""Times for people, by the wall clock. It may jump: a board without a battery learns the year from the network.

So nothing is decided by it, and a moment that lies back is told by the clock as it stands now.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

_JUMP = 1.0
"""Seconds by which the wall clock may drift from the time since boot before that counts as a jump."""


def wall() -> float:
    """The one place where it is read."""
    return time.time()


def now() -> str:
    """RFC 3339, to the millisecond."""
    return _text(wall(), "milliseconds")


def coming(at: float) -> str:
    """A time of the monotonic clock that lies ahead."""
    return _text(wall() + at - time.monotonic(), "seconds")


class Moment:
    """Now, to be told later."""

    def __init__(self) -> None:
        self._wall = wall()
        self._boot = _since_boot()

    def __str__(self) -> str:
        ahead = (wall() - self._wall) - (_since_boot() - self._boot)
        return _text(self._wall + (ahead if abs(ahead) > _JUMP else 0.0), "milliseconds")


def _since_boot() -> float:
    """Goes on while the box sleeps, as the wall clock does and the monotonic one does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _text(at: float, precision: str) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
