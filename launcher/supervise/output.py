"""Reads the engine's log pipe: as fast as it comes, without disk work, and the rest of it once the engine has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

_CHUNK = 1 << 15
"""Small, so that timers and probes have their turn while a flood comes in."""
_LONGEST = 1 << 16
"""A line without end is cut into pieces of this size."""


class Output:
    """Calls `on_line` with each raw line, in the event loop."""

    def __init__(self, descriptor: int, on_line: Callable[[bytes], None]) -> None:
        self._descriptor: int | None = descriptor
        self._on_line = on_line
        self._rest = b""
        asyncio.get_running_loop().add_reader(descriptor, self._readable)

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """One chunk; False when nothing more is there just now."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._on_line(line)
        while len(self._rest) > _LONGEST:
            self._on_line(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        return True

    def drain(self) -> None:
        """What is still in the pipe after the end. A grandchild that holds it open does not hold us."""
        for _ in range(64):
            if not self._read():
                break
        self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        if self._rest.strip():
            rest, self._rest = self._rest, b""
            self._on_line(rest)
