"""The resolved profile: contexts per slot, where every byte goes, the verdict, and what the engine is told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.engine.options import Value, spell
from launcher.machine.types import Machine
from launcher.model.shape import ModelShape
from launcher.plan.commandline import settings
from launcher.plan.context import ContextSplit, split_context, train_length
from launcher.plan.devices import Used, reserves, rooms, used_devices
from launcher.plan.dryrun import DryRun
from launcher.plan.kv import HOST, ROLLS_BACK, KvPart, KvSettings, bytes_per_token, kv_bytes
from launcher.plan.ledger import Demand, Draft, LedgerLine, ledger
from launcher.plan.placement import Loading, Placement, choose_layers, expert_layers, on_host, place
from launcher.plan.search import largest, most_context
from launcher.plan.techniques import Techniques, choose
from launcher.plan.verdict import DeviceVerdict, Fit, Room, judge, overall
from launcher.profile.schema import Profile
from launcher.units import Tokens

_UNKNOWN_TRAINING = 4096  # tokens a slot for a model whose header doesn't say what it was trained for
DRAFTED = 3  # tokens that are drafted ahead: `--spec-draft-n-max`, common/common.h:329
_LEAST = 256  # tokens a slot: the engine allocates no less


@dataclass(frozen=True, slots=True)
class Given:
    """What was learnt beside profile, model, machine and options.

    shapes    headers of the other files: model.mmproj, model.draft.path, model.lora.N.path
    dry_run   what this engine's dry run said
    measured  (item, device) → bytes that an earlier start of the same engine, model and settings really took
    reserved  bytes of each device that other starts, under way, will take
    """

    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    dry_run: DryRun | None = None
    measured: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a profile comes to on one machine with one engine."""

    split: ContextSplit
    demand: Demand
    kv: tuple[KvPart, ...]
    ledger: tuple[LedgerLine, ...]
    devices: tuple[DeviceVerdict, ...]
    rooms: Mapping[str, Room]
    techniques: Techniques
    settings: Mapping[str, Value]

    @property
    def verdict(self) -> Fit:
        """The worst of the devices' verdicts."""
        return overall(self.devices)

    @property
    def at_start(self) -> dict[str, int]:
        """Bytes that each device must have free for the start: what may be dropped or only grows left out."""
        return {device.device: device.start - device.reclaimable for device in self.devices}

    @property
    def kv_bytes(self) -> int:
        """The whole cache, on all devices."""
        return kv_bytes(self.kv)

    @property
    def offloaded_layers(self) -> int | None:
        """Layers that the engine's log must report as offloaded; None where no device is used."""
        return self.demand.placement.gpu_layers or None

    @property
    def offload_devices(self) -> tuple[str, ...]:
        """The devices that hold a part of the model."""
        return self.demand.placement.devices if self.demand.placement.gpu_layers else ()

    def argv(self, options: Collection[str], extra: Sequence[str] = ()) -> list[str]:
        """The engine's arguments, spelled for an engine that has `options`; `extra` is the profile's engine.args."""
        return [*spell(self.settings, options), *extra]

    def as_json(self) -> dict[str, object]:
        """`plan --json` (contract.md) but for `argv` and `diagnostics`, which the caller has."""
        per_token = bytes_per_token(self.demand.shape, self.demand.settings)
        kv = {"bytes": self.kv_bytes, "bytes_per_token": round(per_token), "parts": [p.as_json() for p in self.kv]}
        return {
            "context": self.split.as_json(),
            "kv": kv,
            "ledger": [line.as_json() for line in self.ledger],
            "devices": [device.as_json() for device in self.devices],
            "verdict": str(self.verdict),
            "techniques": self.techniques.active,
        }


