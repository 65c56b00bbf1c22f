from __future__ import annotations

import asyncio
from collections.abc import Iterator

from launcher.supervise.settle import settled

GIB = 1 << 30


def readings(*values: int) -> Iterator[list[int]]:
    for value in values:
        yield [value, 5 * GIB]
    while True:
        yield [values[-1], 5 * GIB]


def wait(*values: int, limit: float = 5.0) -> tuple[bool, int]:
    source = readings(*values)
    asked = 0

    def read() -> list[int]:
        nonlocal asked
        asked += 1
        return next(source)

    return asyncio.run(settled(read, gap=0.001, limit=limit)), asked


def test_it_waits_while_memory_is_given_back() -> None:
    assert wait(20 * GIB, 12 * GIB, 4 * GIB, GIB, GIB) == (True, 5)


def test_one_percent_is_still() -> None:
    assert wait(1000 * GIB, 991 * GIB) == (True, 2)


def test_it_does_not_wait_for_ever() -> None:
    assert wait(*(n * GIB for n in range(1, 500)), limit=0.02)[0] is False


def test_without_a_device_there_is_nothing_to_wait_for() -> None:
    assert asyncio.run(settled(list))
