"""Every consumer of memory, one line each, per device: how much, why, by which formula, and which key changes it.

Nothing here decides: the verdict compares these lines with what a device has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from launcher.model.layers import Memory
from launcher.model.shape import ModelShape
from launcher.plan.compute import borrowed_weights, compute_bytes
from launcher.plan.context import ContextSplit
from launcher.plan.dryrun import DryRun
from launcher.plan.kv import HOST, KvPart, KvSettings, caches, kv_parts, mtp_parts, row_bytes
from launcher.plan.placement import Loading, Placement, weights_by_device
from launcher.plan.states import estimated
from launcher.units import GIB, MIB, format_bytes

# What a running engine holds beside its buffers, by the kind of device.
# host: measured on the pin, RssAnon − buffers = 4 MiB (49k tokens), 25 MiB (262k tokens), plus 14 MiB of program text.
# devices: what a driver's context takes is seen only on the device; these are the usual sizes, and an error of theirs
# shows in the drift after the start.
_HOST_BASE = 48 * MIB
_HOST_PER_TOKEN = 100  # bytes for each token of the vocabulary
RESERVE: Mapping[str, int] = {"cuda": 512 * MIB, "rocm": 512 * MIB, "vulkan": 192 * MIB, "rpc": 16 * MIB}
_DRY_RUN_ROUNDING = MIB // 2  # its figures are whole MiB
# it reserves outputs that the server doesn't, which are most of it: so close to the same graph of ours it confirms that
_AGREES = 20
_CLIP_COMPUTE = 0.15  # an mmproj's own compute buffer, as a share of its weights; at least 64 MiB


class Source(StrEnum):
    """Where a figure comes from."""

    HEADER = "header"
    FORMULA = "formula"
    DRY_RUN = "dry-run"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One consumer on one device.

    reclaimable  bytes that the kernel can drop and read again (a mapped file)
    formula      how the figure came about, with its numbers
    key          the profile key that changes it most directly
    grows        not taken at the start, but up to this with use
    """

    item: str
    device: str
    bytes: int
    source: Source
    reclaimable: int = 0
    formula: str = ""
    key: str = ""
    grows: bool = False

    def as_json(self) -> dict[str, object]:
        """`plan --json` → ledger (contract.md), and more."""
        return {
            "item": self.item,
            "device": self.device,
            "bytes": self.bytes,
            "source": str(self.source),
            "reclaimable": self.reclaimable > 0,
            "formula": self.formula,
            "key": self.key,
            "grows": self.grows,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model: its own weights, cache (of the same slots and context) and compute buffer."""

    shape: ModelShape
    settings: KvSettings
    placement: Placement


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be run, resolved: everything that takes memory.

    prompt_cache      bytes of host RAM for states of conversations (`--cache-ram`); the engine's default is 8 GiB
    checkpoints       at most so many a slot (`--ctx-checkpoints`), for models with windows or states
    outputs_per_slot  1, more with speculative decoding
    mmproj_device     where a projector runs: the first device unless told otherwise
    mtp               the model drafts with nextn blocks of its own: a second context over them
    loras             adapters, loaded whole beside the layers they change
    reserves          runtime reserve of each device in use, by its id (see RESERVE)
    dry_run           what the same engine's dry run said, if it was asked
    measured          (item, device) → bytes that an earlier start of this engine and model really took
    """

    shape: ModelShape
    context: ContextSplit
    settings: KvSettings
    placement: Placement
    loading: Loading = Loading()  # noqa: RUF009 - frozen
    prompt_cache: int = 8 * GIB
    checkpoints: int = 32
    outputs_per_slot: int = 1
    mmproj: ModelShape | None = None
    mmproj_device: str = HOST
    draft: Draft | None = None
    mtp: bool = False
    loras: Sequence[ModelShape] = ()
    reserves: Mapping[str, int] = field(default_factory=dict)
    dry_run: DryRun | None = None
    measured: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def parts(self) -> tuple[KvPart, ...]:
        """The cache of the main model. Tensor split cuts every layer's heads by the shares."""
        parts = kv_parts(self.shape, self.context, self.settings, self.placement.cache)
        if self.placement.split != "tensor" or not self.placement.cuts_matrices:
            return parts
        return tuple(cut for part in parts for cut in _cut(part, self.placement))


def _cut(part: KvPart, placement: Placement) -> Iterator[KvPart]:
    if part.device == HOST:
        yield part
        return
    k_bytes, v_bytes = placement.divided(part.k_bytes), placement.divided(part.v_bytes)
    for device in placement.devices:
        yield replace(part, device=device, k_bytes=k_bytes[device], v_bytes=v_bytes[device])


def ledger(demand: Demand) -> tuple[LedgerLine, ...]:
    """All lines: host last, devices in the engine's order. A figure that was measured replaces the one computed."""
    order = {device: number for number, device in enumerate((*demand.placement.devices, HOST))}
    lines = [_measured(line, demand.measured) for line in _lines(demand)]
    return tuple(sorted((line for line in lines if line.bytes > 0), key=lambda line: order.get(line.device, -1)))


def needs(lines: Sequence[LedgerLine]) -> Mapping[str, int]:
    """The sum of each device."""
    found: dict[str, int] = {}
    for line in lines:
        found[line.device] = found.get(line.device, 0) + line.bytes
    return found


def _measured(line: LedgerLine, measured: Mapping[tuple[str, str], int]) -> LedgerLine:
    seen = measured.get((line.item, line.device))
    if seen is None or line.grows:
        return line
    note = f"{format_bytes(seen)} at an earlier start; computed: {format_bytes(line.bytes)} = {line.formula}"
    return replace(line, bytes=seen, source=Source.MEASURED, formula=note)


def _lines(demand: Demand) -> Iterator[LedgerLine]:
    for maker in (_weights, _kv, _compute, _output, _mmproj, _draft, _loras, _prompt_cache, _checkpoints, _reserve):
        yield from maker(demand)


def _weights(demand: Demand) -> Iterator[LedgerLine]:
    for device, held in weights_by_device(demand.shape, demand.placement, demand.loading).items():
        text = f"tensors of the header: {format_bytes(held.bytes - held.repacked)}"
        if held.mapped:
            text += " of the file, mapped"
        if held.repacked:
            text += f" + {format_bytes(held.repacked)} rearranged for this CPU"
        yield LedgerLine(
            "weights", device, held.bytes, Source.HEADER, held.mapped, text, _weights_key(device, demand.placement)
        )


def _weights_key(device: str, placement: Placement) -> str:
    return "compute.gpu_layers" if device != HOST or placement.gpu_layers else "model.path"


def _kv(demand: Demand) -> Iterator[LedgerLine]:
    """KV and recurrent state: one line a device and kind, the parts in its formula."""
    parts = demand.parts()
    for item, kinds in (("kv", ("full", "swa", "pool")), ("recurrent", ("recurrent",))):
        for device in dict.fromkeys(part.device for part in parts):
            held = [part for part in parts if part.device == device and part.kind in kinds]
            if held:
                text = " + ".join(_part_text(part) for part in held)
                key = "context.per_slot" if item == "kv" else "context.slots"
                yield LedgerLine(item, device, sum(part.bytes for part in held), Source.FORMULA, 0, text, key)


def _part_text(part: KvPart) -> str:
    per_cell = part.bytes / (part.layers * part.cells) if part.layers and part.cells else 0
    name = part.cache if part.cache != "main" else part.kind
    return f"{name}: {_many(part.layers, 'layer')} × {part.cells} cells × {per_cell:g} B"


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _compute(demand: Demand) -> Iterator[LedgerLine]:
    def formula(outputs: int) -> Mapping[str, int]:
        return compute_bytes(demand.shape, demand.context, demand.settings, demand.placement, outputs)

    computed = formula(demand.outputs_per_slot)
    ubatch = demand.settings.ubatch_of(demand.context)
    base = f"graph of {ubatch} tokens replayed"
    guessed = estimated(demand.shape)
    if guessed:
        base += f"; uncertain: how {demand.shape.arch} keeps its states is only guessed"
    borrower, borrowed = borrowed_weights(demand.shape, demand.placement, ubatch)
    dry = demand.dry_run
    # the dry run reserves an output for every token of a ubatch; the server one for each slot
    whole = formula(ubatch) if dry is not None else {}
    for device, size in computed.items():
        seen = dry.compute(device) if dry is not None else None
        drawn = base
        if borrowed and device == borrower:
            drawn += f" + {format_bytes(borrowed)} for weights of the host (uncertain: not measured on a card)"
        if seen is None:
            yield LedgerLine("compute", device, size, Source.FORMULA, 0, drawn, "compute.ubatch")
            continue
        reserved = whole.get(device, size)
        excess = reserved - size
        corrected = max(seen - excess, 0)
        text = f"dry run {format_bytes(seen)} − {format_bytes(excess)} of outputs that the server does not reserve"
        if abs(seen - reserved) <= _DRY_RUN_ROUNDING + seen // _AGREES:
            # it says what the formula says, which has the finer grain
            yield LedgerLine("compute", device, size, Source.DRY_RUN, 0, f"{drawn}, as the {text}", "compute.ubatch")
        elif guessed or corrected > size:
            yield LedgerLine("compute", device, corrected, Source.DRY_RUN, 0, text, "compute.ubatch")
        else:
            # it reserves the graph of a prompt only: where one token for each slot takes more it doesn't see it
            yield LedgerLine("compute", device, size, Source.FORMULA, 0, f"{drawn}; {text}", "compute.ubatch")


def _output(demand: Demand) -> Iterator[LedgerLine]:
    """`output_reserve`, src/llama-context.cpp: logits of one token for every slot."""
    rows = demand.context.slots * demand.outputs_per_slot
    text = f"{demand.shape.vocab_size} logits × {_many(rows, 'row')} × 4 B"
    yield LedgerLine("output", HOST, demand.shape.vocab_size * rows * 4, Source.FORMULA, 0, text, "context.slots")


def _mmproj(demand: Demand) -> Iterator[LedgerLine]:
    if demand.mmproj is None:
        return
    weights = demand.mmproj.tensor_bytes
    graph = max(int(weights * _CLIP_COMPUTE), 64 * MIB)
    text = f"{format_bytes(weights)} of weights + about {format_bytes(graph)} for one image"
    yield LedgerLine("mmproj", demand.mmproj_device, weights + graph, Source.FORMULA, 0, text, "model.mmproj")


def _draft(demand: Demand) -> Iterator[LedgerLine]:
    draft = demand.draft
    if draft is None:
        yield from _mtp(demand)
        return
    held: dict[str, int] = {}
    mapped = 0
    for device, weights in weights_by_device(draft.shape, draft.placement, demand.loading).items():
        held[device] = held.get(device, 0) + weights.bytes
        mapped += weights.mapped
    for part in kv_parts(draft.shape, demand.context, draft.settings, draft.placement.cache):
        held[part.device] = held.get(part.device, 0) + part.bytes
    for device, size in compute_bytes(draft.shape, demand.context, draft.settings, draft.placement).items():
        held[device] = held.get(device, 0) + size
    for device, size in held.items():
        reclaimable = mapped if device == HOST else 0
        text = "weights, cache and compute of the draft model"
        yield LedgerLine("draft", device, size, Source.FORMULA, reclaimable, text, "model.draft.path")


def _mtp(demand: Demand) -> Iterator[LedgerLine]:
    """Its weights are in the model already; its cache is f16 whatever the model's is, its graph a block and outputs."""
    if not demand.mtp or not demand.shape.nextn_layers:
        return
    held: dict[str, int] = {}
    for part in mtp_parts(demand.shape, demand.context, KvSettings(), demand.placement.cache):
        held[part.device] = held.get(part.device, 0) + part.bytes
    graph = compute_bytes(demand.shape, demand.context, demand.settings, demand.placement, demand.outputs_per_slot)
    for device, size in graph.items():
        held[device] = held.get(device, 0) + size
    for device, size in held.items():
        text = f"cache and compute of {demand.shape.nextn_layers} nextn blocks"
        yield LedgerLine("draft", device, size, Source.FORMULA, 0, text, "model.draft.type")


def _loras(demand: Demand) -> Iterator[LedgerLine]:
    """An adapter's tensors lie beside those they change (src/llama-adapter.cpp:300-400)."""
    held: dict[str, int] = {}
    for lora in demand.loras:
        for tensor in lora.tensors:
            layer = tensor.layer
            inside = layer is not None and layer < len(demand.placement.layers)
            device = demand.placement.layers[layer] if layer is not None and inside else demand.placement.output
            held[device] = held.get(device, 0) + tensor.size
    for device, size in held.items():
        text = f"tensors of {len(demand.loras)} adapter{'s' if len(demand.loras) > 1 else ''}"
        yield LedgerLine("lora", device, size, Source.HEADER, 0, text, "model.lora")


def _prompt_cache(demand: Demand) -> Iterator[LedgerLine]:
    text = "--cache-ram: states of conversations that left their slot, up to this"
    yield LedgerLine("prompt-cache", HOST, demand.prompt_cache, Source.FORMULA, 0, text, "kv.reuse.ram", grows=True)


def _checkpoints(demand: Demand) -> Iterator[LedgerLine]:
    """Copies of what cannot be rolled back: windows and states (tools/server/server-context.cpp:2513-2575, 3713)."""
    size = checkpoint_bytes(demand.shape, demand.context, demand.settings)
    if not size or not demand.checkpoints:
        return
    count = demand.context.slots * demand.checkpoints
    text = f"{_many(demand.context.slots, 'slot')} × {demand.checkpoints} checkpoints × {format_bytes(size)}, at most"
    yield LedgerLine("checkpoints", HOST, count * size, Source.FORMULA, 0, text, "kv.reuse.checkpoints", grows=True)


def checkpoint_bytes(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> int:
    """One checkpoint of one slot: its windows and its state; 0 where the cache itself can be rolled back."""
    slides = shape.window > 0 and not settings.swa_full
    if not slides and shape.memory not in (Memory.RECURRENT, Memory.HYBRID, Memory.HYBRID_IDX, Memory.DSV4):
        return 0
    total = 0
    for cache in caches(shape, context, settings):
        if cache.kind == "recurrent":
            rows, sharing = cache.cells, context.slots * (1 + settings.rollback)
        elif cache.kind == "swa" and slides:
            # a sequence keeps its window and what the last ubatches left behind it
            rows, sharing = min(cache.cells, shape.window + settings.ubatch_of(context)), 1
        else:
            continue
        for layer, k_width, v_width in cache.rows:
            types = cache.types or settings.of(layer)
            total += (row_bytes(types.k, k_width) + row_bytes(types.v, v_width)) * rows // sharing
    return total


def _reserve(demand: Demand) -> Iterator[LedgerLine]:
    host = _HOST_BASE + _HOST_PER_TOKEN * demand.shape.vocab_size
    text = f"program and server {format_bytes(_HOST_BASE)} + vocabulary {demand.shape.vocab_size} × {_HOST_PER_TOKEN} B"
    yield LedgerLine("reserve", HOST, host, Source.FORMULA, 0, text, "")
    for device, size in demand.reserves.items():
        text = "driver context and libraries, the usual size"
        yield LedgerLine("reserve", device, size, Source.FORMULA, 0, text, "compute.devices")