def make_plan(
    profile: Profile,
    shape: ModelShape,
    machine: Machine,
    options: Collection[str],
    *,
    model: Path,
    state_dir: Path,
    given: Given = Given(),
) -> Plan:
    """Put the plan together. `options`: what the engine's help lists; `model`: the local file."""
    used = used_devices(profile, machine)
    space = rooms(machine, used, given.reserved)
    demand = _fill(profile, shape, machine, used, space, given)
    lines = ledger(demand)
    techniques = choose(profile, options, state_dir)
    told = settings(
        profile,
        demand.context,
        model=model,
        techniques=techniques,
        gpu_layers=demand.placement.gpu_layers if used else None,
        cpu_moe=demand.placement.experts_on_host or "off",
        threads=profile.compute.threads or machine.cpu.cores or 1,
    )
    devices = judge(lines, space)
    if any(one.key == "context.per_slot" for one in devices):
        devices = judge(lines, space, {one.device: _tokens_for(one, demand, space) or 0 for one in devices})
    return Plan(demand.context, demand, demand.parts(), lines, devices, space, techniques, told)


def _tokens_for(verdict: DeviceVerdict, demand: Demand, space: Mapping[str, Room]) -> int | None:
    """The largest context a slot with which a device would be judged better, in the engine's grain."""
    if verdict.key != "context.per_slot":
        return None

    def fits(per_slot: int) -> bool:
        split = replace_context(demand.context, per_slot)
        lines = ledger(replace(demand, context=split, dry_run=None, measured={}))
        found = next(one for one in judge(lines, space) if one.device == verdict.device)
        return found.fit.rank < verdict.fit.rank

    return largest(fits, demand.context.per_slot)


def demand_of(
    profile: Profile,
    shape: ModelShape,
    machine: Machine,
    used: tuple[Used, ...],
    split: ContextSplit,
    placement: Placement,
    given: Given,
) -> Demand:
    """Everything that takes memory, for one split and placement."""
    reuse = profile.kv.reuse
    draft = profile.model.draft
    return Demand(
        shape=shape,
        context=split,
        settings=kv_settings(profile, shape, placement),
        placement=placement,
        loading=Loading(
            mapped=profile.compute.load in ("auto", "mmap", "mmap+mlock"),
            cpu_features=frozenset(machine.cpu.features),
        ),
        prompt_cache=reuse.ram,
        checkpoints=reuse.checkpoints,
        outputs_per_slot=1 if draft is None else 1 + DRAFTED,
        mmproj=given.shapes.get("model.mmproj"),
        mmproj_device=used[0].id if used else HOST,
        draft=_draft(given, used),
        mtp=drafts_itself(profile),
        loras=tuple(shape for key, shape in sorted(given.shapes.items()) if key.startswith("model.lora.")),
        reserves=reserves(used),
        dry_run=given.dry_run,
        measured=given.measured,
    )


def _draft(given: Given, used: tuple[Used, ...]) -> Draft | None:
    shape = given.shapes.get("model.draft.path")
    if shape is None:
        return None
    ids = [device.id for device in used]
    placement = place(shape, devices=ids) if ids else on_host(shape)
    return Draft(shape, KvSettings(), placement)  # its cache is f16 whatever the target's is (X5)


def _fill(
    profile: Profile,
    shape: ModelShape,
    machine: Machine,
    used: tuple[Used, ...],
    space: Mapping[str, Room],
    given: Given,
) -> Demand:
    """The demand with its context and placement decided: what the profile asks for, else the most that fits."""

    def at(split: ContextSplit) -> Demand:
        placement = choose_placement(profile, shape, machine, used, space, split, given)
        return demand_of(profile, shape, machine, used, split, placement, given)

    context = profile.context
    if context.per_slot is not None or context.total is not None:
        return at(resolve_context(profile, shape, context.per_slot))
    most = trained_for(profile, shape) or _UNKNOWN_TRAINING

    def fits(per_slot: int, growth: bool) -> bool:
        lines = ledger(at(resolve_context(profile, shape, Tokens(per_slot))))
        return overall(judge(at_rest(lines) if not growth else lines, space)) is Fit.FITS

    return at(resolve_context(profile, shape, Tokens(most_context(fits, most) or _LEAST)))


