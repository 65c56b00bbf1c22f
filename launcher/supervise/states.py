"""The state machine of one instance: state and message in, state and effects out. Pure: no clock, no file, no process.

One task (supervisor.py) owns the machine and feeds it; probes, signals, the control socket and timers only send it
messages. Words and states are those of the design: planning, building, starting, loading, ready, degraded, draining,
stopped, backoff, failed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from launcher.supervise.classes import KINDS, ExitClass
from launcher.supervise.policy import Again, Death, GiveUp, Rules, decide


class State(StrEnum):
    PLANNING = "planning"
    BUILDING = "building"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPED = "stopped"
    BACKOFF = "backoff"
    FAILED = "failed"


ALIVE = frozenset({State.STARTING, State.LOADING, State.READY, State.DEGRADED, State.DRAINING})
"""An engine process exists."""
SERVING = frozenset({State.READY, State.DEGRADED})


class Next(StrEnum):
    """What follows when the engine that is being ended has ended."""

    EXIT = "exit"
    AGAIN = "again"
    IDLE = "idle"
    JUDGE = "judge"
    """We ended it for a fault: the restart policy decides."""


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the engine for the first time."""


@dataclass(frozen=True, slots=True)
class Spawned:
    pid: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The launch was planned anew; this is what it does without. Less may not have fitted."""

    given_up: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CannotStart:
    """Nothing was spawned: the port is taken, the executable is not there."""

    kind: ExitClass
    line: str


@dataclass(frozen=True, slots=True)
class Loading:
    """It has shown a first sign of life."""


@dataclass(frozen=True, slots=True)
class Checked:
    """It answers and has generated a token. What it lacks of the plan, in words."""

    shortfalls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """The engine must be ended for this: hung, start-stalled, gpu-missing."""

    kind: ExitClass
    line: str


@dataclass(frozen=True, slots=True)
class Died:
    """The process has ended. `kind` is by its exit and words alone: whether we had asked, the machine knows."""

    kind: ExitClass
    line: str | None
    dice: float = 0.5


class Wish(StrEnum):
    STOP = "stop"
    KILL = "kill"
    RESTART = "restart"
    IDLE = "idle"
    WAKE = "wake"


@dataclass(frozen=True, slots=True)
class Ask:
    wish: Wish
    by: str


class Timer(StrEnum):
    STOP_LIMIT = "stop-limit"
    BACKOFF = "backoff"


@dataclass(frozen=True, slots=True)
class Due:
    timer: Timer


@dataclass(frozen=True, slots=True)
class Switched:
    """A hand-over: another engine serves now. It begins its uptime anew."""

    pid: int


Message = Begin | Spawned | CannotStart | Loading | Checked | Fault | Died | Ask | Due | Switched | Planned


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terminate:
    """TERM, once."""


@dataclass(frozen=True, slots=True)
class Kill:
    pass


@dataclass(frozen=True, slots=True)
class Arm:
    timer: Timer
    after: float


@dataclass(frozen=True, slots=True)
class Disarm:
    timer: Timer


@dataclass(frozen=True, slots=True)
class Finish:
    """The instance is over: this exit code."""

    code: int


Effect = Spawn | Terminate | Kill | Arm | Disarm | Finish


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change while an instance lives."""

    rules: Rules
    stop_timeout: float = 10.0
    strict: bool = False
    linger: bool = False
    """In the background: stay in `failed` after having been ready, so that `status` and clients are answered."""


@dataclass(frozen=True, slots=True)
class Machine:
    state: State = State.PLANNING
    reason: str | None = None
    cause: str = ""
    """What brought it into this state, for the event."""
    next: Next = Next.EXIT
    fault: ExitClass | None = None
    """Why we are ending it, with next = judge."""
    pid: int | None = None
    ready_at: float | None = None
    was_ready: bool = False
    """At any time since the instance began."""
    restarts: int = 0
    next_try: float | None = None
    given_up: tuple[str, ...] = ()
    deaths: tuple[Death, ...] = ()
    last_kind: ExitClass | None = None
    last_line: str | None = None
    code: int | None = None


