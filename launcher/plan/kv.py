"""The bytes of the KV cache, as the engine allocates them: every cache it makes for an architecture, layer by layer.

Follows the pin to the byte: src/llama-kv-cache.cpp:61-300 (one cache), llama-kv-cache-iswa.cpp:37-90 (sliding window),
llama-memory-recurrent.cpp:20-120 (state), llama-kv-cache-dsa.cpp:15-50, -dsa-iswa.cpp:17-80, -msa.cpp:14-50,
llama-memory-hybrid-idx.cpp:24-75 (indexer keys), llama-kv-cache-dsv4.cpp:1213-1340 and 896-1000 (DeepSeek V4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.model.types import storage_type
from launcher.plan.context import ContextSplit, pad
from launcher.profile.tier import Tier

HOST = "host"
_ALIGN = 32  # ggml's TENSOR_ALIGNMENT: each tensor of a buffer begins at a multiple
_F32 = 4
_CSA, _HCA = 4, 128  # src/llama-kv-cache-dsv4.cpp:16-17
EXACT_TYPE = "q8_0"  # patch 0077: what the exact first and recent tokens are stored as


# these keep the states of the last drafted tokens, so that a draft can be taken back (src/llama-arch.cpp:1162); only
# where heads of the model draft, a draft model of its own asks for none (common/common.h:399)
ROLLS_BACK = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
_F16 = Tier("f16", "f16")


@dataclass(frozen=True, slots=True)
class KvSettings:
    """What a profile can ask of the cache, resolved.

    tiers           patch 0074: another tier for some layers
    flash           flash attention; without it V is stored transposed, every layer padded to the widest
    rollback        states kept per sequence for speculative decoding, beyond the current one (`n_rs_seq`)
    exact           patch 0077: tokens kept exact, the first and the most recent
    heads_on_device patch 0020: share of the KV heads that stay on the device; the rest lie on the host
    device_cells    patch 0075: cells of a full-attention layer that stay on the device; the rest lie on the host
    """

    tier: Tier = _F16
    tiers: Mapping[int, Tier] = field(default_factory=dict)
    swa_full: bool = False
    batch: int = 2048
    ubatch: int = 512
    flash: bool = True
    rollback: int = 0
    exact: tuple[int, int] = (0, 0)
    heads_on_device: float | None = None
    device_cells: int | None = None

    def of(self, layer: int) -> Tier:
        """The tier of one layer."""
        return self.tiers.get(layer, self.tier)

    def ubatch_of(self, context: ContextSplit) -> int:
        """The ubatch that the engine settles on: src/llama-context.cpp:248-250."""
        return min(context.emitted, self.batch, self.ubatch or self.batch)


@dataclass(frozen=True, slots=True)
class KvPart:
    """The part of the cache that one device holds of one of the engine's caches.

    kind   full, swa, recurrent, pool
    cache  which of the engine's caches: main, swa, indexer, state, exact, csa, hca …
    cells  rows of one layer, all sequences together
    """

    kind: str
    device: str
    layers: int
    cells: int
    k_bytes: int
    v_bytes: int
    cache: str = "main"

    @property
    def bytes(self) -> int:
        """K and V."""
        return self.k_bytes + self.v_bytes

    def as_json(self) -> dict[str, object]:
        """`plan --json` → kv.parts (contract.md)."""
        return {
            "kind": self.kind,
            "device": self.device,
            "layers": self.layers,
            "cells": self.cells,
            "k_bytes": self.k_bytes,
            "v_bytes": self.v_bytes,
            "cache": self.cache,
        }


@dataclass(frozen=True, slots=True)
class Cache:
    """One of the caches that the engine makes: rows of these widths (elements of K and of V) for each of its layers.

    cells    rows of one layer for one stream; streams: one for each sequence, one for all when unified
    growing  False for what does not grow with the context
    """

    name: str
    kind: str
    cells: int
    streams: int
    rows: tuple[tuple[int, int, int], ...]  # layer, K width, V width
    types: Tier | None = None  # None: the layer's tier
    growing: bool = True
    splits: bool = True  # patches 0020 and 0075 divide it


def kv_parts(
    shape: ModelShape, context: ContextSplit, settings: KvSettings, devices: Sequence[str] = ()
) -> tuple[KvPart, ...]:
    """Every part of the cache. `devices` says for each layer which device holds its cache (empty: all on the host)."""
    parts: list[KvPart] = []
    for cache in caches(shape, context, settings):
        parts.extend(_divide(shape, cache, settings, devices))
    return tuple(part for part in parts if part.bytes)


def mtp_parts(
    shape: ModelShape, context: ContextSplit, settings: KvSettings, devices: Sequence[str] = ()
) -> tuple[KvPart, ...]:
    """The cache of the drafting context over the model's own nextn blocks: a plain one (src/llama-model.cpp:2393)."""
    blocks = [layer for layer in shape.layers if layer.nextn and layer.k_width]
    cache = _full(shape, context, settings, blocks)
    return tuple(part for part in _divide(shape, replace(cache, splits=False), settings, devices) if part.bytes)


