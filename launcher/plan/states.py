"""Recurrent blocks on a sketch of the graph: convolution and state of every sequence, scanned over the ubatch.

Follows the pin: src/llama-graph.cpp (build_rs: states are gathered, those of sequences that pause are copied aside),
src/models/mamba-base.cpp, delta-net-base.cpp, plamo2.cpp, kimi-linear.cpp, minimax-01.cpp, lfm2.cpp.
"""

from __future__ import annotations

from launcher.model.layers import LayerShape
from launcher.model.shape import ModelShape
from launcher.plan.sketch import F, Names, Sketch


def state_layer(sketch: Sketch, layer: LayerShape, x: int, names: Names) -> int:
    """The block's result, its output projection included; which kind it is its tensors say."""
    if "shortconv.conv.weight" in names:
        return _short_convolution(sketch, x)
    if "ssm_conv1d_q.weight" in names:
        return _kimi_delta(sketch, x, names)
    if sketch.shape.arch == "minimax-01":
        return _lightning(sketch, layer, x)
    if "ssm_in.weight" in names and "ssm_ba.weight" not in names:
        return _plamo2(sketch, x, names) if sketch.shape.arch == "plamo2" else _mamba(sketch, x, names)
    if "ssm_conv1d.weight" in names:
        return _gated_delta(sketch, x, names)
    return _unknown(sketch, x)


_DRAWN = (".ssm_in.weight", ".ssm_conv1d.weight", ".ssm_conv1d_q.weight", ".shortconv.conv.weight")


def estimated(shape: ModelShape) -> bool:
    """Whether states are of a kind that is not drawn (RWKV and its kin): what they need is a guess."""
    if not shape.recurrent.r + shape.recurrent.s or shape.arch == "minimax-01":
        return False
    return not any(tensor.name.endswith(_DRAWN) for tensor in shape.tensors)


# these ask for their states before anything of the block itself is evaluated (build_rs expands the graph)
_AHEAD = frozenset(
    {"mamba", "mamba2", "jamba", "nemotron_h", "nemotron_h_moe", "granitehybrid", "falcon-h1", "plamo2", "bailingmoe3"}
    | {"lfm2", "lfm2moe"}
)


def gather_ahead(sketch: Sketch) -> None:
    """What the next block's convolution goes on from, gathered while most of this block is still to be evaluated."""
    if sketch.held is None and sketch.shape.arch in _AHEAD and sketch.shape.recurrent.r:
        sketch.held = _gathered(sketch, sketch.shape.recurrent.r)


def _before(sketch: Sketch) -> int:
    """The rows that the convolution goes on from."""
    held, sketch.held = sketch.held, None
    return _gathered(sketch, sketch.shape.recurrent.r) if held is None else held


def _gathered(sketch: Sketch, elements: int) -> int:
    """States of all sequences, picked from the cache by an index."""
    ids = sketch.given("states", F * sketch.batch.sequences)
    return sketch.graph.op(elements * sketch.batch.slots * F, ids)


def _states(sketch: Sketch) -> int:
    """The states after the ubatch, and those after each of the last tokens that can be taken back."""
    return sketch.shape.recurrent.s * sketch.batch.sequences * F * (1 + sketch.settings.rollback)


def _convolved(sketch: Sketch, width: int, held: int, new: int, share: int = 1) -> tuple[int, int]:
    """The last rows before this ubatch and its own, then the convolution over them. (both, result)"""
    before = sketch.shape.recurrent.r // share * sketch.batch.sequences * F
    joined = sketch.graph.op(sketch.row(width) + before, sketch.graph.view(held), sketch.graph.part(new, 0))
    return joined, sketch.graph.op(sketch.row(width), joined)


def _scan(sketch: Sketch, width: int, *sources: int) -> int:
    """SSM_SCAN: rows and the states after them; then what is copied aside of sequences that pause."""
    graph, state = sketch.graph, sketch.shape.recurrent.s * F
    ids = sketch.given("states", F * sketch.batch.sequences)
    scanned = graph.op(sketch.row(width) + _states(sketch), *sources, ids)
    sketch.written(graph.op(state * (sketch.batch.sequences - 1)))
    return scanned


