"""Small reads from /proc and /sys below a root that is handed in, so that a recorded tree can stand for a box.

A file may be missing, empty, garbage, forbidden, or vanish between a listing and a read: each is None, never an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_LIMIT = 1 << 22  # bytes of one file: /proc/cpuinfo of a 512-thread server has 1 MiB
_LARGEST = 1 << 50  # a pebibyte: a larger number is garbage, or a kernel's way to write "no limit"
_NUMBER = re.compile(r"\s*(\d{1,19})([ \t]*kB)?\s*", re.ASCII)
_HEX = re.compile(r"\s*0x([0-9a-fA-F]{1,16})\s*", re.ASCII)


class Tree:
    """Reads below `root`. Paths are given as on the live box: `/sys/class/drm`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = os.path.realpath(root)

    @property
    def live(self) -> bool:
        """These are this process's own /proc and /sys, not a recording."""
        return self.root == "/"

    def _at(self, path: str) -> str:
        return path if self.live else self.root + path

    def text(self, path: str) -> str | None:
        """The whole file (4 MiB at most), bytes that are no UTF-8 replaced."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "replace")

    def data(self, path: str) -> bytes | None:
        """The whole file (4 MiB at most)."""
        try:
            # O_NONBLOCK: a FIFO or a terminal where a file should be must not hold us up
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            parts: list[bytes] = []
            size = 0
            while size < _LIMIT and (part := os.read(descriptor, _LIMIT - size)):
                parts.append(part)
                size += len(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def line(self, path: str) -> str | None:
        """The file's first line that has anything, without blanks and NULs at its ends; None when there is none."""
        for line in (self.text(path) or "").splitlines():
            if stripped := line.strip(" \t\r\n\0"):
                return stripped
        return None

    def number(self, path: str) -> int | None:
        """A file that holds one whole number, decimal or 0x…; anything else is None."""
        return whole(self.text(path))

    def pairs(self, path: str) -> dict[str, int]:
        """`key value` or `key: value kB` lines; kB become bytes, what does not read is left out."""
        found: dict[str, int] = {}
        for line in (self.text(path) or "").splitlines():
            key, _, rest = line.partition(":") if ":" in line else line.partition(" ")
            value = whole(rest)
            if value is not None:
                found[key.strip()] = value
        return found

    def names(self, path: str) -> list[str]:
        """What a directory lists, sorted; an empty list when it cannot be read."""
        try:
            with os.scandir(self._at(path)) as entries:
                return sorted(entry.name for entry in entries)
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        """There is something at that path."""
        return os.access(self._at(path), os.F_OK)

    def resolve(self, path: str) -> str | None:
        """Where a chain of links ends, as a path below the root; None when it is broken or leads out of the root."""
        try:
            real = os.path.realpath(self._at(path), strict=True)
        except (OSError, ValueError):
            return None
        if self.live:
            return real
        return real[len(self.root) :] if real.startswith(self.root + "/") else None


def whole(text: str | None) -> int | None:
    """A whole number as kernels write it: decimal, kB (turned into bytes) or 0x…; None where it is none."""
    if text is None:
        return None
    if match := _NUMBER.fullmatch(text):
        value = int(match[1]) * (1024 if match[2] else 1)
    elif match := _HEX.fullmatch(text):
        value = int(match[1], 16)
    else:
        return None
    return value if value <= _LARGEST else None


def index_list(text: str | None) -> frozenset[int]:
    """A kernel list such as `0-3,8,10-11`. What does not read is left out; no range may be absurdly long."""
    found: set[int] = set()
    for part in (text or "").replace("\n", ",").split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?(?::\d+/\d+)?\s*", part, re.ASCII)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            if last - first < 65536:
                found.update(range(first, last + 1))
    return frozenset(found)
