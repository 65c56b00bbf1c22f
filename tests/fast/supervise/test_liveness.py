"""How long an engine at work may stand still, without one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervise.liveness import Patience


def test_the_limit_grows_with_the_longest_batch() -> None:
    patience = Patience(60.0, 10.0, now=0.0)
    for at in (1.0, 9.0, 10.0):
        patience.move(at)
    assert patience.limit == 80.0
    assert patience.moved == 10.0


def test_what_was_no_batch_teaches_nothing() -> None:
    """Neither the time before the first work, nor an idle night, nor a silence."""
    patience = Patience(60.0, 10.0, now=0.0)
    patience.move(500.0)
    patience.look_away()
    patience.move(1000.0)
    patience.rest(9000.0)
    patience.move(9500.0)
    assert patience.limit == 60.0


def test_idle_time_and_lost_time_are_no_standstill() -> None:
    patience = Patience(60.0, 10.0, now=0.0)
    patience.rest(500.0)
    assert patience.moved == 500.0
    patience.forgive(30.0)
    assert patience.moved == 530.0


def test_without_a_factor_it_stays_as_it_was_written() -> None:
    patience = Patience(5.0, 0.0, now=0.0)
    patience.move(1.0)
    patience.move(100.0)
    assert patience.limit == 5.0


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans())), st.floats(0, 100))
def test_it_never_falls(steps: list[tuple[float, bool]], factor: float) -> None:
    patience, now, before = Patience(60.0, factor, now=0.0), 0.0, 60.0
    for pause, works in steps:
        now += pause
        if works:
            patience.move(now)
        else:
            patience.look_away()
        assert patience.limit >= before
        before = patience.limit
