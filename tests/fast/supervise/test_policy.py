from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervise.classes import KINDS, ExitClass
from launcher.supervise.policy import Again, Death, GiveUp, Rest, Rules, decide

C = ExitClass
DAY = 86400.0


def after(*deaths: Death, rules: Rules | None = None, given_up: tuple[str, ...] = ()) -> Again | GiveUp | Rest:
    return decide(rules or Rules(), deaths, given_up, 0.5)


def test_the_first_crash_of_a_healthy_engine_is_restarted_at_once() -> None:
    assert after(Death(1000, C.CRASH, healthy=700)) == Again(0.0)
    assert after(Death(1000, C.CRASH, healthy=3)) == Again(0.0)


def test_crash_after_crash_waits_longer() -> None:
    deaths = [Death(100.0 * n, C.CRASH, healthy=50) for n in range(8)]
    pauses = [after(*deaths[: n + 1]) for n in range(8)]
    assert pauses == [Again(p) for p in (0.0, 1.0, 5.0, 15.0, 60.0, 300.0, 300.0, 300.0)]


def test_ten_minutes_of_health_begin_anew() -> None:
    shaky = [Death(10.0 * n, C.CRASH, healthy=5) for n in range(4)]
    assert after(*shaky, Death(1000, C.CRASH, healthy=601)) == Again(0.0)
    assert after(*shaky, Death(1000, C.CRASH, healthy=601), Death(1010, C.CRASH, healthy=5)) == Again(1.0)


def test_a_tally_in_the_window_needs_a_person() -> None:
    deaths = [Death(60.0 * n, C.CRASH, healthy=30) for n in range(10)]
    assert isinstance(after(*deaths[:9]), Again)
    assert after(*deaths) == GiveUp(14, "10 deaths within 60 min")
    spread = [Death(700.0 * n, C.CRASH, healthy=650) for n in range(50)]
    assert after(*spread) == Again(0.0)


def test_what_will_fail_the_same_way_is_not_tried_again() -> None:
    codes = {kind: after(Death(1, kind)) for kind in C if KINDS[kind].deterministic}
    assert {kind: decision.code for kind, decision in codes.items() if isinstance(decision, GiveUp)} == {
        C.BAD_OPTION: 13, C.NOT_EXECUTABLE: 13, C.MODEL_MISSING: 10, C.MODEL_CORRUPT: 13, C.PORT_TAKEN: 16,
        C.OOM_LOAD: 11, C.ADDRESS_UNUSABLE: 10, C.ILLEGAL_INSTRUCTION: 13, C.SHORT_OF_PLAN: 13,
    }  # fmt: skip


def test_memory_walks_the_list_of_what_may_be_given_up() -> None:
    rules = Rules(fallback=("residency", "tier"))
    assert after(Death(1, C.OOM_LOAD), rules=rules) == Again(1.0, ("residency",))
    second = after(Death(1, C.OOM_LOAD), Death(2, C.OOM_LOAD), rules=rules, given_up=("residency",))
    assert second == Again(5.0, ("residency", "tier"))
    assert after(Death(1, C.OOM_LOAD), rules=rules, given_up=("residency", "tier")) == GiveUp(
        11, "trying again would end the same way"
    )
    assert after(Death(1, C.OOM_RUNTIME, healthy=9), rules=rules) == Again(0.0, ("residency",))


def test_after_long_health_what_was_given_up_is_tried_for_again() -> None:
    assert after(Death(1, C.CRASH, healthy=9), given_up=("tier",)) == Again(0.0, ("tier",))
    assert after(Death(9999, C.CRASH, healthy=601), given_up=("tier",)) == Again(0.0, ())


def test_nothing_is_given_up_that_the_profile_does_not_list() -> None:
    assert after(Death(1, C.OOM_RUNTIME, healthy=9)) == Again(0.0, ())


def test_a_missing_gpu_is_waited_for_at_boot_for_two_minutes() -> None:
    row = [Death(t, C.GPU_MISSING) for t in (5.0, 8.0, 15.0, 35.0)]
    assert isinstance(after(*row), Again)
    assert after(*row, Death(126.0, C.GPU_MISSING)) == GiveUp(14, "no device in 2 min")


def test_an_unknown_failure_before_readiness_is_tried_three_times() -> None:
    assert after(Death(1, C.CRASH)) == Again(1.0)
    assert isinstance(after(Death(1, C.CRASH), Death(3, C.CRASH)), Again)
    assert after(Death(1, C.CRASH), Death(3, C.CRASH), Death(9, C.CRASH)) == GiveUp(14, "3 starts in a row failed")


def test_never_and_always() -> None:
    assert after(Death(1, C.CRASH, healthy=1), rules=Rules(restart="never")) == GiveUp(
        14, "the profile says not to restart"
    )
    assert after(Death(1, C.ENDED, healthy=1)) == Rest()
    assert after(Death(1, C.ENDED, healthy=1), rules=Rules(restart="always")) == Again(0.0)


deaths_in_order = st.lists(
    st.tuples(st.floats(0.1, 5000), st.sampled_from(list(C)), st.sampled_from([0.0, 5.0, 700.0])),
    min_size=1,
    max_size=40,
).map(
    lambda rows: [Death(sum(r[0] for r in rows[: n + 1]), kind, healthy) for n, (_, kind, healthy) in enumerate(rows)]
)


@given(deaths_in_order, st.floats(0, 0.999))
def test_no_pause_is_longer_than_the_last_step_and_none_negative(deaths: list[Death], dice: float) -> None:
    decision = decide(Rules(), deaths, (), dice)
    if isinstance(decision, Again):
        assert 0 <= decision.after <= 300 * 1.1
    if isinstance(decision, GiveUp):
        assert decision.code in range(10, 17)


@given(st.lists(st.sampled_from(list(C)), min_size=1, max_size=1), st.floats(0, 0.999))
def test_a_fault_that_repeats_is_given_up_in_bounded_time(kinds: list[ExitClass], dice: float) -> None:
    """No loop for nights: the same fault, again and again right after the start, ends in a decision for a person."""
    clock, deaths = 0.0, []
    for _ in range(200):
        deaths.append(Death(clock, kinds[0]))
        decision = decide(Rules(), deaths, (), dice)
        if not isinstance(decision, Again):
            return
        clock += decision.after + 1.0
    raise AssertionError(f"{kinds[0]} is restarted for ever")
