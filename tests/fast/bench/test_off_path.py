"""The arithmetic of bench off-path: which ratio a round gives, and its lower bound."""

from __future__ import annotations

import random
from typing import cast

import pytest

from launcher.bench import off_path
from launcher.bench.bare import BareEngine
from launcher.bench.off_path import lower_bound


class Engine:
    """Takes so many seconds to read and to write, each time that it is asked; remembers what it read."""

    def __init__(self, pid: int, read: float, written: float) -> None:
        self.pid, self.takes, self.now = pid, {1: read, off_path._WRITTEN: written}, 0.0
        self.prompts: list[tuple[int, ...]] = []

    def cpu_seconds(self) -> float:
        return self.now

    def complete(self, prompt: list[int], n: int) -> None:
        self.now += self.takes[n]
        self.prompts.append(tuple(prompt))


@pytest.mark.parametrize("seed", range(4))
def test_a_round_is_speed_patched_by_unpatched(seed: int) -> None:
    plain, patched = Engine(1, 1.0, 3.0), Engine(2, 2.0, 1.5)
    context = [7] * 5
    found = off_path._round(cast(BareEngine, plain), cast(BareEngine, patched), context, random.Random(seed))
    assert found == pytest.approx((0.5, 2.0))
    # the same work on both sides, each twice, and no tail read again that the slot still holds
    assert sorted(plain.prompts) == sorted(patched.prompts)
    assert len(set(plain.prompts)) == 2 and all(prompt[:5] == tuple(context) for prompt in plain.prompts)


def test_the_lower_bound_lies_below_the_mean_and_near_it() -> None:
    draw = random.Random(1)
    values = [draw.gauss(1.0, 0.02) for _ in range(12)]
    low = lower_bound(values, draw)
    mean = sum(values) / len(values)
    # of a normal mean: 1.96 standard errors
    assert mean - low == pytest.approx(1.96 * 0.02 / 12**0.5, rel=0.35)
    assert lower_bound([1.0] * 5, draw) == 1.0
