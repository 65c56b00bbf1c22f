"""The largest context that fits, and the best trades between context, slots, speed and quality.

A candidate costs microseconds: memory is affine in the cells once the sliding windows are full, so each combination of
tier, residency and slots is measured at two contexts by the ledger's own functions, and the rest is arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.model.shape import ModelShape
from launcher.model.types import storage_type
from launcher.plan.compute import compute_bytes
from launcher.plan.context import PAD, allocate, pad
from launcher.plan.kv import HOST, KvSettings, kv_parts
from launcher.plan.ledger import Demand, ledger
from launcher.plan.placement import Placement, tensor_device
from launcher.plan.quality import divergence, quality_class
from launcher.plan.verdict import Room, margin
from launcher.profile.tier import Tier

_LARGEST = 1 << 24  # tokens; no model was trained on more
_MODEST = 4096  # tokens a slot that come before what past conversations may take
_TOKEN_OVERHEAD = 0.0004  # seconds of a decode step that no bandwidth explains: launches, sampling, HTTP


def largest(fits: Callable[[int], bool], limit: int | None = None, *, step: int = PAD) -> int | None:
    """The largest multiple of `step` up to `limit` (itself included) for which `fits`; None where not even one does.

    `fits` must be monotone: what fits, fits smaller.
    """
    most = limit if limit is not None else _LARGEST
    if most >= 1 and fits(most):
        return most
    low, high = 0, -(-most // step)  # low fits (or is nothing), high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step or None


def most_context(fits: Callable[[int, bool], bool], limit: int | None) -> int | None:
    """The largest context that fits. `fits(tokens a slot, with all that grows with use)`.

    What only grows, the prompt cache above all, keeps conversations that have left their slot. It makes way until
    those that are in one have a few thousand tokens: a small box would be left with none otherwise.
    """
    comfortable = largest(lambda size: fits(size, True), limit)
    modest = _MODEST if limit is None else min(_MODEST, limit)
    if comfortable is not None and comfortable >= modest:
        return comfortable
    return largest(lambda size: fits(size, False), modest)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes a second that decoding reads at: of each device's own memory, and of the link to each from the host."""

    memory: Mapping[str, float]
    link: Mapping[str, float]

    def read(self, device: str) -> float:
        """Of one device's memory; a plain desktop's RAM where it is not known."""
        return self.memory.get(device) or self.memory.get(HOST) or 30e9

    def across(self, device: str) -> float:
        """Over the link to a device; PCIe 3 ×8 where it is not known."""
        return self.link.get(device) or 6e9


@dataclass(frozen=True, slots=True)
class Residency:
    """A way to spread the cache: `share` of the layers' caches stay with their layers, the rest on the host.

    attends_on_host  attention of the host's part runs on the CPU (patch 0070); else its rows cross the link
    """

    name: str
    share: float
    attends_on_host: bool = True


