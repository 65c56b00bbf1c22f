"""What each architecture of the pinned engine makes of its header: which layers attend, slide, recur or share.

The tables follow `load_arch_hparams` in src/models/*.cpp and `llama_model::create_memory` (src/llama-model.cpp:2358) of
the pin. An architecture that stands in no table is a plain transformer, as in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.model.gguf import TensorInfo
from launcher.model.keys import Keys
from launcher.model.layers import LayerShape, Memory, Recurrent, Window

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS, src/llama-hparams.h:10


@dataclass(frozen=True, slots=True)
class Swa:
    """How an architecture slides.

    period       every period-th layer is dense where the header has no pattern (0: all slide, 1: none)
    dense_first  the dense layer is the first of its period, else the last
    window       tokens where the header does not say; None: the header must
    optional     without the key, or with 0, nothing slides
    forced       tokens whatever the header says
    array        the header must bring the pattern as an array
    """

    period: int = 1
    dense_first: bool = False
    window: int | None = None
    optional: bool = False
    forced: int | None = None
    array: bool = False
    kind: Window = Window.STANDARD


_SWA: dict[str, Swa] = {
    "afmoe": Swa(4, optional=True),
    "cohere2": Swa(4),
    "cohere2moe": Swa(4, dense_first=True),
    "deepseek4": Swa(0),
    "dflash": Swa(optional=True, array=True),
    "dots3note": Swa(array=True),
    "exaone-moe": Swa(4, window=128),
    "exaone4": Swa(4, window=4096),
    "gemma-embedding": Swa(6, kind=Window.SYMMETRIC),
    "gemma2": Swa(2, window=4096),
    "gemma3": Swa(6, optional=True),
    "gemma3n": Swa(5),
    "gemma4": Swa(array=True),
    "gemma4-assistant": Swa(array=True),
    "gpt-oss": Swa(2),
    "granite_swa": Swa(array=True),
    "laguna": Swa(4, dense_first=True, optional=True),
    "llama4": Swa(4, forced=8192, kind=Window.CHUNKED),
    "maple": Swa(array=True),
    "mellum": Swa(4, optional=True),
    "mimo2": Swa(array=True),
    "modern-bert": Swa(3, dense_first=True, optional=True, kind=Window.SYMMETRIC),
    "muse-glimmer": Swa(4),
    "olmo2": Swa(4, optional=True),
    "plamo3": Swa(8, optional=True),
    "smallthinker": Swa(4, dense_first=True, optional=True, forced=4096),
    "spark2_5": Swa(array=True),
    "step35": Swa(array=True),
}

_NO_MEMORY = frozenset(
    {
        "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert",
        "wavtokenizer-dec", "modern-bert", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "clef",
    }
)  # fmt: skip
_DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1", "gemma-embedding"})  # set causal_attn = false
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
# recurrent where a layer has no KV heads
_HYBRID_BY_HEADS = frozenset(
    {"jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"}
)
# recurrent but for every n-th layer, where the header has no array
_HYBRID_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_NEMOTRON_H = frozenset({"nemotron_h", "nemotron_h_moe"})
_HYBRID = _HYBRID_BY_HEADS | _HYBRID_BY_INTERVAL.keys() | _NEMOTRON_H | {"falcon-h1"}

_MLA = frozenset(
    {
        "deepseek2", "deepseek2-ocr", "mistral4", "deepseek32", "glm-dsa", "dots3note", "bailingmoe3", "glm5-next",
        "hy_v4", "kimi-linear", "kimi-k3",
    }
)  # fmt: skip
_INDEXER = frozenset({"deepseek32", "glm-dsa", "dots3note", "glm5-next", "hy_v4", "qwen4exp", "minimax-m3"})
_FILTERED_BY_NEXTN = frozenset({"deepseek32", "glm-dsa", "dots3note", "glm5-next"})
_V_IS_LATENT = frozenset({"glm5-next", "kimi-k3"})  # n_embd_head_v_full = kv_lora_rank
_SHARED_KV = frozenset({"gemma3n", "gemma4"})


_NO_STATE = Recurrent()


@dataclass(frozen=True, slots=True)
class Attention:
    """The answer of `read_attention`: the part of a ModelShape that depends on the architecture."""

    kind: str
    memory: Memory
    block_count: int
    nextn_layers: int
    layers: tuple[LayerShape, ...]
    window: int = 0
    window_kind: Window = Window.NONE
    is_mla: bool = False
    indexer_length: int = 0
    recurrent: Recurrent = _NO_STATE
    causal: bool = True


def read_attention(keys: Keys, tensors: Sequence[TensorInfo]) -> Attention:
    """Layers and cache of a model; an adapter or a projector has neither."""
    kind = keys.text("general.type", "model")
    if keys.arch == "clip":
        kind = "mmproj"
    if kind in ("mmproj", "adapter"):
        return Attention(kind, Memory.NONE, 0, 0, ())
    blocks = keys.count("block_count")
    if not 0 < blocks <= _MAX_LAYERS:
        raise keys.fault("block_count", f"is {blocks}; the engine takes 1 to {_MAX_LAYERS}")
    nextn = _nextn(keys, tensors, blocks)
    layers, nextn = _loops_and_router(keys, _heads(keys, blocks, nextn), nextn)
    trunk = len(layers) - nextn
    window, layers = _slide(keys, layers, trunk)
    layers = _recur(keys, layers, trunk)
    if keys.arch == "lfm2" and window:
        layers = [replace(layer, swa=not layer.recurrent and layer.index < trunk) for layer in layers]
    layers = _swa_lengths(keys, layers)
    layers, indexer = _indexers(keys, layers, trunk)
    memory = _memory(keys, window > 0, indexer)
    layers = _cached(keys, layers, trunk, memory)
    swa = _SWA.get(keys.arch)
    return Attention(
        kind=kind,
        memory=memory,
        block_count=blocks,
        nextn_layers=nextn,
        layers=tuple(layers),
        window=window,
        window_kind=(swa.kind if swa else Window.STANDARD) if window else Window.NONE,
        is_mla=_is_mla(keys),
        indexer_length=indexer,
        recurrent=_state(keys, layers),
        causal=keys.arch not in _DIFFUSION,
    )


def _nextn(keys: Keys, tensors: Sequence[TensorInfo], blocks: int) -> int:
    nextn = keys.count("nextn_predict_layers", 0)
    if nextn > blocks:
        raise keys.fault("nextn_predict_layers", f"is {nextn}, more than the {blocks} blocks there are")
    # src/models/deepseek4.cpp:18-26: the key stays when a converter leaves the blocks out
    probe = f"blk.{blocks - nextn}.nextn.eh_proj.weight"
    if keys.arch == "deepseek4" and nextn and not any(tensor.name == probe for tensor in tensors):
        return 0
    return nextn


def _heads(keys: Keys, blocks: int, nextn: int) -> list[LayerShape]:
    """Heads and their lengths before the architecture has its say (src/llama-model.cpp:1391-1470)."""
    heads = keys.layers("attention.head_count", blocks)
    kv_heads = keys.layers("attention.head_count_kv", blocks) if "attention.head_count_kv" in keys else heads
    ff = keys.layers("feed_forward_length", blocks)
    used = keys.layers("expert_used_count", blocks)
    key_length = value_length = 0
    if heads[0]:
        even = keys.count("embedding_length") // heads[0]
        key_length = keys.count("attention.key_length", even)
        value_length = keys.count("attention.value_length", even)
    if keys.arch == "plamo2":  # its first layer may be recurrent (head count 0): it reads the lengths again
        key_length = keys.count("attention.key_length", key_length)
        value_length = keys.count("attention.value_length", value_length)
    if keys.arch in _V_IS_LATENT:
        value_length = keys.count("attention.kv_lora_rank")
    return [
        LayerShape(
            index=index,
            heads=heads[index],
            kv_heads=kv_heads[index],
            key_length=key_length,
            value_length=value_length,
            nextn=index >= blocks - nextn,
            ff_length=ff[index],
            experts_used=used[index],
        )
        for index in range(blocks)
    ]


def _loops_and_router(keys: Keys, layers: list[LayerShape], nextn: int) -> tuple[list[LayerShape], int]:
    """Two architectures cache more layers than they have blocks: nanbeige.cpp:14-33, granite-switch.cpp:58-72."""
    if keys.arch == "nanbeige":
        loops = keys.count("num_loops", 1)
        if not 1 <= loops * len(layers) <= _MAX_LAYERS:
            raise keys.fault("num_loops", f"is {loops}; {loops} × {len(layers)} blocks is more than the engine takes")
        looped = [layer for _ in range(loops) for layer in layers]
        return [replace(layer, index=index) for index, layer in enumerate(looped)], nextn
    if keys.arch == "graniteswitch":
        last = layers[-1]
        return [*layers, replace(last, index=len(layers), heads=1, kv_heads=1, ff_length=0, nextn=True)], 1
    return layers, nextn


def _slide(keys: Keys, layers: list[LayerShape], trunk: int) -> tuple[int, list[LayerShape]]:
    """The window, and which layers see only that much."""
    arch = keys.arch
    if arch == "lfm2":  # all its attention layers, once it is known which these are
        return keys.count("attention.sliding_window", 0), layers
    swa = _SWA.get(arch)
    if arch == "exaone4" and trunk != 64:  # exaone4.cpp:4: only the 32B slides
        swa = None
    if swa is None:
        return 0, layers
    hyper = arch == "dflash" and keys.count("hyper_connection.count", 0) > 0
    window = _window(keys, swa, optional=swa.optional and not hyper)
    if not window:
        return 0, layers
    pattern = keys.pattern("attention.sliding_window_pattern")
    if arch == "deepseek4" or hyper:  # deepseek4.cpp:67-73, dflash.cpp:84-88: every layer, nextn too
        pattern = [1] * len(layers)
    if pattern is None:
        if swa.array:
            raise keys.fault("attention.sliding_window_pattern", "is missing; it must list which layers slide")
        pattern = _periodic(keys.count("attention.sliding_window_pattern", swa.period), swa.dense_first, trunk)
    pattern += [0] * (len(layers) - len(pattern))
    slid = [replace(layer, swa=bool(pattern[layer.index])) for layer in layers]
    if arch == "modern-bert" and (heads := keys.count("decision.block_count", 0)):
        slid = [replace(layer, swa=layer.swa and layer.index < trunk - heads) for layer in slid]
    return window, slid


def _window(keys: Keys, swa: Swa, optional: bool) -> int:
    name = "attention.sliding_window"
    if keys.arch == "llama4":  # llama4.cpp:7-18: 0 turns it off, everything else means 8192
        return 0 if name in keys and keys.count(name) == 0 else 8192
    if optional and keys.count(name, 0) == 0:
        return 0
    if swa.forced is not None:
        return swa.forced
    return keys.count(name, swa.window)


def _periodic(period: int, dense_first: bool, trunk: int) -> list[int]:
    """`llama_hparams::set_swa_pattern`, src/llama-hparams.cpp:8-22."""
    dense = 0 if dense_first else period - 1
    return [int(period == 0 or index % period != dense) for index in range(trunk)]


def _recur(keys: Keys, layers: list[LayerShape], trunk: int) -> list[LayerShape]:
    arch = keys.arch
    if arch in _RECURRENT or arch == "falcon-h1":
        return [replace(layer, recurrent=True) for layer in layers]
    if arch in _HYBRID_BY_HEADS:
        return [
            replace(layer, recurrent=layer.kv_heads == 0 and (layer.index < trunk or arch == "glm5-next"))
            for layer in layers
        ]
    if arch in _NEMOTRON_H:
        return [
            replace(layer, recurrent=layer.index < trunk and layer.kv_heads == 0 and layer.ff_length == 0)
            for layer in layers
        ]
    if arch in _HYBRID_BY_INTERVAL:
        if "attention.recurrent_layers" in keys:
            listed = keys.layers("attention.recurrent_layers", len(layers))
            return [replace(layer, recurrent=bool(listed[layer.index])) for layer in layers]
        interval = keys.count("full_attention_interval", _HYBRID_BY_INTERVAL[arch])
        if interval == 0:
            raise keys.fault("full_attention_interval", "is 0")
        return [replace(layer, recurrent=layer.index < trunk and (layer.index + 1) % interval != 0) for layer in layers]
    return layers


def _swa_lengths(keys: Keys, layers: list[LayerShape]) -> list[LayerShape]:
    """Sliding layers may have heads of another length (src/llama-model.cpp:1463-1470)."""
    if not any(layer.swa for layer in layers):
        return layers
    key_length = keys.count("attention.key_length_swa", layers[0].key_length)
    value_length = keys.count("attention.value_length_swa", layers[0].value_length)
    return [
        replace(layer, key_length=key_length, value_length=value_length) if layer.swa else layer for layer in layers
    ]


def _indexers(keys: Keys, layers: list[LayerShape], trunk: int) -> tuple[list[LayerShape], int]:
    """Which layers have an indexer, and how wide a row of its keys is."""
    arch = keys.arch
    if arch == "deepseek4":
        return _compressed(keys, layers), keys.count("attention.indexer.key_length")
    if arch not in _INDEXER or (arch == "hy_v4" and keys.count("attention.indexer.top_k", 0) == 0):
        return layers, 0
    length = keys.count("attention.indexer.key_length", None if arch != "qwen4exp" else 0)
    if arch == "minimax-m3":
        dense = keys.count("leading_dense_block_count", 0)
        return [replace(layer, indexer=layer.index >= dense) for layer in layers], length
    if arch == "qwen4exp":
        pooled = any(keys.layers("attention.compress_ratios", len(layers)))
        return _ple(keys, [replace(x, indexer=x.index < trunk and not x.recurrent) for x in layers]), length * (
            2 if pooled else 1  # key | pooled key: qwen4exp.cpp:66
        )
    if arch == "glm5-next":
        length *= 3  # key | gate | pooled key: indexer_kpool_row, src/llama-hparams.h:250
    full = _full_indexers(keys, trunk)
    marked = [
        replace(layer, indexer=layer.index < trunk and bool(full[layer.index]) and not layer.recurrent)
        for layer in layers
    ]
    return marked, length


def _full_indexers(keys: Keys, trunk: int) -> list[int]:
    """`is_indexer_full`: the others reuse what the full one before them picked."""
    name = "attention.indexer.types"
    if keys.arch == "deepseek32":
        return [1] * trunk
    if keys.arch == "dots3note":
        given = keys.pattern(name)
        if given is None:
            raise keys.fault(name, "is missing; it must list the indexer of each layer")
        return given[:trunk] + [0] * (trunk - len(given))
    if name in keys:
        return keys.layers(name, trunk)
    if keys.arch == "glm-dsa" and keys.count("context_length") >= 1 << 20:
        # glm-dsa.cpp:6-27, GLM 5.2: the first two, then one in four
        return [int(index < 2 or (index - 2) % 4 == 0) for index in range(trunk)]
    return [0 if keys.arch == "hy_v4" else 1] * trunk


def _compressed(keys: Keys, layers: list[LayerShape]) -> list[LayerShape]:
    name = "attention.compress_ratios"
    ratios = keys.pattern(name)
    if ratios is None or len(ratios) < len(layers):
        raise keys.fault(name, f"must list {len(layers)} layers")
    return [replace(layer, compress=ratios[layer.index]) for layer in layers]


def _ple(keys: Keys, layers: list[LayerShape]) -> list[LayerShape]:
    listed = keys.pattern("ple.layers") or []
    return [replace(layer, ple=layer.index in listed) for layer in layers]


def _is_mla(keys: Keys) -> bool:
    return (
        keys.arch in _MLA
        and keys.count("attention.key_length_mla", 0) > 0
        and keys.count("attention.value_length_mla", 0) > 0
    )


def _memory(keys: Keys, slides: bool, indexer: int) -> Memory:
    """The switch of `create_memory`."""
    arch = keys.arch
    special = {
        "minimax-m3": Memory.MSA,
        "glm-dsa": Memory.DSA,
        "deepseek32": Memory.DSA,
        "glm5-next": Memory.HYBRID_IDX,
        "dots3note": Memory.DSA_ISWA,
        "deepseek4": Memory.DSV4,
    }
    if arch in _NO_MEMORY:
        return Memory.NONE
    if arch in special:
        return special[arch]
    if arch == "hy_v4":
        return Memory.DSA if indexer else Memory.KV
    if arch in _RECURRENT:
        return Memory.RECURRENT
    if arch in _HYBRID:
        if slides:
            return Memory.HYBRID_ISWA
        return Memory.HYBRID_IDX if arch == "qwen4exp" else Memory.HYBRID
    return Memory.ISWA if slides else Memory.KV


def _cached(keys: Keys, layers: list[LayerShape], trunk: int, memory: Memory) -> list[LayerShape]:
    """The layer filters of `create_memory` for the main context, and layers that read another's cache."""
    arch = keys.arch
    from_start = _kv_from_start(keys, len(layers))

    def cached(layer: LayerShape) -> bool:
        if memory in (Memory.NONE, Memory.RECURRENT):
            return False
        if arch == "gemma4-assistant":  # a draft that reads its target's cache (src/llama-model.cpp:2825)
            return False
        if layer.index >= from_start:
            return False
        if arch == "falcon-h1":
            return True
        if arch in _NEMOTRON_H:
            return not layer.recurrent and layer.ff_length == 0
        if arch in _HYBRID_BY_INTERVAL or arch == "glm5-next":
            return layer.index < trunk and not layer.recurrent
        if arch in _HYBRID:
            return not layer.recurrent
        if arch in _FILTERED_BY_NEXTN:
            return layer.index < trunk
        if memory in (Memory.MSA, Memory.DSV4) or arch in ("hy_v4", "graniteswitch") or trunk == 0:
            return True
        return layer.index < trunk

    def reuses(layer: LayerShape) -> int | None:
        # src/llama-model.cpp:2790-2800: the last full or the last sliding layer that has a cache
        if arch in _SHARED_KV and layer.index >= from_start >= 2:
            return from_start - (2 if layer.swa else 1)
        return None

    def recurrent(layer: LayerShape) -> bool:
        if arch in _NEMOTRON_H and layer.ff_length:
            return False
        return layer.recurrent and layer.index < trunk  # llama_memory_recurrent loops over n_layer()

    return [replace(layer, cached=cached(layer), reuses=reuses(layer), recurrent=recurrent(layer)) for layer in layers]


