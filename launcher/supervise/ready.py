"""Whether the engine is what was planned: its own answers against the expectation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.rules.active import Seen, inactive
from launcher.supervise.lines import Facts
from launcher.supervise.spec import Expected


@dataclass(frozen=True, slots=True)
class Verdict:
    shortfalls: tuple[str, ...] = ()
    """In words for a person: what was planned and what is."""
    gpu_missing: bool = False
    """A device is planned and nothing is on it: never ready, whatever else holds."""


def compare(
    expected: Expected,
    props: Mapping[str, Any],
    slots: Sequence[Mapping[str, Any]],
    facts: Facts,
    shown: Mapping[str, bool],
) -> Verdict:
    short: list[str] = []

    def check(what: str, planned: object, real: object) -> None:
        if planned is not None and real is not None and planned != real:
            short.append(f"{what}: planned {planned}, the engine has {real}")

    check("slots", expected.slots, props.get("total_slots"))
    check("alias", expected.alias, props.get("model_alias"))
    sizes = sorted({int(slot["n_ctx"]) for slot in slots if isinstance(slot.get("n_ctx"), int)})
    if not sizes and isinstance(answer := props.get("default_generation_settings"), dict):
        sizes = [answer["n_ctx"]] if isinstance(answer.get("n_ctx"), int) else []
    if expected.per_slot is not None and sizes and sizes != [expected.per_slot]:
        short.append(f"context per slot: planned {expected.per_slot}, the engine has {', '.join(map(str, sizes))}")
    total = facts.context.get("n_ctx")
    check("context", expected.total, int(total) if total and total.isdigit() else None)
    unified = facts.context.get("kv_unified")
    check("unified cache", expected.unified, unified == "true" if unified else None)

    wanted = expected.gpu_layers or 0
    # "offloaded 31/31 layers" is said on a box without a GPU too (any build with RPC): only the buffers tell the truth
    on_device = any(device != "host" for item, device in facts.buffers if item == "weights")
    missing = bool(expected.devices) and bool(facts.buffers) and not on_device
    if wanted and not missing and facts.offloaded is not None and facts.offloaded < wanted:
        short.append(f"layers on the device: planned {wanted}, the engine has {facts.offloaded}")
    for key, why in inactive(expected.told, Seen(facts.start, props, slots)):
        short.append(f"{key}: asked for, but the engine does without: {why}")
    for name, is_active in active(expected, shown, facts).items():
        if expected.techniques[name] and is_active is False:
            short.append(f"{name}: asked for, but not active")
    return Verdict(tuple(short), gpu_missing=missing)


def active(expected: Expected, shown: Mapping[str, bool], facts: Facts) -> dict[str, bool | None]:
    """For each technique of the plan whether the engine shows that it is on. None: it shows nothing about it.

    `shown`: what was asked of the engine (evidence.py).
    """
    known: dict[str, bool | None] = {"flash_attention": facts.flash_attention, **shown}
    return {name: known.get(name) for name in expected.techniques}
