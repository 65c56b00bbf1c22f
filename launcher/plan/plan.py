"""The resolved profile: contexts per slot, where every byte goes, the verdict, and what the engine is told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.options import Value, spell
from launcher.machine.types import Machine
from launcher.model.shape import ModelShape
from launcher.plan.commandline import settings
from launcher.plan.context import ContextSplit, split_context, train_length
from launcher.plan.kv import KvPart, KvSettings, Tier, kv_bytes, kv_parts
from launcher.plan.techniques import Techniques, choose
from launcher.profile.schema import Profile
from launcher.units import Tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What a profile comes to on one machine with one engine."""

    split: ContextSplit
    kv: tuple[KvPart, ...]
    techniques: Techniques
    settings: Mapping[str, Value]
    ledger: tuple[()] = ()
    verdict: str = "fits"
    offloaded_layers: int | None = None
    offload_devices: tuple[str, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """The whole cache, on all devices."""
        return kv_bytes(self.kv)

    def argv(self, options: Collection[str], extra: Collection[str] = ()) -> list[str]:
        """The engine's arguments, spelled for an engine that has `options`; `extra` is the profile's engine.args."""
        return [*spell(self.settings, options), *extra]


def make_plan(
    profile: Profile, shape: ModelShape, machine: Machine, options: Collection[str], *, model: Path, state_dir: Path
) -> Plan:
    """Put the plan together. `options`: what the engine's help lists; `model`: the local file."""
    split = resolve_context(profile, shape)
    techniques = choose(profile, options, state_dir)
    told = settings(
        profile,
        split,
        model=model,
        techniques=techniques,
        gpu_layers=None if profile.compute.gpu_layers == "auto" else profile.compute.gpu_layers,
        cpu_moe="off" if profile.compute.cpu_moe == "auto" else profile.compute.cpu_moe,
        threads=profile.compute.threads or machine.cpu.cores or 1,
    )
    kv = kv_parts(shape, split, kv_settings(profile))
    return Plan(split, kv, techniques, told)


def kv_settings(profile: Profile) -> KvSettings:
    """What the profile asks of the cache."""
    kv, compute = profile.kv, profile.compute
    return KvSettings(
        tier=Tier(kv.tier.k, kv.tier.v),
        tiers={layer: Tier(entry.tier.k, entry.tier.v) for entry in kv.tiers for layer in entry.layers},
        swa_full=kv.swa_full,
        batch=compute.batch,
        ubatch=compute.ubatch,
        flash=compute.flash_attention != "off",
        exact=(kv.exact.first, kv.exact.recent),
        heads_on_device=kv.heads.gpu_fraction if kv.residency == "heads" else None,
    )


def trained_for(profile: Profile, shape: ModelShape) -> int | None:
    """Tokens that one slot may use by training, with the stretching that the profile asks for."""
    rope = profile.context.rope
    return train_length(
        shape.train_context,
        scaling=(rope.scaling if rope and rope.scaling else shape.rope.scaling),
        factor=(rope.factor if rope and rope.factor else shape.rope.factor),
        model_factor=shape.rope.factor,
        original=shape.rope.original_context,
    )


def is_unified(profile: Profile) -> bool:
    """One pool or a fixed share for each slot. Absent in the profile, the plan decides.

    A share of its own is what `per_slot` promises, so that is the default: no neighbour can fill it, idle slots keep
    their cache, and a slot's attention never walks over the others' cells. One pool where a technique needs it, or
    where the slots together were promised more than there is (then only a pool can hold both figures).
    """
    context = profile.context
    if context.unified is not None:
        return context.unified
    return context.slots > 1 and (profile.kv.pool.shared_prefix or context.total is not None)


def resolve_context(profile: Profile, shape: ModelShape) -> ContextSplit:
    """The split that the profile asks for; where it asks for nothing, the training length for each slot."""
    context = profile.context
    train = trained_for(profile, shape)
    per_slot = context.per_slot
    if per_slot is None and context.total is None:
        per_slot = Tokens(train or 4096)
    return split_context(
        per_slot=per_slot, total=context.total, slots=context.slots, unified=is_unified(profile), train=train
    )
