from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervise import states as s
from launcher.supervise.classes import ExitClass
from launcher.supervise.policy import Rules
from launcher.supervise.states import SERVING, Machine, State, Timer, Wish, step

SETTING = s.Setting(Rules())
C = ExitClass


def drive(*messages: s.Message, setting: s.Setting = SETTING, machine: Machine | None = None) -> s.Step:
    machine = machine or Machine()
    effects: tuple[s.Effect, ...] = ()
    for n, message in enumerate(messages):
        machine, effects = step(machine, message, setting, float(n))
    return machine, effects


UP = (s.Begin(), s.Spawned(42), s.Loading(), s.Checked())


def test_the_way_up() -> None:
    machine, _ = drive(*UP)
    assert (machine.state, machine.pid, machine.reason) == (State.READY, 42, None)


def test_short_of_the_plan_is_degraded_or_with_strict_a_failure() -> None:
    short = s.Checked(("slots: planned 4, the engine has 2",))
    machine, _ = drive(*UP[:3], short)
    assert machine.state is State.DEGRADED
    assert machine.reason == "slots: planned 4, the engine has 2"
    strict = replace(SETTING, strict=True)
    machine, effects = drive(*UP[:3], short, setting=strict)
    assert machine.state is State.DRAINING
    assert effects[0] == s.Terminate()
    machine, effects = step(machine, s.Died(C.CRASH, None), strict, 9.0)
    assert machine.state is State.FAILED
    assert machine.code == 13
    assert machine.reason is not None
    assert machine.reason.startswith("short-of-plan: slots: planned 4")
    assert s.Finish(13) in effects


def test_degraded_and_ready_again() -> None:
    machine, _ = drive(*UP, s.Checked(("does not answer",)), s.Checked())
    assert machine.state is State.READY
    assert machine.ready_at == 3.0  # the uptime goes on


def test_a_crash_is_restarted_at_once_and_counted() -> None:
    machine, effects = drive(*UP, s.Died(C.CRASH, "killed by SIGKILL"))
    assert (machine.state, machine.restarts) == (State.STARTING, 1)
    assert effects[-1] == s.Spawn()


def test_the_second_crash_waits() -> None:
    machine, effects = drive(*UP, s.Died(C.CRASH, "x"), *UP[1:], s.Died(C.CRASH, "x"))
    assert machine.state is State.BACKOFF
    assert machine.next_try is not None
    assert s.Arm(Timer.BACKOFF, 1.0) in effects
    machine, effects = step(machine, s.Due(Timer.BACKOFF), SETTING, 99.0)
    assert effects == (s.Spawn(),)


def test_stop_is_one_term_and_a_kill_at_the_limit() -> None:
    machine, effects = drive(*UP, s.Ask(Wish.STOP, "down"))
    assert machine.state is State.DRAINING
    assert effects == (s.Terminate(), s.Arm(Timer.STOP_LIMIT, 10.0))
    machine, effects = step(machine, s.Ask(Wish.STOP, "down again"), SETTING, 5.0)
    assert s.Terminate() not in effects
    machine, effects = step(machine, s.Due(Timer.STOP_LIMIT), SETTING, 14.0)
    assert effects == (s.Kill(),)
    machine, effects = step(machine, s.Died(C.CRASH, None), SETTING, 14.1)
    assert machine.state is State.STOPPED
    assert s.Finish(0) in effects


def test_the_second_interrupt_kills() -> None:
    machine, effects = drive(*UP, s.Ask(Wish.STOP, "^C"), s.Ask(Wish.KILL, "^C"))
    assert s.Kill() in effects
    machine, effects = step(machine, s.Died(C.CRASH, None), SETTING, 9.0)
    assert effects[-1] == s.Finish(130)


def test_a_port_that_is_taken_ends_it_with_16() -> None:
    machine, effects = drive(s.Begin(), s.CannotStart(C.PORT_TAKEN, "port 1 is taken by pid 2 (x)"))
    assert machine.state is State.FAILED
    assert effects == (s.Finish(16),)


def test_in_the_background_failed_stays_to_be_seen_once_it_had_been_ready() -> None:
    lingering = replace(SETTING, linger=True)
    machine, effects = drive(*UP, s.Died(C.ILLEGAL_INSTRUCTION, None), setting=lingering)
    assert (machine.state, effects) == (State.FAILED, (s.Disarm(Timer.STOP_LIMIT),))
    machine, effects = step(machine, s.Ask(Wish.RESTART, "restart"), lingering, 50.0)
    assert machine.state is State.STARTING
    machine, effects = drive(*UP[:3], s.Died(C.ILLEGAL_INSTRUCTION, None), setting=lingering)
    assert effects[-1] == s.Finish(13)


