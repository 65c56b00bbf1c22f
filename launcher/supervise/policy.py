"""The restart policy: a death, what class it was, the deaths before it and the clock in; what to do next out. Pure.

Death tallies follow s6-permafailon: deaths are kept as data with their time, policy only reads them. Time is the
monotonic clock's: a jump of the wall clock changes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.supervise.classes import KINDS, ExitClass
from launcher.supervise.spec import LaunchSpec

_GPU_PATIENCE = 120.0
"""A driver that is not loaded yet at boot comes up within two minutes, or a person is needed."""
_SAME_START_FAILURES = 3
"""An unknown failure before readiness, so often in a row, is taken for deterministic."""
_STALLED_STARTS = 2
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Death:
    """One end of the engine that we did not ask for."""

    at: float
    kind: ExitClass
    healthy: float = 0.0
    """How long it had been ready; 0: it never was."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the profile says about restarting."""

    restart: str = "on-failure"
    backoff: tuple[float, ...] = (0.0, 1.0, 5.0, 15.0, 60.0, 300.0)
    stable_after: float = 600.0
    window: float = 3600.0
    limit: int = 10
    fallback: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: LaunchSpec) -> Rules:
        return cls(
            restart=spec.restart,
            backoff=spec.backoff,
            stable_after=spec.stable_after,
            window=spec.tally_window,
            limit=spec.tally_limit,
            fallback=spec.fallback if spec.replan else (),
        )


@dataclass(frozen=True, slots=True)
class Again:
    """Start again after so many seconds, having given up these things."""

    after: float
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A person is needed."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """It ended as it may: nothing to do."""


Decision = Again | GiveUp | Rest


def decide(rules: Rules, deaths: Sequence[Death], given_up: Sequence[str], dice: float) -> Decision:
    """What to do about the last of `deaths`. `dice` in [0, 1) spreads the retries of several instances."""
    last = deaths[-1]
    kind = KINDS[last.kind]
    if last.kind is ExitClass.ENDED and rules.restart != "always":
        return Rest()
    if rules.restart == "never":
        return GiveUp(kind.code or 14, "the profile says not to restart")
    if kind.memory and (left := [step for step in rules.fallback if step not in given_up]):
        return Again(_pause(rules, deaths, dice), (*given_up, left[0]))
    if kind.deterministic:
        return GiveUp(kind.code, "trying again would end the same way")

    recent = [death for death in deaths if death.at > last.at - rules.window]
    if len(recent) >= rules.limit:
        minutes = rules.window / 60
        return GiveUp(14, f"{len(recent)} deaths within {minutes:g} min")
    row = _row_of_failed_starts(deaths)
    if last.kind is ExitClass.GPU_MISSING:
        if row and last.at - row[0].at >= _GPU_PATIENCE:
            return GiveUp(14, f"no device in {_GPU_PATIENCE / 60:g} min")
    elif last.kind is ExitClass.START_STALLED and len(row) >= _STALLED_STARTS:
        return GiveUp(14, f"loading stood still {len(row)} times")
    elif len(row) >= _SAME_START_FAILURES:
        return GiveUp(14, f"{len(row)} starts in a row failed")
    # after a long time of health memory may be there again: what was given up is tried for
    kept = () if last.healthy >= rules.stable_after else tuple(given_up)
    return Again(_pause(rules, deaths, dice), kept)


def _row_of_failed_starts(deaths: Sequence[Death]) -> list[Death]:
    """The deaths at the end, all of the last one's class, before which it was never ready."""
    row: list[Death] = []
    for death in reversed(deaths):
        if death.healthy > 0 or death.kind is not deaths[-1].kind:
            break
        row.insert(0, death)
    return row


def _pause(rules: Rules, deaths: Sequence[Death], dice: float) -> float:
    """The n-th death since the engine was last stable takes the n-th step; a start that failed at least the second."""
    n = 0
    for death in reversed(deaths):
        if n and death.at <= deaths[-1].at - rules.window:
            break
        n += 1
        if death.healthy >= rules.stable_after:
            break
    step = n - 1 if deaths[-1].healthy > 0 else n
    base = rules.backoff[min(step, len(rules.backoff) - 1)]
    return base * (1 + _JITTER * (dice - 0.5))