def kv_bytes(parts: Sequence[KvPart], device: str | None = None) -> int:
    """The sum, of one device or of all."""
    return sum(part.bytes for part in parts if device in (None, part.device))


def bytes_per_token(shape: ModelShape, settings: KvSettings) -> float:
    """What one more token of context costs, on all devices together: layers that slide or recur cost nothing more."""
    total = 0.0
    for cache in caches(shape, _UNIT, settings):
        if not cache.growing:
            continue
        share = cache.cells / _UNIT.per_sequence  # the compressed caches of DeepSeek V4 grow slower
        total += share * sum(
            _row_bytes(cache, row, settings)[0] + _row_bytes(cache, row, settings)[1] for row in cache.rows
        )
    return total


_UNIT = ContextSplit(
    emitted=1 << 20, total=1 << 20, per_sequence=1 << 20, per_slot=1 << 20, slots=1, unified=True, cap=None, train=None
)


def caches(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> tuple[Cache, ...]:
    """The caches that `llama_model::create_memory` makes for this architecture (src/llama-model.cpp:2358-2900)."""
    made = tuple(_MAKERS[shape.memory](shape, context, settings))
    return made + tuple(_exact(made, context, settings))


# the makers, one for each kind of memory


def _none(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from ()


def _kv(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield _full(shape, context, settings, shape.cached_layers)


def _iswa(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield _full(shape, context, settings, [layer for layer in shape.cached_layers if not layer.swa])
    yield _sliding(shape, context, settings, [layer for layer in shape.cached_layers if layer.swa])


def _recurrent(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    """Always f32, one state for each slot and each step that can be taken back."""
    rows = tuple(
        (layer.index, shape.recurrent.r + (shape.recurrent.ple if layer.ple else 0), shape.recurrent.s)
        for layer in shape.layers
        if layer.recurrent
    )
    states = context.slots * (1 + settings.rollback)
    yield Cache("state", "recurrent", states, 1, rows, Tier("f32", "f32"), growing=False, splits=False)


def _hybrid(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from _kv(shape, context, settings)
    yield from _recurrent(shape, context, settings)


def _hybrid_iswa(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from _iswa(shape, context, settings)
    yield from _recurrent(shape, context, settings)


def _hybrid_idx(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from _hybrid(shape, context, settings)
    yield _indexer(shape, context, value=False)


def _dsa(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from _kv(shape, context, settings)
    yield _indexer(shape, context, value=not shape.is_mla)


def _dsa_iswa(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    yield from _iswa(shape, context, settings)
    yield _indexer(shape, context, value=not shape.is_mla)


def _msa(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    """The indexer's cache is shaped like any other: it gets a V that nothing reads (llama-kv-cache-msa.cpp:38-50)."""
    yield from _kv(shape, context, settings)
    yield _indexer(shape, context, value=True)


def _dsv4(shape: ModelShape, context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    """A raw window for every layer, rows of 4 or 128 tokens, indexer keys and the compressors' states.

    K only, and a stream for each sequence even when unified (llama-kv-cache-dsv4.cpp:1244-1247).
    """
    seqs, size, ubatch = context.slots, context.per_sequence, settings.ubatch_of(context)
    window = size if settings.swa_full else pad(min(size, shape.window + ubatch))
    csa = [layer for layer in shape.layers if layer.compress == _CSA]
    hca = [layer for layer in shape.layers if layer.compress == _HCA]
    length = shape.layers[0].key_length
    indexer = shape.indexer_length

    def rows(layers: Sequence[LayerShape], width: int | None = None) -> tuple[tuple[int, int, int], ...]:
        return tuple((layer.index, width or layer.k_width, 0) for layer in layers)

    yield Cache("swa", "swa", window, seqs, rows(shape.layers), growing=settings.swa_full, splits=False)
    yield Cache("csa", "full", pad(-(-size // _CSA)), seqs, rows(csa), splits=False)
    yield Cache("hca", "full", pad(-(-size // _HCA)), seqs, rows(hca), splits=False)
    yield Cache("indexer", "full", pad(-(-size // _CSA)), seqs, rows(csa, indexer), splits=False)
    trunk = len(shape.layers) - shape.nextn_layers
    planes = seqs * (1 + settings.rollback)
    for name, layers, state, width in (
        ("csa-state", csa, 2 * _CSA, 2 * length),
        ("hca-state", hca, _HCA, length),
        ("indexer-state", csa, 2 * _CSA, 2 * indexer),
    ):
        # two tensors of a layer: kv and score
        held = tuple((layer.index, width, width) for layer in layers if layer.index < trunk)
        yield Cache(name, "recurrent", state * planes, 1, held, Tier("f32", "f32"), growing=False, splits=False)


_MAKERS = {
    Memory.NONE: _none,
    Memory.KV: _kv,
    Memory.ISWA: _iswa,
    Memory.RECURRENT: _recurrent,
    Memory.HYBRID: _hybrid,
    Memory.HYBRID_ISWA: _hybrid_iswa,
    Memory.HYBRID_IDX: _hybrid_idx,
    Memory.DSA: _dsa,
    Memory.DSA_ISWA: _dsa_iswa,
    Memory.MSA: _msa,
    Memory.DSV4: _dsv4,
}


# one cache


def _streams(context: ContextSplit) -> int:
    return 1 if context.unified else context.slots


def _full(shape: ModelShape, context: ContextSplit, settings: KvSettings, layers: Sequence[LayerShape]) -> Cache:
    return Cache("main", "full", context.per_sequence, _streams(context), _rows(shape, settings, layers))


def _sliding(shape: ModelShape, context: ContextSplit, settings: KvSettings, layers: Sequence[LayerShape]) -> Cache:
    """llama-kv-cache-iswa.cpp:56-66: the window of every sequence that shares it, and one ubatch."""
    size = context.per_sequence
    if not settings.swa_full:
        sharing = context.slots if context.unified else 1
        size = pad(min(size, shape.window * sharing + settings.ubatch_of(context)))
    return Cache(
        "swa", "swa", size, _streams(context), _rows(shape, settings, layers), growing=settings.swa_full, splits=False
    )


def _rows(shape: ModelShape, settings: KvSettings, layers: Sequence[LayerShape]) -> tuple[tuple[int, int, int], ...]:
    widest = max((layer.v_width for layer in shape.layers), default=0)

    def v_width(layer: LayerShape) -> int:
        if shape.is_mla:
            return 0
        return layer.v_width if settings.flash else widest  # [TAG_V_CACHE_VARIABLE]

    return tuple((layer.index, layer.k_width, v_width(layer)) for layer in layers)


def _indexer(shape: ModelShape, context: ContextSplit, *, value: bool) -> Cache:
    """One key head for each layer that has an indexer; V only where the engine cannot help it."""
    rows = tuple(
        (layer.index, shape.indexer_length, layer.value_length if value else 0)
        for layer in shape.layers
        if layer.indexer
    )
    return Cache("indexer", "full", context.per_sequence, _streams(context), rows, splits=False)


def _exact(made: Sequence[Cache], context: ContextSplit, settings: KvSettings) -> Iterator[Cache]:
    """Patch 0077: a second, small cache over the layers of the main one, for the first and the most recent tokens."""
    first, recent = settings.exact
    if not first + recent:
        return
    sharing = context.slots if context.unified else 1
    size = pad((first + recent) * sharing + settings.ubatch_of(context))
    for cache in made:
        if cache.name == "main" and cache.rows:
            yield replace(
                cache,
                name="exact",
                cells=min(cache.cells, size),
                types=Tier(EXACT_TYPE, EXACT_TYPE),
                growing=False,
                splits=False,
            )


# bytes


@lru_cache(maxsize=4096)
def row_bytes(type_name: str, width: int) -> int:
    """Bytes of a cache row; a last, incomplete block counts whole (the engine refuses it, a rule says so)."""
    kind = storage_type(type_name)
    return -(-width // kind.block) * kind.size


def _row_bytes(cache: Cache, row: tuple[int, int, int], settings: KvSettings) -> tuple[int, int]:
    layer, k_width, v_width = row
    types = cache.types or settings.of(layer)
    return row_bytes(types.k, k_width), row_bytes(types.v, v_width)


def _divide(shape: ModelShape, cache: Cache, settings: KvSettings, devices: Sequence[str]) -> Iterator[KvPart]:
    """The parts of one cache by device: by layers, then by heads or cells where a patch divides a layer."""
    held: dict[str, list[int]] = {}  # device → layers, cells, K bytes, V bytes

    def add(device: str, cells: int, k: int, v: int) -> None:
        entry = held.setdefault(device, [0, cells, 0, 0])
        entry[0] += 1
        entry[1] = max(entry[1], cells)
        entry[2] += _aligned(k)
        entry[3] += _aligned(v)

    cells = cache.cells * cache.streams
    for row in cache.rows:
        layer, k_width, v_width = row
        device = devices[layer] if layer < len(devices) else HOST
        k, v = _row_bytes(cache, row, settings)
        heads = shape.layers[layer].kv_heads
        if device == HOST or not cache.splits:
            add(device, cells, k * cells, v * cells)
        elif settings.heads_on_device is not None and heads > 1 and not shape.is_mla:
            kept = heads_kept(settings.heads_on_device, heads)
            types = settings.of(layer)
            near_k, near_v = row_bytes(types.k, k_width // heads * kept), row_bytes(types.v, v_width // heads * kept)
            add(device, cells, near_k * cells, near_v * cells)
            add(HOST, cells, (k - near_k) * cells, (v - near_v) * cells)
        elif settings.device_cells is not None:
            near = min(cache.cells, settings.device_cells) * cache.streams
            add(device, near, k * near, v * near)
            if cells > near:
                add(HOST, cells - near, k * (cells - near), v * (cells - near))
        else:
            add(device, cells, k * cells, v * cells)
    for device, (layers, rows, k, v) in held.items():
        yield KvPart(cache.kind, device, layers, rows, k, v, cache.name)


def heads_kept(fraction: float, heads: int) -> int:
    """KV heads that stay on the device: `clamp(lround(F × n), 1, n − 1)` (patch 0020); lround rounds halves up."""
    return max(1, min(heads - 1, int(fraction * heads + 0.5)))


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