Step = tuple[Machine, tuple[Effect, ...]]


def step(machine: Machine, message: Message, setting: Setting, now: float) -> Step:
    """One message. What has no meaning in a state changes nothing."""
    match message:
        case Begin() if machine.state in (State.PLANNING, State.BUILDING):
            return _start(machine, "begin")
        case Spawned(pid) if machine.state is State.STARTING:
            return replace(machine, pid=pid), ()
        case Loading() if machine.state is State.STARTING:
            return replace(machine, state=State.LOADING, cause="the engine speaks"), ()
        case Checked(shortfalls) if machine.state in ALIVE - {State.DRAINING}:
            return _checked(machine, shortfalls, setting, now)
        case Planned(given_up) if machine.state is State.STARTING:
            return replace(machine, given_up=given_up), ()
        case Switched(pid) if machine.state in SERVING:
            return replace(machine, pid=pid, ready_at=now, given_up=(), cause="reload"), ()
        case CannotStart(kind, line) if machine.state is State.STARTING:
            return _dead(machine, kind, line, setting, now, dice=0.5)
        case Fault(kind, line) if machine.state in ALIVE - {State.DRAINING}:
            draining = replace(machine, state=State.DRAINING, reason=line, cause=str(kind), next=Next.JUDGE,
                               fault=kind, last_line=line)  # fmt: skip
            return draining, (Terminate(), Arm(Timer.STOP_LIMIT, setting.stop_timeout))
        case Died(kind, line, dice) if machine.state in ALIVE:
            return _died(machine, kind, line, dice, setting, now)
        case Due(Timer.STOP_LIMIT) if machine.state is State.DRAINING:
            return replace(machine, reason="did not end in time: killed"), (Kill(),)
        case Due(Timer.BACKOFF) if machine.state is State.BACKOFF:
            return _start(machine, "backoff is over")
        case Ask(wish, by):
            return _asked(machine, wish, by, setting)
    return machine, ()


def _start(machine: Machine, cause: str, given_up: tuple[str, ...] | None = None) -> Step:
    steps = machine.given_up if given_up is None else given_up
    fresh = replace(machine, state=State.STARTING, reason=None, cause=cause, next=Next.JUDGE, fault=None, pid=None,
                    ready_at=None, next_try=None, given_up=steps, code=None)  # fmt: skip
    return fresh, (Spawn(steps),)


def _checked(machine: Machine, shortfalls: tuple[str, ...], setting: Setting, now: float) -> Step:
    if shortfalls and setting.strict and machine.state not in SERVING:
        return step(machine, Fault(ExitClass.SHORT_OF_PLAN, "; ".join(shortfalls)), setting, now)
    state = State.DEGRADED if shortfalls else State.READY
    reason = "; ".join(shortfalls) or None
    if machine.state is state and machine.reason == reason:
        return machine, ()
    ready_at = now if machine.ready_at is None else machine.ready_at
    return (
        replace(machine, state=state, reason=reason, cause=reason or "checked", ready_at=ready_at, was_ready=True),
        (),
    )