def _mamba(sketch: Sketch, x: int, names: Names) -> int:
    """Mamba 1 (with `ssm_x`; Jamba norms its parts) and 2."""
    graph = sketch.graph
    width, channels = names["ssm_out.weight"][0], names["ssm_conv1d.weight"][-1]
    held = _before(sketch)
    proj = sketch.product(names, "ssm_in", x)
    _, conv = _convolved(sketch, channels, held, proj)
    conv = graph.over(sketch.row(channels), conv)
    if "ssm_x.weight" in names:
        low = sketch.product(names, "ssm_x", conv)
        rank, states = names["ssm_dt.weight"][0], sketch.key("ssm.state_size")
        step = sketch.product(names, "ssm_dt", graph.op(sketch.row(rank), graph.part(low, 0)))
        inner = [low]
        if "ssm_b_norm.weight" in names:
            inner = [graph.op(sketch.row(states), graph.part(low, 0)) for _ in "BC"]
        scanned = _scan(sketch, width, conv, step, *inner)
        gate = graph.op(sketch.row(width), graph.part(proj, 0))
        mixed = graph.over(sketch.row(width), conv)
        mixed = graph.over(sketch.row(width), graph.part(scanned, 0), mixed)
        return graph.op(sketch.row(sketch.width), graph.op(sketch.row(width), gate, mixed))
    step = graph.op(sketch.row(sketch.key("ssm.time_step_rank")), graph.part(proj, 0))
    scanned = _scan(sketch, width, graph.view(conv), step)
    gate = graph.op(sketch.row(width), graph.part(proj, 0))
    mixed = graph.over(sketch.row(width), graph.op(sketch.row(width), graph.part(conv, 0)), graph.part(scanned, 0))
    active = graph.op(sketch.row(width), gate, mixed)
    if "ssm_norm.weight" in names:
        active = graph.op(sketch.row(width), graph.view(active))
    return graph.op(sketch.row(sketch.width), graph.view(active))


def _plamo2(sketch: Sketch, x: int, names: Names) -> int:
    """src/models/plamo2.cpp: copies of both halves of the projection, norms of all that the scan reads."""
    graph, row = sketch.graph, sketch.row
    width, states = names["ssm_out.weight"][0], sketch.key("ssm.state_size")
    held = _before(sketch)
    both = row(names["ssm_in.weight"][-1])
    proj = graph.op(both, graph.view(graph.op(both, x)))
    rows = graph.op(row(width), graph.part(proj, 0))
    _, conv = _convolved(sketch, width, held, rows)
    conv = graph.over(row(width), conv)
    low = sketch.product(names, "ssm_x", conv)
    rank = names["ssm_dt.weight"][0]
    step = sketch.product(names, "ssm_dt", graph.op(row(rank), graph.part(low, 0)))
    inner = [graph.op(row(states), graph.part(low, 0)) for _ in "BC"]
    scanned = _scan(sketch, width, graph.view(conv), step, *inner)
    gate = graph.op(row(width), graph.part(proj, 0))
    mixed = graph.over(row(width), graph.op(row(width), graph.view(conv)), graph.part(scanned, 0))
    return graph.op(row(sketch.width), graph.view(graph.op(row(width), gate, mixed)))


def _short_convolution(sketch: Sketch, x: int) -> int:
    """LFM2: three parts of one product; the convolution runs over two of them multiplied."""
    graph, size = sketch.graph, sketch.row(sketch.width)
    held = _before(sketch)
    whole = graph.op(3 * size, x)
    rows = graph.op(size, graph.part(whole, 0))
    _, conv = _convolved(sketch, sketch.width, held, rows)
    return graph.op(size, graph.over(size, graph.part(whole, 0), conv))


def _gated_delta(sketch: Sketch, x: int, names: Names) -> int:
    """Qwen3-Next and its like, by the fused operation."""
    graph, row = sketch.graph, sketch.row
    channels, width = names["ssm_conv1d.weight"][-1], names["ssm_out.weight"][0]
    keys = (channels - width) // 2
    heads = row(sketch.key("ssm.time_step_rank"))
    held = _before(sketch)
    proj = sketch.product(names, "attn_qkv", x)
    before = sketch.shape.recurrent.r * sketch.batch.sequences * F
    joined = graph.op(row(channels) + before, graph.view(held), graph.view(proj))
    state = _gathered(sketch, sketch.shape.recurrent.s)
    conv = graph.over(row(channels), graph.op(row(channels), joined))
    q, k = (graph.op(row(keys), graph.part(conv, 0)) for _ in "qk")
    if "ssm_ba.weight" in names:
        both = sketch.product(names, "ssm_ba", x)
        decay, beta = (graph.op(heads, graph.part(both, 0)) for _ in "ab")
    else:
        decay, beta = (graph.op(heads, graph.view(graph.op(heads, x))) for _ in "ab")
    size = row(width) + _states(sketch)
    mixed = graph.op(size, q, k, graph.part(conv, 0), decay, beta, graph.view(state))
    normed = graph.op(row(width), graph.part(mixed, 0))
    gate = graph.op(row(width), graph.view(sketch.product(names, "attn_gate", x)))
    return graph.op(row(sketch.width), graph.view(graph.over(row(width), normed, gate)))


