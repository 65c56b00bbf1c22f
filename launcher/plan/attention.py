"""Attention on a sketch of the graph: the plain kind with its projections, MLA, and what gates their results.

Follows src/llama-graph.cpp of the pin (build_qkv, build_attn, build_attn_mha) and src/models/deepseek2.cpp.
"""

from __future__ import annotations

from launcher.model.layers import LayerShape, Memory
from launcher.plan.sketch import Names, Sketch

# K is handed to the graph before V, which the plain cache does the other way round (src/llama-graph.cpp, build_attn)
_K_FIRST = frozenset({Memory.ISWA, Memory.HYBRID_ISWA, Memory.MSA, Memory.NONE})
_K_FIRST_ANYWAY = frozenset({"lfm2", "lfm2moe"})  # expanded one by one
_ROPED_WHERE_SLIDING = frozenset({"cohere2", "exaone4", "exaone-moe", "muse-glimmer"})  # others: no positions
_NO_ROPE = frozenset({"refact", "bloom", "mpt", "gpt2", "starcoder", "jais", "jamba", "nemotron_h", "nemotron_h_moe"})
_NO_ROPE_MLA = frozenset({"kimi-linear", "kimi-k3", "glm5-next"})
_ROPE_STEP = {"llama4": 4, "afmoe": 4, "smollm3": 4}  # n_no_rope_layer_step: every so-manieth layer has none


def roped(sketch: Sketch, layer: LayerShape) -> bool:
    """Whether a layer turns Q and K by position: what is not turned needs no place of its own."""
    arch = sketch.shape.arch
    if arch in _NO_ROPE:
        return False
    if arch in _ROPED_WHERE_SLIDING:
        return layer.swa or not sketch.shape.window
    if arch == "cohere2moe":  # src/models/cohere2moe.cpp: the dense ones at the front too
        return layer.swa or layer.index < sketch.key("leading_dense_block_count")
    step = _ROPE_STEP.get(arch)
    return step is None or (layer.index + 1) % step != 0


def attend_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names, *, last: bool = False) -> int:
    """Everything up to the output projection, which the engine evaluates when something reads it; `last`: only after
    the feed-forward part, and so is what stands before it."""
    if "attn_kv_b.weight" in names:
        q, k, v, whole_q = *_unpacked(sketch, layer, x, names), None
    else:
        q, k, v, whole_q = _projections(sketch, layer, x, names)
    store(sketch, layer, k, "k")
    store(sketch, layer, v, "v")
    uncached = (k, v) if sketch.shape.memory is Memory.NONE else ()
    attended = scores(sketch, layer, q, layer.value_length, *uncached)
    size = sketch.row(layer.heads * layer.value_length)
    if not last:
        attended = turned_back(sketch, layer, attended)
    if whole_q is not None:  # qwen3next: the other half of Q is a gate
        gate = sketch.graph.over(size, sketch.graph.op(size, sketch.graph.part(whole_q, size)))
        return sketch.graph.over(size, sketch.graph.view(attended), gate)
    return gated(sketch, attended, size, x, names)


def gated(sketch: Sketch, attended: int, size: int, x: int, names: Names) -> int:
    """A gate over the result, by element or by head (src/models/afmoe.cpp, kimi-k3.cpp, bailingmoe3.cpp)."""
    if "attn_gate.weight" not in names:
        return attended
    gate = sketch.product(names, "attn_gate", x)
    gate = sketch.graph.over(size, gate)
    return sketch.graph.over(size, sketch.graph.view(attended), gate)


def turned_for_cache(sketch: Sketch, layer: LayerShape, size: int, rows: int, which: str) -> int:
    """Rows of Q and K, or of V, turned by a Hadamard matrix where the cache is quantized."""
    if not sketch.turns(layer, which):
        return rows
    return sketch.graph.op(size, sketch.rotation(layer, which), sketch.graph.view(rows))


def turned_back(sketch: Sketch, layer: LayerShape, attended: int) -> int:
    """V was turned before it was stored, so the result is turned back."""
    if not sketch.turns(layer, "v"):
        return attended
    size = sketch.row(layer.heads * layer.value_length)
    return sketch.graph.op(size, sketch.rotation(layer, "v"), sketch.graph.view(attended))