def choose_placement(
    profile: Profile,
    shape: ModelShape,
    machine: Machine,
    used: tuple[Used, ...],
    space: Mapping[str, Room],
    split: ContextSplit,
    given: Given,
) -> Placement:
    """Layers, experts and cache over the devices: as the profile says, and for "auto" as much as fits on them."""
    if not used:
        return on_host(shape)
    compute = profile.compute
    every_expert = max(expert_layers(shape), default=-1) + 1
    free = [device.room.free or 0 for device in used]

    def placed(gpu_layers: int | None, experts: int) -> Placement:
        return place(
            shape,
            devices=[device.id for device in used],
            weights=compute.tensor_split or free,
            gpu_layers=gpu_layers,
            split="layer" if compute.split == "auto" else compute.split,
            main_gpu=compute.main_gpu,
            experts_on_host=experts,
            cache_on_host=_cache_on_host(profile),
        )

    def fits(gpu_layers: int, experts: int) -> bool:
        demand = demand_of(profile, shape, machine, used, split, placed(gpu_layers, experts), given)
        verdicts = judge(ledger(demand), space)
        return all(verdict.fit is Fit.FITS for verdict in verdicts if verdict.device != HOST)

    experts = {"off": 0, "all": every_expert}.get(str(compute.cpu_moe), compute.cpu_moe)
    layers = None if compute.gpu_layers == "all" else compute.gpu_layers
    if layers == "auto":
        chosen, on_the_host = choose_layers(shape, fits, experts=experts == "auto")
        return placed(chosen, on_the_host if experts == "auto" else int(experts))
    return placed(None if layers is None else int(layers), 0 if experts == "auto" else int(experts))


def _cache_on_host(profile: Profile) -> Collection[int] | None:
    """The layers whose cache the profile keeps on the host; None: all of them."""
    kv = profile.kv
    if kv.residency == "cpu":
        return None
    return tuple(kv.host_layers) if kv.residency == "layers" else ()


def kv_settings(profile: Profile, shape: ModelShape, placement: Placement) -> KvSettings:
    """What the profile asks of the cache."""
    kv, compute = profile.kv, profile.compute
    split = kv.residency == "heads" and bool(placement.gpu_layers)
    return KvSettings(
        tier=kv.tier,
        tiers={layer: entry.tier for entry in kv.tiers for layer in entry.layers},
        swa_full=kv.swa_full,
        batch=compute.batch,
        ubatch=compute.ubatch,
        flash=compute.flash_attention != "off",
        rollback=DRAFTED if drafts_itself(profile) and shape.arch in ROLLS_BACK else 0,
        exact=(kv.exact.first, kv.exact.recent),
        heads_on_device=kv.heads.gpu_fraction if split else None,
    )


def drafts_itself(profile: Profile) -> bool:
    """Whether heads in the model draft the next tokens."""
    return profile.model.draft is not None and profile.model.draft.type == "mtp"


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


def resolve_context(profile: Profile, shape: ModelShape, per_slot: Tokens | None) -> ContextSplit:
    """The split for so many tokens a slot, or for the profile's total."""
    return split_context(
        per_slot=per_slot,
        total=profile.context.total,
        slots=profile.context.slots,
        unified=is_unified(profile),
        train=trained_for(profile, shape),
    )


def at_rest(lines: Sequence[LedgerLine]) -> list[LedgerLine]:
    """Without what only grows with use."""
    return [line for line in lines if not line.grows]


def replace_context(old: ContextSplit, per_slot: int) -> ContextSplit:
    """The same split with another context a slot."""
    return split_context(per_slot=per_slot, total=None, slots=old.slots, unified=old.unified, train=old.train)


def with_context(plan: Plan, per_slot: int) -> tuple[ContextSplit, tuple[LedgerLine, ...], tuple[DeviceVerdict, ...]]:
    """The same plan with another context a slot: what `--max-context` and "the next larger one" ask."""
    split = replace_context(plan.split, per_slot)
    lines = ledger(replace(plan.demand, context=split, dry_run=None, measured={}))
    return split, lines, judge(lines, plan.rooms)
