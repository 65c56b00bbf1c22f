"""What a rule is: a small function with everything a person is told about it, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from launcher.diagnostic import Severity
from launcher.rules.case import Case


class Needs(StrEnum):
    """What a rule has to know beside the profile; without it, the rule is listed as skipped."""

    PROFILE = "profile"
    MODEL = "model"
    """The model's header, and so the plan."""


class Act(StrEnum):
    """What the engine would do if nobody said anything."""

    REFUSE = "refuse"
    """It ends with a message."""
    CRASH = "crash"
    """It dies without one: an assertion, a signal."""
    CHANGE = "change"
    """It runs with something else than was asked."""
    IGNORE = "ignore"
    """It runs as if the key were not there."""
    CORRUPT = "corrupt"
    """It runs and computes nonsense."""
    OURS = "ours"
    """It would do as told: the rule is kvlaunch's own (its contract, safety, supervision)."""


@dataclass(frozen=True, slots=True)
class Found:
    """One finding: which key, and what, with the user's own values. Empty help: the rule's own."""

    key: str
    message: str
    help: str = ""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A profile, and in words what else is given (tests/fast/rules/situations.py knows the words)."""

    profile: str
    given: tuple[str, ...] = ()


Finder = Callable[[Case], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One compose conflict.

    why      what the engine would do, and where that is written in its source or was seen
    cost     what it costs to ignore it
    help     what to write instead, where no finding says it better
    example  a profile that has it; `counter`: its mended sibling, which has not
    """

    code: str
    slug: str
    severity: Severity
    act: Act
    why: str
    cost: str
    help: str
    example: Example
    counter: Example
    needs: Needs
    find: Finder = field(repr=False)


def rule(
    code: str,
    slug: str,
    severity: Severity,
    act: Act,
    *,
    why: str,
    cost: str,
    example: Example,
    counter: Example,
    help: str = "",
    needs: Needs = Needs.PROFILE,
) -> Callable[[Finder], Rule]:
    """Makes a rule of the function that finds it."""
    return lambda find: Rule(code, slug, severity, act, why, cost, help, example, counter, needs, find)


def rules_of(module: dict[str, object]) -> tuple[Rule, ...]:
    """The rules that a module defines: none can be forgotten in a list."""
    return tuple(value for value in module.values() if isinstance(value, Rule))
