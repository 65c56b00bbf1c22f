"""What the chaos run draws. What it does: tests/engine/supervise/test_chaos.py."""

from __future__ import annotations

from random import Random

from launcher.bench.chaos import _drawn
from launcher.bench.faults import FAULTS


def test_every_fault_comes_and_a_seed_draws_the_same_again() -> None:
    plan = _drawn(Random(5), 300, ())
    assert len(plan) == 300
    assert set(plan) == set(FAULTS)
    assert plan == _drawn(Random(5), 300, ())
    assert plan != _drawn(Random(6), 300, ())


def test_a_short_run_repeats_none_and_what_cannot_be_here_is_left_out() -> None:
    plan = _drawn(Random(5), 10, ("port theft", "cgroup's limit"))
    assert len(set(plan)) == 10
    assert not {"port theft", "cgroup's limit"} & set(_drawn(Random(5), 300, ("port theft", "cgroup's limit")))
