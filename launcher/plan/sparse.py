"""Attention that first picks what it looks at: indexers (DeepSeek 3.2 and its kin), pooled keys, blocks, DeepSeek V4.

Each draws its operations on a sketch, up to the output projection. Follows the pin: src/models/deepseek32.cpp,
glm-dsa.cpp, hy-v4.cpp, dots3note.cpp (indexers), glm5-next.cpp, qwen4exp.cpp (pools), minimax-m3.cpp (blocks),
deepseek4.cpp (compressed rows).
"""

from __future__ import annotations

from launcher.model.layers import LayerShape
from launcher.plan.attention import (
    attend_latents,
    gated,
    latents,
    query_of_latents,
    store,
    turned_back,
    turned_for_cache,
)
from launcher.plan.sketch import F, Names, Sketch, hadamard_bytes

_UNTURNED = frozenset({"hy_v4"})  # its indexer's rows are not turned by a Hadamard matrix
_POOL_PAD = 64  # src/llama-memory-hybrid-idx.cpp:386: pools are counted in grains of 64
_LEAST_POSITIONS = 256  # src/llama-kv-cache-msa.cpp:272: what an empty cache is taken to hold
_CSA, _HCA = 4, 128  # src/llama-kv-cache-dsv4.cpp:16-17


def indexed_latents(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """MLA whose mask leaves the best keys by an indexer; a layer without one takes those of the layer before."""
    graph, row = sketch.graph, sketch.row
    if layer.indexer:
        _index_keys(sketch, x)
    low, q = query_of_latents(sketch, layer, x, names)
    k = latents(sketch, layer, x)
    store(sketch, layer, k, "k")
    if layer.indexer:
        heads, length = sketch.key("attention.indexer.head_count"), sketch.key("attention.indexer.key_length")
        cells = sketch.cells("main")
        asked = graph.op(row(heads * length), graph.view(graph.op(row(heads * length), low)), sketch.positions)
        asked = _index_turned(sketch, asked, heads * length)
        weights = graph.op(row(heads), graph.view(graph.op(row(heads), x)))
        mask = sketch.given("mask indexer", sketch.masks.get("indexer", 0))
        found = graph.op(row(cells), graph.view(asked), weights, mask)
        best = row(min(cells, sketch.key("attention.indexer.top_k") or cells))
        sketch.picked = graph.op(best, graph.op(best, found))
    return attend_latents(sketch, layer, q, _mask_of(sketch), x, names)


def _index_keys(sketch: Sketch, x: int) -> None:
    graph, length = sketch.graph, sketch.key("attention.indexer.key_length")
    size = sketch.row(length)
    key = graph.op(size, graph.op(size, x))
    key = _index_turned(sketch, graph.op(size, graph.view(key), sketch.positions), length)
    sketch.written(graph.view(key), sketch.given("k rows indexer", 8 * sketch.tokens))


def _index_turned(sketch: Sketch, rows: int, width: int) -> int:
    if sketch.shape.arch in _UNTURNED:
        return rows
    matrix = sketch.given("indexer rotation", hadamard_bytes(sketch.key("attention.indexer.key_length")))
    return sketch.graph.op(sketch.row(width), matrix, sketch.graph.view(rows))


def _mask_of(sketch: Sketch, name: str = "main") -> int | None:
    """All closed, the picked cells opened, and the mask that holds for all (build_attn with top_k)."""
    graph, picked = sketch.graph, sketch.picked
    if picked is None:
        return None
    size = sketch.masks.get(name, 0)
    mask = sketch.given(f"mask {name}", size)
    rows = sketch.row(sketch.cells(name)) if name == "main" else size
    opened = graph.over(rows, sketch.leaf(rows))  # a plane of zeros for every layer
    closed = graph.over(size, mask)
    chosen = graph.set_rows(closed, opened, graph.view(picked))
    return graph.over(size, graph.view(chosen), mask)


# pools


def _pools(sketch: Sketch) -> tuple[int, int, int]:
    """Pools that the caches of all sequences hold, pools that a token sees, and those it picks."""
    ratio = sketch.key("attention.indexer.kpool") or 4
    real = sketch.cells("main") // ratio * sketch.batch.sequences
    seen = -(-(real + 1) // _POOL_PAD) * _POOL_PAD
    return real, seen, min(seen, (sketch.key("attention.indexer.top_k") or ratio * seen) // ratio)


def pooled_latents(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """GLM 5 next: keys and gates of some tokens are pooled, the best pools picked, and their tokens let through."""
    graph, row = sketch.graph, sketch.row
    length, heads = sketch.key("attention.indexer.key_length"), sketch.key("attention.indexer.head_count")
    ratio = sketch.key("attention.indexer.kpool") or 4
    real, seen, best = _pools(sketch)
    whole = best * ratio + ratio - 1
    _pool_inputs(sketch, ratio, real, seen, whole, by_rank=True)
    key = graph.op(row(length), graph.op(row(length), x))
    packed = graph.op(row(2 * length), key, graph.op(row(length), x))
    packed = graph.op(row(3 * length), packed, graph.over(row(length), sketch.leaf(row(length))))
    sketch.written(graph.view(packed), sketch.given("k rows indexer", 8 * sketch.tokens))
    pool = length * real * F
    rows = graph.op(2 * ratio * pool, sketch.given("members", F * ratio * real))
    gates = graph.op(ratio * pool, graph.op(ratio * pool, graph.part(rows, 0)))
    gates = graph.op(ratio * pool, graph.view(gates))
    summed = graph.over(ratio * pool, graph.op(ratio * pool, graph.part(rows, 0)), graph.view(gates))
    sketch.written(graph.op(pool, summed), sketch.given("pooled rows", 8 * real))
    low = graph.over(row(names["attn_q_a.weight"][-1]), sketch.product(names, "attn_q_a", x))
    asked = graph.op(row(heads * length), low)
    pooled = graph.op(length * seen * F)
    weights = graph.op(row(heads), x)
    found = graph.op(row(seen), graph.view(asked), pooled, weights, sketch.given("pool mask", 2 * seen * sketch.tokens))
    ranks = graph.op(row(best), found)
    as_numbers = graph.op(row(best), ranks)
    order = graph.op(row(best), graph.view(graph.op(row(best), graph.view(found), graph.view(ranks))))
    sorted_ = graph.op(row(best), graph.op(row(best), graph.view(as_numbers), graph.view(order)))
    picked = graph.op(row(best), sorted_)
    members = graph.op(row(ratio * best), graph.view(picked))
    chosen = graph.op(row(whole), graph.view(members))
    q = graph.op(row(layer.heads * (sketch.shape.mla_key_length or layer.key_length)), low)
    q = graph.op(row(layer.heads * layer.value_length), graph.view(q))
    k = latents(sketch, layer, x)
    store(sketch, layer, k, "k")
    closed = graph.op(row(whole) // 2, graph.over(2 * whole, sketch.leaf(2 * whole)))
    numbers = graph.op(row(whole), chosen)
    numbers = graph.over(row(whole), numbers)
    repeated = graph.op(row(whole), sketch.given("ranks", row(whole)))
    numbers = graph.over(row(whole), graph.over(row(whole), numbers, repeated))
    mask = _opened(sketch, closed, graph.op(row(whole), numbers), whole)
    return attend_latents(sketch, layer, q, mask, x, names)


def _pool_inputs(sketch: Sketch, ratio: int, real: int, seen: int, whole: int, *, by_rank: bool) -> None:
    """What both kinds of pools are told: members, where pooled rows lie, who may see them."""
    sketch.given("pool cells", F * seen)
    sketch.given("pool members", F * ratio * seen)
    sketch.given("pool mask", 2 * seen * sketch.tokens)
    sketch.given("tail", sketch.row(ratio - 1))
    if by_rank:
        sketch.given("ranks", sketch.row(whole))


def _opened(sketch: Sketch, closed: int, chosen: int, whole: int) -> int:
    """A mask of the picked tokens, wider by those that nobody picked, cut to the cells."""
    graph, size = sketch.graph, sketch.masks.get("main", 0)
    wide = (whole + sketch.cells("main")) * 2
    plane = graph.op(wide * sketch.tokens, graph.over(wide, sketch.leaf(wide)))
    opened = graph.set_rows(plane, graph.view(closed), graph.view(chosen))
    return graph.over(size, graph.view(opened), sketch.given("mask main", size))


def pooled_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """Qwen 4 exp: means of keys are the pools; a short selection is thinned by a running count."""
    graph, row = sketch.graph, sketch.row
    length, heads = sketch.key("attention.indexer.key_length"), sketch.key("attention.indexer.head_count")
    ratio = max((layer.compress for layer in sketch.shape.layers), default=0) or _CSA
    real, seen, best = _pools(sketch)
    whole = best * ratio + ratio - 1
    _pool_inputs(sketch, ratio, real, seen, whole, by_rank=False)
    packed = graph.over(row(length), sketch.leaf(row(length)))
    packed = graph.op(row(2 * length), graph.op(row(length), x), packed)
    sketch.written(graph.view(packed), sketch.given("k rows indexer", 8 * sketch.tokens))
    pool = length * real * F
    rows = graph.op(ratio * pool, sketch.given("members", F * ratio * real))
    mean = graph.over(pool, graph.op(pool, graph.part(rows, 0)), graph.part(rows, 0))
    sketch.written(graph.op(pool, graph.view(mean)), sketch.given("pooled rows", 8 * real))
    asked = graph.op(row(heads * length), graph.view(graph.op(row(heads * length), x)), sketch.positions)
    pooled = graph.op(length * seen * F)
    weights = graph.over(row(heads), sketch.leaf(row(heads)))
    found = graph.op(row(seen), asked, graph.view(pooled), weights, sketch.given("pool mask", 0))
    ranks = graph.op(row(best), found)
    chosen = graph.op(row(whole), graph.view(graph.op(row(ratio * best), graph.view(ranks))))
    q_size = row(layer.heads * layer.key_length)
    both = graph.op(2 * q_size, x)
    q = graph.op(q_size, graph.part(both, 0))
    v = graph.op(row(layer.v_width), x)
    k = graph.op(row(layer.k_width), graph.view(graph.op(row(layer.k_width), x)))
    store(sketch, layer, k, "k")
    store(sketch, layer, v, "v")
    closed = graph.op(row(whole) // 2, graph.over(2 * whole, sketch.leaf(2 * whole)))
    numbers = graph.op(row(whole), chosen)
    scored = graph.op(row(ratio * best), graph.op(row(best), graph.view(found), graph.view(ranks)))
    kept = graph.op(row(whole), graph.view(scored))
    count = graph.op(row(whole), graph.op(row(whole), kept))
    numbers = graph.over(row(whole), graph.over(row(whole), numbers, graph.view(count)), kept)
    numbers = graph.over(row(whole), numbers, count)
    mask = _opened(sketch, closed, graph.op(row(whole), numbers), whole)
    size = row(layer.heads * layer.value_length)
    attended = graph.op(size, graph.view(q), graph.view(mask))
    gate = graph.over(size, graph.op(size, graph.part(both, 0)))
    return graph.over(size, graph.view(attended), gate)


# blocks


def block_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """MiniMax M3: an indexer head for each KV head picks blocks of positions (src/models/minimax-m3.cpp:326-560)."""
    graph, row = sketch.graph, sketch.row
    length = sketch.key("attention.indexer.key_length")
    block = sketch.key("attention.indexer.block_size") or 1
    picks, streams, groups = sketch.key("attention.indexer.top_k"), sketch.batch.streams, layer.kv_heads
    positions = -(-_LEAST_POSITIONS // block) * block
    blocks = positions // block
    bias = sketch.given("block bias", row(blocks))
    places = sketch.given("places", row(positions))
    slots = sketch.given("slots", F * positions * streams)
    key = graph.op(row(length), graph.view(graph.op(row(length), x)))
    sketch.written(graph.view(key), sketch.given("k rows indexer", 8 * sketch.tokens))
    size = row(layer.heads * layer.key_length)
    if sketch.turns(layer, "k"):
        sketch.rotation(layer, "k")
    q = graph.op(size, graph.view(graph.op(size, x)), sketch.positions)
    q = turned_for_cache(sketch, layer, size, q, "k")
    k = graph.op(row(layer.k_width), graph.view(graph.op(row(layer.k_width), x)), sketch.positions)
    k = turned_for_cache(sketch, layer, row(layer.k_width), k, "k")
    v = turned_for_cache(sketch, layer, row(layer.v_width), graph.op(row(layer.v_width), x), "v")
    store(sketch, layer, k, "k")
    store(sketch, layer, v, "v")
    keys = graph.op(length * positions * streams * F, slots)
    asked = graph.op(row(groups * length), graph.view(graph.op(row(groups * length), x)))
    score = graph.op(row(groups * positions), graph.view(keys), graph.view(asked))
    by_block = graph.op(row(groups * blocks), graph.set_rows(score, places))
    by_block = graph.over(row(groups * blocks), by_block, graph.view(bias))
    best = row(groups * min(picks or blocks, blocks))
    order = graph.op(best, by_block)
    numbers = graph.over(best, graph.op(best, order))
    if sketch.tokens == streams:  # one token for each sequence: its rows are gathered
        attended = _gathered_blocks(sketch, layer, q, numbers, best, block)
    else:
        attended = _masked_blocks(sketch, layer, q, numbers, order, row(groups * blocks))
    return gated(sketch, turned_back(sketch, layer, attended), size, x, names)


def _gathered_blocks(sketch: Sketch, layer: LayerShape, q: int, numbers: int, best: int, block: int) -> int:
    """`best`: bytes of one number for each picked block of each head."""
    graph = sketch.graph
    count = best * block
    places = graph.op(count, graph.view(graph.op(count, graph.view(numbers))))
    cells = graph.op(count, graph.op(count, graph.view(places)))
    rows = graph.op(count, graph.view(cells))
    wide = count // F
    k = graph.op(wide * layer.key_length * 2, graph.view(graph.op(wide * layer.key_length * F, graph.view(rows))))
    v = graph.op(wide * layer.value_length * 2, graph.view(graph.op(wide * layer.value_length * F, graph.view(rows))))
    mask = graph.op(count // 2, graph.view(graph.op(count, graph.view(places))))
    out = sketch.row(layer.heads * layer.value_length)
    return graph.op(out, graph.view(q), graph.view(k), graph.view(v), graph.view(mask))


def _masked_blocks(sketch: Sketch, layer: LayerShape, q: int, numbers: int, order: int, bytes_of_blocks: int) -> int:
    """The picked blocks as a mask over cells, for every head and token of one stream, twice."""
    graph, groups = sketch.graph, layer.kv_heads
    cells, tokens = sketch.cells("main"), sketch.tokens // sketch.batch.streams
    size = sketch.masks.get("main", 0)
    plane = graph.op(bytes_of_blocks // 2)
    opened = graph.set_rows(plane, graph.view(numbers), graph.view(order))
    turned = graph.op(bytes_of_blocks // 2, graph.view(graph.op(bytes_of_blocks // 2, graph.view(opened))))
    spread = groups * cells * tokens * F
    whole = graph.op(spread, graph.view(graph.op(spread, turned)))
    numbers_of_mask = sketch.once("mask as numbers", 2 * size, sketch.given("mask main", size))
    added = graph.set_rows(whole, graph.view(numbers_of_mask))
    mask = graph.op(spread // 2, graph.view(added))
    out = sketch.row(layer.heads * layer.value_length)
    return graph.op(out, graph.view(graph.op(out, graph.view(q), mask)))


# DeepSeek V4


def compressed_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """A raw window beside compressed rows; where one of four is kept, an indexer picks among them."""
    graph, row = sketch.graph, sketch.row
    key, heads = layer.key_length, layer.heads
    streams = sketch.batch.sequences
    if layer.compress:
        _compress(sketch, x, names, "attn_compressor_kv", key, layer.compress)
        if layer.compress == _CSA:
            _compress(sketch, x, names, "indexer_compressor_kv", sketch.shape.indexer_length, _CSA)
    rank = row(names["attn_q_a.weight"][-1])
    low = graph.over(rank, graph.op(rank, x))
    q = graph.op(row(heads * key), graph.view(graph.op(row(heads * key), low)), sketch.positions)
    raw = graph.over(row(key), graph.op(row(key), x))
    kv = graph.op(row(key), graph.view(raw), sketch.positions)
    sketch.written(graph.view(kv), sketch.given("k rows swa", 8 * sketch.tokens))
    size = sketch.masks.get("swa", 0)
    mask = sketch.given("mask swa", size)
    sources = [graph.view(q), mask]
    if layer.compress:
        name = "csa" if layer.compress == _CSA else "hca"
        rows = graph.op((sketch.cells("swa") + sketch.cells(name)) * key * streams * 2)
        more = sketch.masks.get(name, 0)
        second = sketch.given(f"mask {name}", more)
        if layer.compress == _CSA:
            second = _pick_rows(sketch, x, low) or second
        sources = [graph.view(q), graph.view(rows), graph.op(size + more, mask, second)]
    out = row(heads * layer.value_length)
    turned = graph.op(out, graph.view(graph.op(out, *sources)), sketch.positions)
    groups = names["attn_output_a.weight"]
    wide = row(groups[1] * groups[-1])
    return graph.op(wide, graph.view(graph.op(wide, graph.view(turned))))


def _compress(sketch: Sketch, x: int, names: Names, name: str, key: int, ratio: int) -> None:
    """Rows of this ubatch and those kept of the last one, weighed and summed to one row of so many."""
    graph, sequences = sketch.graph, sketch.batch.sequences
    twice = 2 if ratio == _CSA else 1  # windows overlap by half
    width = twice * key * F
    kept = ratio * twice * sequences
    made = sketch.tokens // ratio + sequences if ratio == _CSA else max(sketch.tokens // ratio, 1) * sequences
    span = ratio * twice * made
    size = width * sketch.tokens

    def windows(rows: int) -> int:
        joined = graph.op(width * (sketch.tokens + kept), rows)
        if twice > 1:
            joined = graph.op(width * (sketch.tokens + kept + 1), joined)
        picked = graph.op(width * span, joined, sketch.given(f"reads {name}", F * span))
        if twice > 1:
            halves = [graph.op(key * F * span // 2, graph.part(picked, 0)) for _ in "ab"]
            picked = graph.op(key * F * span, *halves)
        return graph.op(key * F * span, graph.view(picked))

    rows = graph.op(size, x)
    values = windows(rows)
    weights = graph.over(size, graph.op(size, x), graph.op(size))
    mixed = graph.over(key * F * span, values, graph.over(key * F * span, windows(weights)))
    sketch.written(graph.op(key * F * made, graph.op(key * F * made, mixed)))
    sketch.written(graph.op(width * kept, rows), graph.op(width * kept, weights))


def _pick_rows(sketch: Sketch, x: int, low: int) -> int | None:
    graph, row = sketch.graph, sketch.row
    heads, length = sketch.key("attention.indexer.head_count"), sketch.shape.indexer_length
    asked = graph.op(row(heads * length), graph.view(graph.op(row(heads * length), low)), sketch.positions)
    matrix = sketch.given("indexer rotation", hadamard_bytes(length))
    asked = graph.op(row(heads * length), matrix, graph.view(asked))
    weights = graph.over(row(heads), graph.op(row(heads), x))
    cells = sketch.cells("csa")
    mask = sketch.given("mask indexer", sketch.masks.get("indexer", 0))
    found = graph.op(row(cells), graph.view(asked), graph.view(weights), mask)
    best = row(min(cells, sketch.key("attention.indexer.top_k") or cells))
    sketch.picked = graph.op(best, graph.op(best, found))
    return _mask_of(sketch, "csa")
