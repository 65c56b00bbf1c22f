"""All rules, in the order of their codes, and the one that a code or a slug means."""

from __future__ import annotations

from launcher.rules import context, devices, engine, kvtypes, memory, missing, serving, speculative, techniques
from launcher.rules.rule import Rule

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *context.RULES,
            *memory.RULES,
            *kvtypes.RULES,
            *techniques.RULES,
            *speculative.RULES,
            *devices.RULES,
            *serving.RULES,
            *engine.RULES,
            *missing.RULES,
        ),
        key=lambda rule: rule.code,
    )
)


def find_rule(name: str) -> Rule | None:
    """By code (KV103, in any case) or by slug."""
    wanted = name.strip()
    return next((rule for rule in RULES if wanted.upper() == rule.code or wanted.lower() == rule.slug), None)