def project(sketch: Sketch, attended: int) -> int:
    """The output matrix."""
    return sketch.graph.op(sketch.row(sketch.width), sketch.graph.view(attended))


def store(sketch: Sketch, layer: LayerShape, rows: int, which: str) -> None:
    """Rows of K or V go into the cache; without flash attention V lies transposed, and each element has an index."""
    if not layer.cached:
        return
    kind = "swa" if layer.swa else "main"
    spread = 1 if which == "k" or sketch.batch.flash else sketch.widest
    ids = sketch.given(f"{which} rows {kind}", 8 * sketch.tokens * spread)
    sketch.written(sketch.graph.view(rows), ids)


def scores(sketch: Sketch, layer: LayerShape, q: int, value_length: int, *uncached: int) -> int:
    """Attention itself: fused, or scores of every head for every cell. `uncached`: K and V that come from no cache."""
    graph = sketch.graph
    name = "swa" if layer.swa and "swa" in sketch.masks else "main"
    bytes_of_mask = sketch.masks.get(name, 0)
    mask = sketch.given(f"mask {name}", bytes_of_mask)
    out = sketch.row(layer.heads * value_length)
    if sketch.batch.flash:
        return graph.op(out, graph.view(q), mask, *uncached)
    # f32 like the mask: [cells, tokens of a stream, heads] for each stream
    size = layer.heads * bytes_of_mask
    found = graph.over(size, graph.op(size, graph.view(q), *uncached[:1]), mask)
    return graph.op(out, graph.op(out, found, *uncached[1:]))


