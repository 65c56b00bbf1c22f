"""Wait until a device's memory is given back: the driver frees an ended engine's only some time after its exit.

A plan or a start that reads the free memory too early finds too little and fails for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

_GAP = 0.05
_SAME = 0.01
_LIMIT = 10.0

Reader = Callable[[], Sequence[int]]
"""Bytes in use, one number a device; nothing where they can't be read."""


async def settled(read: Reader, *, limit: float = _LIMIT, gap: float = _GAP) -> bool:
    """Until two readings in a row are within 1 % of each other. False when the limit passed first."""
    end = time.monotonic() + limit
    before = read()
    while before:
        await asyncio.sleep(gap)
        after = read()
        if len(after) == len(before) and all(map(_near, before, after)):
            return True
        if time.monotonic() >= end:
            return False
        before = after
    return True  # nothing to read: nothing to wait for


def _near(before: int, after: int) -> bool:
    return abs(after - before) <= _SAME * max(before, after)


def nvml_reader() -> Reader | None:
    """None where there is no NVIDIA driver (or no binding for it)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None

    def read() -> list[int]:
        try:
            return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
        except pynvml.NVMLError:
            return []

    return read