def _kimi_delta(sketch: Sketch, x: int, names: Names) -> int:
    """KDA: a convolution each for Q, K and V, a decay for every element of K (src/models/kimi-linear.cpp)."""
    graph, width = sketch.graph, names["attn_q.weight"][-1]
    size = sketch.row(width)
    held = _before(sketch)
    before = sketch.shape.recurrent.r // 3 * sketch.batch.sequences * F
    joined = [graph.op(size + before, graph.part(held, 0), graph.view(graph.op(size, x))) for _ in "qkv"]
    state = _gathered(sketch, sketch.shape.recurrent.s)
    rows: list[int] = []
    for which, both in zip("qkv", joined, strict=True):
        active = graph.op(size, graph.view(graph.op(size, both)))
        rows.append(active if which == "v" else graph.op(size, graph.view(active)))
    low = sketch.product(names, "ssm_f_a", x)
    decay = sketch.product(names, "ssm_f_b", low) if "ssm_f_b.weight" in names else low
    decay = graph.op(size, graph.view(decay))
    beta = graph.op(sketch.row(1), graph.view(sketch.product(names, "ssm_beta", x)))
    whole = size + _states(sketch)
    q, k, v = rows
    mixed = graph.op(whole, q, k, graph.view(v), decay, beta, graph.view(state))
    normed = graph.op(size, graph.view(graph.op(size, graph.part(mixed, 0))))
    name = "ssm_g" if "ssm_g.weight" in names else "ssm_g_a"
    gate = sketch.product(names, name, x)
    if "ssm_g_b.weight" in names:
        gate = sketch.product(names, "ssm_g_b", gate)
    gate = graph.op(size, graph.view(gate))
    return graph.op(sketch.row(sketch.width), graph.op(size, graph.over(size, normed, gate)))


def _lightning(sketch: Sketch, layer: LayerShape, x: int) -> int:
    """MiniMax-01: linear attention with a decay; the ubatch of a sequence is multiplied with itself."""
    graph, size = sketch.graph, sketch.row(layer.heads * layer.key_length)
    states = sketch.shape.recurrent.s * sketch.batch.sequences * F
    heads = sketch.row(layer.heads)
    square = layer.heads * sketch.tokens * sketch.tokens // sketch.batch.sequences * F
    state = _gathered(sketch, sketch.shape.recurrent.s)
    whole = graph.over(3 * size, graph.op(3 * size, graph.view(x)))
    decayed = graph.op(size, graph.part(whole, 0), graph.over(heads, graph.input(heads)))
    from_state = graph.op(size, graph.view(state), graph.view(decayed))
    v = graph.op(size, graph.part(whole, 0))
    among = graph.op(square, graph.part(whole, 0))
    among = graph.over(square, among, graph.over(square, graph.input(square)))
    mixed = graph.over(size, from_state, graph.op(size, v, among))
    kept = graph.op(states, graph.view(state))
    k = graph.op(size, graph.part(whole, 0), graph.over(heads, graph.input(heads)))
    sketch.written(graph.over(states, kept, graph.op(states, graph.op(size, graph.view(k)), v)))
    gate = graph.over(size, graph.op(size, graph.view(x)))
    normed = graph.op(size, graph.view(graph.op(size, graph.view(mixed))))
    # reshaped, so the sum that follows is written over the residual row
    return graph.view(graph.op(sketch.row(sketch.width), graph.over(size, gate, normed)))


def _unknown(sketch: Sketch, x: int) -> int:
    """RWKV and its kin: about the widest of what they hold at once; not held against an engine."""
    graph, size = sketch.graph, sketch.row(sketch.width)
    held = _gathered(sketch, sketch.shape.recurrent.r + sketch.shape.recurrent.s)
    rows = [graph.op(size, x) for _ in range(5)]
    mixed = graph.op(size + _states(sketch), held, *rows)
    return graph.op(size, graph.op(size, graph.part(mixed, 0)))
