"""Compose conflicts: one function a rule, grouped by topic; data in, diagnostics out."""

from __future__ import annotations

from typing import TYPE_CHECKING

# The supervisor asks launcher.rules.active, and must not pay for profiles and plans when it does.
if TYPE_CHECKING:
    from launcher.diagnostic import Diagnostic
    from launcher.engine.capability import Capability
    from launcher.machine.types import Machine
    from launcher.model.shape import ModelShape
    from launcher.plan.plan import Plan
    from launcher.profile.schema import Profile
    from launcher.rules.case import Files


def check(
    profile: Profile,
    shape: ModelShape | None,
    machine: Machine,
    capability: Capability,
    plan: Plan | None,
    files: Files | None = None,
) -> tuple[tuple[Diagnostic, ...], tuple[str, ...]]:
    """Hold every rule against one case: what was found, and the rules that had to be skipped (no model yet).

    `files`: what was seen of the files that the profile names (launcher/rules/files.py); None: nothing was looked at.
    """
    from launcher.diagnostic import Diagnostic
    from launcher.rules.book import RULES
    from launcher.rules.case import Case, Files
    from launcher.rules.rule import Needs

    case = Case(profile, machine, capability, shape, plan, files or Files())
    found: list[Diagnostic] = []
    skipped: list[str] = []
    for rule in RULES:
        if rule.needs is Needs.MODEL and (shape is None or plan is None):
            skipped.append(rule.code)
            continue
        for one in rule.find(case):
            place = profile.nearest_place(one.key)
            severity = one.severity or rule.severity
            help = one.help or rule.help
            message = one.message if place else f"{one.message} (from --set)"
            found.append(Diagnostic(rule.code, rule.slug, severity, one.key, message, rule.why, help, place))
    found.sort(
        key=lambda one: (one.place.file, one.place.line, one.place.column, one.rule) if one.place else ("", 0, 0, "")
    )
    return tuple(found), tuple(skipped)