WITH_LAYERS = Residency("gpu", 1.0)
RESIDENCIES = (
    WITH_LAYERS,
    Residency("layers", 0.75),
    Residency("layers", 0.5),
    Residency("layers", 0.25),
    Residency("cpu", 0.0),
)
"""What patch 0070 offers. Without it only the first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting that fits. `speed`: predicted tokens a second of one stream with a full context."""

    tier: Tier
    residency: Residency
    slots: int
    per_slot: int
    speed: float
    loss: float
    need: Mapping[str, int]

    @property
    def quality(self) -> str:
        """The class of the tier (quality.py)."""
        return quality_class(self.tier)

    def as_json(self) -> dict[str, object]:
        """`plan --search --json`."""
        return {
            "tier": str(self.tier),
            "residency": self.residency.name,
            "share_on_device": self.residency.share,
            "slots": self.slots,
            "per_slot": self.per_slot,
            "tokens_per_second": round(self.speed, 2),
            "quality": self.quality,
            "divergence": round(self.loss, 5),
            "need": dict(self.need),
        }


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched. `per_slots` None: from 2k up to the training length, in steps of a quarter octave."""

    tiers: Sequence[Tier]
    residencies: Sequence[Residency] = (WITH_LAYERS,)
    slots: Sequence[int] = (1, 2, 4, 8)
    per_slots: Sequence[int] | None = None


def useful_tiers(types: Collection[str]) -> tuple[Tier, ...]:
    """The pairs worth a look among the cache types that an engine has: V may be coarser than K, not finer."""
    order = [name for name in _FINEST_FIRST if name in types]
    pairs = ((k, v) for number, k in enumerate(order) for v in order[number:])
    return tuple(Tier(k, v) for k, v in pairs if k == v or (k, v) in _MIXED)


# mixes that have a place of their own between the plain ones
_FINEST_FIRST = ("f16", "q8_0", "q5_1", "q5_0", "iq4_nl", "q4_0", "turbo4", "turbo3", "turbo2")
_MIXED = frozenset(
    {("q8_0", "q5_1"), ("q8_0", "q5_0"), ("q8_0", "q4_0"), ("q8_0", "turbo3"), ("q8_0", "turbo2"), ("q5_1", "q4_0")}
    | {("q4_0", "turbo3"), ("turbo4", "turbo3")}
)


@dataclass(frozen=True, slots=True)
class Front:
    """The candidates that no other beats in everything at once, and how many were looked at."""

    candidates: tuple[Candidate, ...]
    tried: int
    fitting: int


def search(demand: Demand, rooms: Mapping[str, Room], speeds: Speeds, space: Space) -> Front:
    """The Pareto front over context, slots, speed and quality. `demand` gives everything that is not searched."""
    sizes = tuple(space.per_slots) if space.per_slots is not None else context_steps(demand.shape)
    tried = 0
    found: list[Candidate] = []
    for lines in _lines(demand, space, speeds):
        tried += len(sizes)
        found.extend(lines.candidates(sizes, rooms))
    return Front(tuple(pareto(found)), tried, len(found))


def context_steps(shape: ModelShape) -> tuple[int, ...]:
    """Contexts worth a look: 2k, 2.5k, 3k, 3.5k, 4k, 5k … up to the training length."""
    most = shape.train_context or 1 << 17
    steps: list[int] = []
    base = 2048
    while base <= most:
        steps.extend(size for size in (base * quarter // 4 for quarter in (4, 5, 6, 7)) if size <= most)
        base *= 2
    return tuple(pad(size) for size in steps) or (pad(most),)


@dataclass(frozen=True, slots=True)
class _Line:
    """One tier, residency and slot count: a device's bytes are base + slope × cells, a token's seconds likewise."""

    tier: Tier
    residency: Residency
    slots: int
    unified: bool
    base: Mapping[str, float]
    slope: Mapping[str, float]
    token_base: float
    token_slope: float
    loss: float

    def candidates(self, sizes: Iterable[int], rooms: Mapping[str, Room]) -> Iterator[Candidate]:
        limits = {
            device: room.usable - margin(room.usable)
            for device, room in rooms.items()
            if room.usable is not None and device in self.base
        }
        for size in sizes:
            cells = size * self.slots
            need = {device: int(self.base[device] + self.slope[device] * cells) for device in self.base}
            if any(need[device] > limit for device, limit in limits.items()):
                return  # larger ones need more still
            seconds = self.token_base + self.token_slope * size
            yield Candidate(self.tier, self.residency, self.slots, size, 1 / seconds, self.loss, need)


def _lines(demand: Demand, space: Space, speeds: Speeds) -> Iterator[_Line]:
    fixed = _fixed(demand)
    active = _active_seconds(demand.shape, demand.placement, speeds)
    for slots in space.slots:
        for residency in space.residencies:
            placement = spread(demand.placement, residency)
            near, far = _two(demand, slots)
            buffers: dict[tuple[bool, bool], list[Mapping[str, int]]] = {}
            for tier in space.tiers:
                settings = replace(demand.settings, tier=tier, tiers={})
                # of a tier the graph sees only whether K and V are turned before they are stored
                turned = (storage_type(tier.k).quantized, storage_type(tier.v).quantized)
                if turned not in buffers:
                    contexts = (allocate(size, slots, demand.context.unified) for size in (near, far))
                    buffers[turned] = [compute_bytes(demand.shape, c, settings, placement) for c in contexts]
                compute = buffers[turned]
                yield _line(demand, placement, residency, settings, slots, (near, far), compute, fixed, active, speeds)


def _two(demand: Demand, slots: int) -> tuple[int, int]:
    """Two totals beyond which nothing but the cells grows: the windows are full, every slot has its pad."""
    window = demand.shape.window * slots + demand.settings.ubatch + 256
    near = pad(max(window, 4096)) * slots
    return near, 2 * near


def _line(
    demand: Demand,
    placement: Placement,
    residency: Residency,
    settings: KvSettings,
    slots: int,
    totals: tuple[int, int],
    compute: Sequence[Mapping[str, int]],
    fixed: Mapping[str, int],
    active: float,
    speeds: Speeds,
) -> _Line:
    needs: list[dict[str, float]] = []
    caches: list[dict[str, int]] = []
    for total, buffers in zip(totals, compute, strict=True):
        parts = kv_parts(demand.shape, allocate(total, slots, demand.context.unified), settings, placement.cache)
        held: dict[str, int] = {}
        for part in parts:
            held[part.device] = held.get(part.device, 0) + part.bytes
        devices = {*held, *buffers, *fixed}
        logits = demand.shape.vocab_size * 4 * slots
        needs.append(
            {
                device: fixed.get(device, 0)
                + held.get(device, 0)
                + buffers.get(device, 0)
                + (logits if device == HOST else 0)
                for device in devices
            }
        )
        caches.append(held)
    span = totals[1] - totals[0]
    slope = {device: (needs[1][device] - needs[0][device]) / span for device in needs[0]}
    base = {device: needs[0][device] - slope[device] * totals[0] for device in needs[0]}
    token_base, token_slope = active + _TOKEN_OVERHEAD, 0.0
    for device in caches[0]:
        growth = (caches[1].get(device, 0) - caches[0][device]) / span
        constant = max(caches[0][device] - growth * totals[0], 0.0) / slots  # the windows and states of one slot
        crosses = device == HOST and not residency.attends_on_host and bool(placement.devices)
        rate = speeds.across(placement.devices[0]) if crosses else speeds.read(device)
        token_base += constant / rate
        token_slope += growth / rate
    return _Line(
        settings.tier, residency, slots, demand.context.unified, base, slope, token_base, token_slope,
        divergence(settings.tier, exact_tokens=sum(settings.exact) > 0),
    )  # fmt: skip


def _fixed(demand: Demand) -> Mapping[str, int]:
    """What no searched setting changes."""
    varies = ("kv", "recurrent", "compute", "output", "checkpoints")
    found: dict[str, int] = {}
    for line in ledger(demand):
        if line.item not in varies:
            found[line.device] = found.get(line.device, 0) + line.bytes
    return found


def spread(placement: Placement, residency: Residency) -> Placement:
    """The placement with a share of the device layers' caches kept there, the last layers first to go to the host."""
    near = [index for index, device in enumerate(placement.layers) if device != HOST]
    kept = set(near[: round(len(near) * residency.share)])
    cache = tuple(device if index in kept or device == HOST else HOST for index, device in enumerate(placement.layers))
    return replace(placement, cache=cache)


