"""What is given up when memory does not suffice, one step for each name in `supervise.fallback`. Pure.

Nothing is given up that the profile does not list; each step is an override of one key, as `--set` would say it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from launcher.engine.options import spelling
from launcher.plan.context import PAD
from launcher.plan.search import largest
from launcher.profile.schema import Profile

# about half the bytes a step, the loss of quality rising slowly (plan/quality.py)
_COARSER = {
    "f32": "f16", "f16": "q8_0", "bf16": "q8_0", "q8_0": "q8_0:q4_0", "q8_0:q4_0": "q4_0",
    "q5_1": "q4_0", "q5_0": "q4_0",
}  # fmt: skip


def concession(
    name: str, profile: Profile, options: Collection[str], per_slot: int, fits: Callable[[int], bool]
) -> list[str]:
    """The `--set` arguments of one step; none where there is nothing (more) to give up.

    per_slot  tokens that a slot has by the plan so far; `fits` says whether so many would fit now
    """
    if name == "tier":
        coarser = _COARSER.get(str(profile.kv.tier))
        return [f"kv.tier={coarser}"] if coarser else []
    if name == "context":
        less = largest(fits, per_slot - PAD) if per_slot > PAD else None
        return [f"context.per_slot={less}"] if less else []
    if name == "residency" and spelling("residency", options) is not None and profile.kv.residency != "cpu":
        return ["kv.residency=cpu"]
    return []
