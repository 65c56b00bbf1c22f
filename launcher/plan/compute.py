"""The compute buffer: what the activations of one ubatch need, by replaying the engine's graph and its allocator.

A formula, not a measurement: the graph of a few blocks is rebuilt from the tensors that the header lists (graph.py and
the parts beside it), then the allocator is replayed (replay.py). Held against the engine's own buffers for 128
architectures (`bench plan`): most are exact, the worst some per cent off. Not held against any: RWKV's states (the
ledger says so), and what a GPU's backend pads or fuses. The engine's own dry run (`llama-fit-params --fit-print on`)
has whole MiB and no unified cache.
Follows src/llama-graph.cpp and src/llama-context.cpp:545-650 (sched_reserve: one ubatch of tokens, one output a slot).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from launcher.errors import ProfileError
from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.model.types import storage_type
from launcher.plan.context import ContextSplit
from launcher.plan.graph import Begin, Builder
from launcher.plan.kv import HOST, KvSettings, caches
from launcher.plan.placement import Placement, tensor_device
from launcher.plan.sketch import Batch, F, rotation_bytes

_BORROWS_FROM = 32  # tokens of a batch: GGML_OP_OFFLOAD_MIN_BATCH
# src/llama-context.cpp:719: these reserve for one sequence too, which multiplies its whole ubatch with itself
_ALSO_ALONE = frozenset({"kimi-linear", "minimax-01"})
_REPLAYED_LAYERS = 4  # layers repeat: more of a kind change nothing


def compute_bytes(
    shape: ModelShape, context: ContextSplit, settings: KvSettings, placement: Placement, outputs_per_slot: int = 1
) -> Mapping[str, int]:
    """Bytes of the compute buffer of every device in use."""
    batch = Batch.of(context, settings, outputs_per_slot)
    masks = _mask_sizes(shape, context, settings, batch)
    inputs = sum(masks.values()) + _rotation_bytes(shape, settings)
    host = [index for index, device in enumerate(placement.layers) if device == HOST]
    away = [
        index
        for index, device in enumerate(placement.layers)
        if device != HOST and index < placement.experts_on_host and shape.layers[index].experts_used
    ]
    found: dict[str, int] = {}
    if host or not placement.devices:
        found[HOST] = _replay(
            shape, context, settings, batch, masks, host, Begin.TOKENS, output=placement.output == HOST
        )
    else:
        # the embedding is looked up on the host, and every input is filled there first
        found[HOST] = placement.copies * inputs + _embedding_bytes(shape, batch, placement.copies)
    if away:
        drawn, _ = _representative(shape, away)
        found[HOST] = max(found[HOST], Builder(shape, settings, batch, masks).run_experts(drawn))
    for device in placement.devices:
        layers = [index for index, held in enumerate(placement.layers) if held == device]
        has_output = placement.output == device
        if not layers and not has_output:
            continue
        begins = Begin.EMBEDDED if 0 in layers else Begin.ROW
        if layers and begins is Begin.ROW and placement.layers[layers[0] - 1] == HOST:
            begins = Begin.SUM
        needed = _replay(
            shape,
            context,
            settings,
            batch,
            masks,
            layers,
            begins,
            output=has_output,
            copies=placement.copies,
            away=away,
        )
        found[device] = needed + _streamed_cache(shape, context, settings, placement, layers)
    borrower, size = borrowed_weights(shape, placement, batch.tokens)
    if size:
        found[borrower] = found.get(borrower, 0) + size
    return found


def borrowed_weights(shape: ModelShape, placement: Placement, tokens: int) -> tuple[str, int]:
    """(device, bytes) The first card multiplies what lies on the host too, for a large batch, and has one of those
    matrices at a time in its buffer (ggml/src/ggml-backend.cpp:1110, ggml-cuda.cu:5754). A worker doesn't."""
    if not placement.devices or placement.devices[0].startswith("RPC") or tokens < _BORROWS_FROM:
        return "", 0
    held = (
        tensor.size
        for tensor in shape.tensors
        if tensor.layer is not None and len(tensor.dims) > 1 and tensor_device(shape, placement, tensor) == HOST
    )
    return placement.devices[0], max(held, default=0)


def _embedding_bytes(shape: ModelShape, batch: Batch, copies: int) -> int:
    rows = 4 + 2 * (copies - 1)
    return rows * shape.embedding_length * F * batch.tokens + 12 * F * batch.tokens