def _active_seconds(shape: ModelShape, placement: Placement, speeds: Speeds) -> float:
    """Reading the weights that one token needs: not the embedding, of the experts those in use."""
    share = shape.expert_used / shape.expert_count if shape.expert_count else 1.0
    seconds = 0.0
    for tensor in shape.tensors:
        size = float(tensor.size)
        if tensor.name == "token_embd.weight":
            if not shape.has_tied_output:
                continue
            seconds += size / speeds.read(placement.output)
            continue
        if "_exps." in tensor.name:
            size *= share
        seconds += size / speeds.read(tensor_device(shape, placement, tensor))
    return seconds


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other equals or beats in context, slots, speed and quality at once, the longest context first."""
    front: list[Candidate] = []
    for group in _groups(candidates).values():
        fastest = -1.0
        kept: list[Candidate] = []
        # of one slot count and loss, longest first: a shorter one must be faster
        for candidate in sorted(group, key=lambda c: (-c.per_slot, -c.speed)):
            if candidate.speed > fastest:
                kept.append(candidate)
                fastest = candidate.speed
        front.extend(kept)
    front.sort(key=lambda c: (-c.per_slot, -c.slots, c.loss, -c.speed))
    best: list[Candidate] = []
    for candidate in front:  # in this order only an earlier one can beat a later one
        if not any(_beats(other, candidate) for other in best):
            best.append(candidate)
    return best


_FASTER = 1.02  # below it two speeds look the same
_SHORTER = 1.15  # a shorter context is worth a row where it is so much faster


def thinned(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rows that differ to the eye, the longest context first: what comes short of a row above it in context, slots
    or quality, and of none in more than that, stands only where it is visibly faster."""
    kept: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (-c.per_slot, -c.slots, c.loss, -c.speed)):
        if not any(_hardly_better(one, other) for other in kept):
            kept.append(one)
    return kept


def _hardly_better(a: Candidate, b: Candidate) -> bool:
    if a.residency != b.residency or b.per_slot < a.per_slot or b.slots < a.slots or b.loss > a.loss:
        return False
    return a.speed < b.speed * (_FASTER if a.per_slot == b.per_slot else _SHORTER)


def _groups(candidates: Sequence[Candidate]) -> Mapping[tuple[int, float], list[Candidate]]:
    groups: dict[tuple[int, float], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.slots, candidate.loss), []).append(candidate)
    return groups


def _beats(a: Candidate, b: Candidate) -> bool:
    return a.per_slot >= b.per_slot and a.slots >= b.slots and a.loss <= b.loss and a.speed >= b.speed