def _projections(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> tuple[int, int, int, int | None]:
    """Q, K, V, and the whole of a Q that carries a gate. From one fused matrix: copies of its parts."""
    graph, turned = sketch.graph, roped(sketch, layer)
    q_size, k_size = sketch.row(layer.heads * layer.key_length), sketch.row(layer.k_width)
    v_size = sketch.row(layer.v_width)
    if sketch.turns(layer, "k"):  # the graph meets the matrix before the positions
        sketch.rotation(layer, "k")
    normed = "attn_q_norm.weight" in names or sketch.shape.arch in ("talkie", "llama4")

    def hadamard(size: int, node: int, which: str) -> int:
        return turned_for_cache(sketch, layer, size, node, which)

    def placed(size: int, node: int) -> int:
        """A norm of every head, positions: made beside a view, then over itself."""
        if turned:
            return graph.op(size, node, sketch.positions)
        return graph.op(size, node) if normed else node

    if "attn_qkv.weight" in names:
        whole = q_size + k_size + v_size
        fused = graph.op(whole, x)
        if "attn_qkv.bias" in names:
            fused = graph.over(whole, fused)

        def whole_rows(size: int, node: int, which: str) -> int:
            """What is turned must lie in one piece, so a part is copied first (src/llama-impl.h:65)."""
            return graph.op(size, node) if sketch.turns(layer, which) else node

        made = turned or normed
        q = placed(q_size, graph.part(fused, q_size))
        q = hadamard(q_size, q if made else whole_rows(q_size, q, "k"), "k")
        v = hadamard(v_size, whole_rows(v_size, graph.part(fused, v_size), "v"), "v")
        k = placed(k_size, graph.part(fused, k_size))
        k = hadamard(k_size, k if made else whole_rows(k_size, k, "k"), "k")
        return q, k, v, None

    dims = names.get("attn_q.weight", ())
    twice = bool(dims) and dims[-1] == 2 * layer.heads * layer.key_length and "attn_gate.weight" not in names
    whole_q = graph.op(2 * q_size, x) if twice else None
    q = placed(q_size, graph.view(graph.op(q_size, x)) if whole_q is None else graph.part(whole_q, q_size))
    q = hadamard(q_size, q, "k")

    def of_k() -> int:
        return hadamard(k_size, placed(k_size, graph.view(graph.op(k_size, x))), "k")

    def of_v() -> int:
        return hadamard(v_size, graph.view(graph.op(v_size, x)), "v")

    if layer.reuses is not None:  # the layer whose cache it reads has stored them
        return q, q, q, whole_q
    if sketch.shape.memory is Memory.NONE:
        k, v = of_k(), of_v()
        if sketch.batch.flash:  # copies in f16: build_attn_mha casts what comes from no cache
            k, v = graph.op(k_size // 2, graph.view(k)), graph.op(v_size // 2, graph.view(v))
        return q, k, v, whole_q
    if sketch.shape.memory in _K_FIRST or sketch.shape.arch in _K_FIRST_ANYWAY:
        k = of_k()
        return q, k, of_v(), whole_q
    v = of_v()
    return q, of_k(), v, whole_q


def _unpacked(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> tuple[int, int, int]:
    """Latents that are made heads of before they are stored (src/models/minicpm3.cpp)."""
    graph, row, heads = sketch.graph, sketch.row, layer.heads
    turned = sketch.key("rope.dimension_count")
    low = x
    if "attn_q_a.weight" in names:
        size = row(names["attn_q_a.weight"][-1])
        low = graph.over(size, graph.op(size, x))
    q_size = row(heads * layer.key_length)
    if sketch.turns(layer, "k"):
        sketch.rotation(layer, "k")
    q = graph.op(q_size, graph.view(graph.op(q_size, low)), sketch.positions)
    q = turned_for_cache(sketch, layer, q_size, q, "k")
    latent = sketch.product(names, "attn_kv_a_mqa", x)
    normed = graph.op(row(names["attn_kv_b.weight"][0]), graph.part(latent, 0))
    both = sketch.product(names, "attn_kv_b", normed)
    v = graph.op(row(layer.v_width), graph.part(both, 0))
    shared = graph.op(row(turned), graph.part(latent, 0), sketch.positions)
    k = graph.op(row(layer.k_width), graph.part(both, 0), graph.op(row(heads * turned), shared))
    v = turned_for_cache(sketch, layer, row(layer.v_width), v, "v")
    return q, turned_for_cache(sketch, layer, row(layer.k_width), k, "k"), v


def query_of_latents(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> tuple[int, int]:
    """MLA: the low-rank query, and Q carried into the latent space (src/models/deepseek2.cpp). (low, Q)"""
    graph, heads, key, value = sketch.graph, layer.heads, layer.key_length, layer.value_length
    low = x
    if "attn_q_a.weight" in names:
        size = sketch.row(names["attn_q_a.weight"][-1])
        low = graph.over(size, graph.op(size, x))
    q = graph.op(sketch.row(heads * (sketch.shape.mla_key_length or key)), low)
    absorbed = graph.op(sketch.row(heads * value), graph.part(q, 0))
    if key == value:  # no part of it has a position (src/models/glm5-next.cpp)
        return low, absorbed
    rest = _turned(sketch, heads * (key - value), graph.part(q, 0))
    return low, graph.op(sketch.row(heads * key), graph.view(absorbed), rest)


def latents(sketch: Sketch, layer: LayerShape, x: int) -> int:
    """MLA: the one row of K that all heads share."""
    graph, key, value = sketch.graph, layer.key_length, layer.value_length
    latent = graph.op(sketch.row(key), x)
    if key == value:
        return graph.over(sketch.row(value), latent)
    normed = graph.op(sketch.row(value), graph.part(latent, 0))
    rest = _turned(sketch, key - value, graph.part(latent, 0))
    return graph.op(sketch.row(key), normed, rest)


def _turned(sketch: Sketch, width: int, part: int) -> int:
    if sketch.shape.arch in _NO_ROPE_MLA:
        return part
    return sketch.graph.op(sketch.row(width), part, sketch.positions)


def attend_latents(sketch: Sketch, layer: LayerShape, q: int, mask: int | None, x: int, names: Names) -> int:
    """MLA: attention over the latents, and the way back to the heads; `mask`: made by an indexer."""
    graph, heads, value = sketch.graph, layer.heads, layer.value_length
    attended = (
        scores(sketch, layer, q, value)
        if mask is None
        else graph.op(sketch.row(heads * value), graph.view(q), graph.view(mask))
    )
    size = sketch.row(heads * (sketch.shape.mla_value_length or value))
    opened = graph.op(size, graph.view(graph.op(size, graph.view(attended))))
    return gated(sketch, opened, size, x, names)


def mla_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """MLA without an indexer, up to the output projection."""
    _, q = query_of_latents(sketch, layer, x, names)
    k = latents(sketch, layer, x)
    store(sketch, layer, k, "k")
    return attend_latents(sketch, layer, q, None, x, names)
