"""Which techniques a profile asks for, which of them this engine has, and what the engine is told about each.

`"auto"` switches on what the engine has and never fails; a value that is written out is told to the engine whatever it
has, so that a lacking patch is refused by name when the options are spelled (launcher/engine/options.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.options import Value, spelling
from launcher.profile.schema import Profile


@dataclass(frozen=True, slots=True)
class Techniques:
    """`active`: name → whether the plan switches it on (`plan --json`). `settings`: what the engine is told."""

    active: dict[str, bool]
    settings: dict[str, Value]


def choose(profile: Profile, options: Collection[str], state_dir: Path) -> Techniques:
    """Decide for an engine whose help lists `options`; `state_dir` is where durable state of this instance goes."""

    def has(name: str) -> bool:
        return spelling(name, options) is not None

    kv = profile.kv
    told: dict[str, Value] = {}
    active: dict[str, bool] = {}

    affinity = kv.reuse.affinity
    active["affinity"] = has("session_affinity") if affinity == "auto" else bool(affinity)
    if active["affinity"]:
        told["session_affinity"] = True

    # no key asks for it: it only makes the engine say more, and liveness reads its counters
    active["telemetry"] = has("kv_telemetry")
    if active["telemetry"]:
        told["kv_telemetry"] = True

    active["eviction"] = profile.context.shift and kv.eviction.policy == "keydiff"
    if active["eviction"]:
        told |= {"rest_kv_eviction": True, "rest_kv_recent": kv.eviction.recent, "rest_kv_layer": kv.eviction.layer}
        told["rest_kv_mode"] = kv.eviction.mode

    attention = profile.compute.cpu_attention
    grouped = has("cpu_attention") if attention == "auto" else attention == "grouped"
    active["cpu_attention"] = grouped
    if grouped or (attention == "upstream" and has("cpu_attention")):
        told["cpu_attention"] = "grouped" if grouped else "upstream"

    active["residency"] = kv.residency not in ("auto", "off")
    if active["residency"]:
        told["residency"] = kv.residency
        if kv.residency == "heads":
            told["headinfer_fraction"] = kv.heads.gpu_fraction
        if kv.residency == "layers":
            told["host_layers"] = str(kv.host_layers)
        if kv.budget != "auto":
            told["device_budget"] = kv.budget

    active["neo"] = kv.neo == "on"
    if active["neo"]:
        told["neo"] = "on"

    active["pool"] = kv.pool.shared_prefix
    if active["pool"]:
        told |= {"prefix_pool": True, "prefix_pool_min": kv.pool.min_tokens, "prefix_pool_pinned": kv.pool.pinned}

    active["persist"] = kv.persist.enabled
    if active["persist"]:
        told |= {"state_dir": str(state_dir / "sessions"), "state_budget": kv.persist.budget}
        told["state_idle"] = kv.persist.idle
    active["exact"] = bool(kv.exact.first or kv.exact.recent)
    if active["exact"]:
        told |= {"exact_first": kv.exact.first, "exact_recent": kv.exact.recent}

    active["tier_layers"] = bool(kv.tiers)
    if active["tier_layers"]:
        told["tier_layers"] = ",".join(f"{entry.layers}={entry.tier}" for entry in kv.tiers)

    active["calibration"] = kv.calibration is not None
    if kv.calibration is not None:
        told["calibration"] = str(kv.calibration)

    active["scout"] = kv.scout.blocks > 0
    if active["scout"]:
        told["topk_blocks"] = kv.scout.blocks

    return Techniques(active, told)