def test_a_hang_is_judged_as_a_hang_whatever_the_signal_was() -> None:
    machine, effects = drive(*UP, s.Fault(C.HUNG, "nothing moves"), s.Died(C.CRASH, "killed by SIGKILL"))
    assert machine.deaths[-1].kind is C.HUNG
    assert machine.last_line == "nothing moves"
    assert effects[-1] == s.Spawn()


def test_restart_forgets_the_tally() -> None:
    machine, _ = drive(*UP, s.Died(C.CRASH, "x"), *UP[1:], s.Ask(Wish.RESTART, "restart"))
    machine, effects = step(machine, s.Died(C.ENDED, None), SETTING, 9.0)
    assert machine.deaths == ()
    assert effects[-1] == s.Spawn()


def test_idle_sleeps_and_wakes() -> None:
    machine, _ = drive(*UP, s.Ask(Wish.IDLE, "idle"), s.Died(C.ENDED, None))
    assert machine.state is State.STOPPED
    assert machine.code is None
    machine, effects = step(machine, s.Ask(Wish.WAKE, "a connection"), SETTING, 100.0)
    assert effects == (s.Spawn(),)


messages = st.one_of(
    st.just(s.Begin()),
    st.just(s.Spawned(7)),
    st.just(s.Loading()),
    st.builds(s.Checked, st.sampled_from([(), ("a",), ("a", "b")])),
    st.builds(s.CannotStart, st.sampled_from([C.PORT_TAKEN, C.CRASH]), st.just("x")),
    st.builds(s.Fault, st.sampled_from([C.HUNG, C.START_STALLED, C.GPU_MISSING]), st.just("x")),
    st.builds(s.Died, st.sampled_from(list(C)), st.sampled_from([None, "x"]), st.floats(0, 0.999)),
    st.builds(s.Ask, st.sampled_from(list(Wish)), st.just("test")),
    st.builds(s.Due, st.sampled_from(list(Timer))),
)
settings_ = st.builds(s.Setting, st.just(Rules()), st.just(10.0), st.booleans(), st.booleans())


@given(st.lists(st.tuples(messages, st.floats(0, 100)), max_size=60), settings_)
def test_whatever_comes_it_is_never_stuck(script: list[tuple[s.Message, float]], setting: s.Setting) -> None:
    """Every state in which the instance is not over has something under way that leads out of it."""
    machine, clock = step(Machine(), s.Begin(), setting, 0.0)[0], 0.0
    alive, armed, finished = False, set[Timer](), False
    spawning = True
    for message, pause in script:
        clock += pause
        if isinstance(message, s.Spawned | s.CannotStart) and (alive or not spawning):
            continue  # the shell says one of them, once for each Spawn
        if isinstance(message, s.Loading | s.Checked | s.Fault) and not alive:
            continue  # no process, so nobody to say so
        if isinstance(message, s.Died) and not alive and machine.state is not State.DRAINING:
            continue
        if isinstance(message, s.Due) and message.timer not in armed:
            continue
        if isinstance(message, s.Spawned):
            alive, spawning = True, False
        if isinstance(message, s.Died | s.CannotStart):
            alive = spawning = False
        if isinstance(message, s.Due):
            armed.discard(message.timer)
        machine, effects = step(machine, message, setting, clock)
        for effect in effects:
            if isinstance(effect, s.Spawn):
                assert not alive, "two engines"
                spawning = True
            elif isinstance(effect, s.Arm):
                armed.add(effect.timer)
            elif isinstance(effect, s.Disarm):
                armed.discard(effect.timer)
            elif isinstance(effect, s.Finish):
                finished = True
        if finished:
            assert machine.state in (State.STOPPED, State.FAILED)
            assert not alive
            return
        if machine.state is State.BACKOFF:
            assert Timer.BACKOFF in armed
        if machine.state is State.DRAINING:
            if not alive:  # the shell answers a Terminate without a process with Died
                spawning = False
            assert Timer.STOP_LIMIT in armed or machine.reason is not None
        if machine.state in SERVING:
            assert machine.ready_at is not None
        if machine.state in (State.STARTING, State.LOADING):
            assert alive or spawning
        if machine.state is State.FAILED:
            assert setting.linger
            assert machine.code
        if machine.state is State.STOPPED:
            assert machine.next is s.Next.IDLE  # waits for a connection


def test_every_state_of_a_start_can_be_reached() -> None:
    seen = {State.PLANNING, State.BUILDING}  # the command line's, before the supervisor begins
    for script in (
        (*UP, s.Checked(("x",)), s.Ask(Wish.STOP, "down"), s.Died(C.ENDED, None)),
        (*UP[:3], s.Died(C.CRASH, "x")),
        (*UP[:3], s.Died(C.BAD_OPTION, "x")),
    ):
        machine = Machine()
        for n, message in enumerate(script):
            machine, _ = step(machine, message, SETTING, float(n))
            seen.add(machine.state)
    assert seen == set(State)