def _kv_from_start(keys: Keys, count: int) -> int:
    if keys.arch == "gemma3n":
        return 20  # gemma3n.cpp:7
    if keys.arch == "gemma4":
        return max(0, count - keys.count("attention.shared_kv_layers", 0))
    return count


def _state(keys: Keys, layers: list[LayerShape]) -> Recurrent:
    """`n_embd_r`, `n_embd_s` and the PLE history: src/llama-hparams.cpp:182-243."""
    if not any(layer.recurrent for layer in layers):
        return _NO_STATE
    arch, embedding = keys.arch, keys.count("embedding_length")
    heads = layers[0].heads
    if wkv := keys.count("wkv.head_size", 0) if arch in _RECURRENT else 0:
        return Recurrent(keys.count("token_shift_count", 2) * embedding, embedding * wkv)
    conv = keys.count("ssm.conv_kernel", 0)
    if arch in ("lfm2", "lfm2moe"):
        cache = keys.count("shortconv.l_cache")
        return Recurrent(embedding * max(cache - 1, 0), 0)
    if kda := keys.count("kda.head_dim", 0):
        return Recurrent(3 * (conv - 1 if conv else 3) * heads * kda, kda * kda * heads)
    if arch == "minimax-01":
        length = layers[0].key_length
        return Recurrent(0, length * length * heads)
    inner, state, groups = keys.count("ssm.inner_size", 0), keys.count("ssm.state_size", 0), _groups(keys)
    r = (conv - 1 if conv else 0) * (inner + 2 * groups * state)
    ple = 0
    if any(layer.ple for layer in layers):
        kernel, size = keys.count("ple.conv_kernel", 0), keys.count("ple.ngram_size", 0)
        ple = max(kernel - 1, 0) * size * keys.count("hyper_connection.count", 0) * embedding
    return Recurrent(r, state * inner, ple)


def _groups(keys: Keys) -> int:
    """Mamba 1 and Jamba have no groups and do not read the key."""
    return 0 if keys.arch in ("mamba", "jamba") else keys.count("ssm.group_count", 0)