def _asked(machine: Machine, wish: Wish, by: str, setting: Setting) -> Step:
    here = machine.state
    if wish is Wish.KILL:
        if here in ALIVE:
            dying = replace(machine, state=State.DRAINING, reason="killed", cause=by, next=Next.EXIT, code=130)
            return dying, (Disarm(Timer.STOP_LIMIT), Kill())
        return _over(machine, by, 130)
    if wish is Wish.STOP:
        if here is State.DRAINING:
            return replace(machine, next=Next.EXIT, cause=by), ()
        if here in ALIVE:
            return _drain(machine, Next.EXIT, by, setting)
        return _over(machine, by, 0)
    if wish is Wish.RESTART:
        fresh = replace(machine, deaths=(), given_up=())  # a person has looked: the tally begins anew
        if here is State.DRAINING:
            return (machine if machine.next is Next.EXIT else replace(fresh, next=Next.AGAIN)), ()
        if here in ALIVE:
            return _drain(fresh, Next.AGAIN, by, setting)
        again, effects = _start(replace(fresh, restarts=machine.restarts + 1), by)
        return again, (Disarm(Timer.BACKOFF), *effects)
    if wish is Wish.IDLE and here in SERVING:
        return _drain(machine, Next.IDLE, by, setting)
    if wish is Wish.WAKE and here is State.STOPPED and machine.next is Next.IDLE:
        return _start(machine, by)
    return machine, ()


def _drain(machine: Machine, then: Next, by: str, setting: Setting) -> Step:
    draining = replace(machine, state=State.DRAINING, reason=None, cause=by, next=then)
    return draining, (Terminate(), Arm(Timer.STOP_LIMIT, setting.stop_timeout))


def _over(machine: Machine, by: str, code: int) -> Step:
    ended = replace(
        machine, state=State.STOPPED, reason=None, cause=by, next=Next.EXIT, pid=None, next_try=None, code=code
    )
    return ended, (Disarm(Timer.BACKOFF), Finish(code))


def _died(machine: Machine, kind: ExitClass, line: str | None, dice: float, setting: Setting, now: float) -> Step:
    if machine.state is State.DRAINING and machine.next is not Next.JUDGE:
        gone = replace(machine, pid=None, ready_at=None, last_kind=ExitClass.STOPPED_BY_US, last_line=None)
        clear = Disarm(Timer.STOP_LIMIT)
        if machine.next is Next.AGAIN:
            again, effects = _start(replace(gone, restarts=machine.restarts + 1), machine.cause)
            return again, (clear, *effects)
        if machine.next is Next.IDLE:
            return replace(gone, state=State.STOPPED, reason="idle: the next connection starts it"), (clear,)
        ended, effects = _over(gone, machine.cause, machine.code or 0)
        return ended, (clear, *effects)
    if machine.state is State.DRAINING and machine.fault is not None:
        kind, line = machine.fault, machine.last_line or line
    after, effects = _dead(machine, kind, line, setting, now, dice)
    return after, (Disarm(Timer.STOP_LIMIT), *effects)


def _dead(machine: Machine, kind: ExitClass, line: str | None, setting: Setting, now: float, dice: float) -> Step:
    healthy = max(now - machine.ready_at, 1e-3) if machine.ready_at is not None else 0.0
    keep = setting.rules.limit + 1
    deaths = (*machine.deaths, Death(now, kind, healthy))[-keep:]
    gone = replace(machine, pid=None, ready_at=None, deaths=deaths, last_kind=kind, last_line=line, fault=None)
    match decide(setting.rules, deaths, machine.given_up, dice):
        case Again(after, given_up):
            gone = replace(gone, restarts=machine.restarts + 1)
            if after <= 0:
                return _start(gone, str(kind), given_up)
            waiting = replace(gone, state=State.BACKOFF, reason=_words(kind, line), cause=str(kind),
                              next_try=now + after, given_up=given_up)  # fmt: skip
            return waiting, (Arm(Timer.BACKOFF, after),)
        case GiveUp(code, why):
            failed = replace(gone, state=State.FAILED, reason=_words(kind, line, why), cause=str(kind), code=code)
            return failed, () if setting.linger and machine.was_ready else (Finish(code),)
        case _:
            return _over(gone, "the engine ended by itself", 0)


def _words(kind: ExitClass, line: str | None, why: str = "") -> str:
    """The reason for people: class, the engine's own line, why we stopped trying, and what to do."""
    text = f"{kind}: {line}" if line else str(kind)
    if why:
        text += f" ({why}); {KINDS[kind].help}" if KINDS[kind].help else f" ({why})"
    return text