def _rotation_bytes(shape: ModelShape, settings: KvSettings) -> int:
    """The Hadamard matrices of quantized caches, for each kind of attention cache (graph.py: Builder._rotation)."""
    total = 0
    for slides in {layer.swa for layer in shape.cached_layers}:
        layer = next(layer for layer in shape.cached_layers if layer.swa is slides)
        total += rotation_bytes(layer.key_length, settings.of(layer.index).k, widest=True)
        total += rotation_bytes(layer.value_length, settings.of(layer.index).v, widest=False)
    return total


def _streamed_cache(
    shape: ModelShape, context: ContextSplit, settings: KvSettings, placement: Placement, layers: Sequence[int]
) -> int:
    """With the cache on the host, attention on the device works on a copy of one layer's K and V."""
    held = {index for index in layers if placement.cache[index] == HOST}
    if not held or not settings.flash:
        return 0
    largest = 0
    for cache in caches(shape, context, settings):
        for layer, k_width, v_width in cache.rows:
            if layer in held and cache.kind in ("full", "swa"):
                tier = settings.of(layer)
                row = -(-k_width // storage_type(tier.k).block) * storage_type(tier.k).size
                row += -(-v_width // storage_type(tier.v).block) * storage_type(tier.v).size
                largest = max(largest, row * cache.cells * cache.streams)
    return largest


def _mask_sizes(shape: ModelShape, context: ContextSplit, settings: KvSettings, batch: Batch) -> dict[str, int]:
    """One mask for each of the engine's attention caches: [cells, tokens of a stream] for every stream; f16 with
    flash attention, else f32 (build_attn_inp_kq_mask)."""
    width = 2 if batch.flash else F
    sizes: dict[str, int] = {}
    for cache in caches(shape, context, settings):
        if cache.name == "indexer" and not batch.indexed(shape):
            continue
        if cache.kind in ("full", "swa") and cache.name != "exact":
            sizes[cache.name] = cache.cells * batch.tokens * width
    if shape.memory is Memory.NONE:
        sizes["main"] = batch.tokens * batch.tokens * width
    return sizes


def _replay(
    shape: ModelShape,
    context: ContextSplit,
    settings: KvSettings,
    batch: Batch,
    masks: Mapping[str, int],
    layers: Sequence[int],
    begins: Begin,
    *,
    output: bool,
    copies: int = 1,
    away: Sequence[int] = (),
) -> int:
    """The buffer for some layers."""
    trunk = len(shape.layers) - shape.nextn_layers
    chosen = [index for index in layers if index < trunk] or list(layers[:1])
    drawn, alike = _representative(shape, chosen)

    def run(batch: Batch, masks: Mapping[str, int]) -> int:
        builder = Builder(shape, settings, batch, masks, copies)
        builder.away = away
        try:
            return builder.run(drawn, begins=begins, output=output, alike=alike)
        except KeyError as missing:
            raise ProfileError(
                f"{shape.path}: a block has no tensor {missing.args[0]}, which the engine needs for {shape.arch}",
                help="the file is incomplete or was made by another version of the converter",
            ) from None

    def like(other: Batch) -> int:
        return run(other, {name: size // batch.tokens * other.tokens for name, size in masks.items()})

    whole = run(batch, masks)
    if shape.memory is Memory.MSA and batch.indexed(shape):
        # one token for each sequence takes another way, which may need more (sched_reserve reserves both)
        return max(whole, like(replace(batch, tokens=batch.sequences)))
    if shape.arch in _ALSO_ALONE and batch.sequences > 1:
        tokens = min(context.total, settings.ubatch_of(context))
        return max(whole, like(replace(batch, tokens=tokens, sequences=1, streams=1)))
    return whole


def _representative(shape: ModelShape, layers: Sequence[int]) -> tuple[list[LayerShape], list[int]]:
    """At most two neighbours of each kind of layer, since what comes after repeats them; and for each layer that is
    left out, the place of one that it is like."""
    kept: list[LayerShape] = []
    alike: list[int] = []
    seen: dict[LayerShape, list[int]] = {}
    for index in layers:
        layer = shape.layers[index]
        places = seen.setdefault(replace(layer, index=0, nextn=False), [])
        if len(places) < 2 and len(kept) < 2 * _REPLAYED_LAYERS:
            places.append(len(kept))
            kept.append(layer)
        elif places:
            alike.append(places[-1])
    return kept, alike
