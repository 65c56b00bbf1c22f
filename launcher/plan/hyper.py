"""Residual streams on a sketch of the graph: the plain one, hyper-connections that keep several, a chosen earlier one.

Follows the pin: src/models/deepseek4.cpp, glm5-next.cpp (build_hc_pre, build_hc_post), hy-v4.cpp, qwen4exp.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.plan.sketch import Names, Sketch


@dataclass(frozen=True, slots=True)
class Opened:
    """What a half of a block works on, and what is kept for the time after it.

    x      the streams before
    inner  what the half reads, normed
    kept   what closing reads beside the result
    """

    x: int
    inner: int
    kept: tuple[int, ...] = ()


def streams(sketch: Sketch) -> int:
    """How many residual streams a model keeps."""
    return sketch.key("hyper_connection.count")


def begin(sketch: Sketch, x: int) -> int:
    """The embedding in every stream."""
    count = streams(sketch)
    return sketch.graph.op(count * sketch.row(sketch.width), sketch.graph.view(x)) if count else x


def open_half(sketch: Sketch, x: int, names: Names, half: str) -> Opened:
    """Mix the streams to one row; `half`: attn or ffn."""
    graph, row, count = sketch.graph, sketch.row(sketch.width), streams(sketch)
    if sketch.shape.arch == "qwen4exp":
        normed = graph.op(count * row, x)
        gate = graph.op(count * row, graph.op(sketch.row(names[f"hc_{half}_down.weight"][-1]), graph.view(normed)))
        return Opened(x, graph.op(row, graph.view(normed), gate), (normed,))
    mixes = names[f"hc_{half}_fn.weight"][-1]
    if sketch.shape.arch == "hy_v4":  # stream by stream, on a copy
        copied = graph.op(count * row, x)
        mixed = graph.op(sketch.row(mixes), graph.op(count * row, graph.view(x)))
        parts = [graph.op(row, graph.part(copied, row)) for _ in range(2)]
        summed = graph.over(row, *parts)
        for _ in range(count - 2):
            summed = graph.over(row, summed, graph.op(row, graph.part(copied, row)))
        return Opened(x, graph.over(row, graph.op(row, summed)), (mixed,))
    mixed = graph.op(sketch.row(mixes), graph.op(count * row, graph.view(x)))
    weights = graph.op(sketch.row(count), graph.part(mixed, 0))
    return Opened(x, graph.over(row, graph.op(row, x, weights)), (mixed,))


def close_half(sketch: Sketch, opened: Opened, out: int) -> int:
    """The streams with a half's result spread over them."""
    graph, row, count = sketch.graph, sketch.row(sketch.width), streams(sketch)
    if sketch.shape.arch == "hy_v4":
        copied, result = graph.op(count * row, opened.x), graph.op(row, out)
        gate = graph.op(sketch.row(count), graph.part(opened.kept[0], 0))
        joined = graph.over(row, graph.op(row, result, gate), graph.part(copied, row))
        for number in range(2, count + 1):
            spread = graph.op if number < count else graph.over
            one = graph.over(row, spread(row, result, gate), graph.part(copied, row))
            joined = graph.op(number * row, joined, one)
        return graph.op(count * row, joined)
    post = graph.op(sketch.row(count), graph.part(opened.kept[0], 0))
    sources = [out, opened.x, post]
    if sketch.shape.arch != "qwen4exp":
        sources.append(graph.op(sketch.row(count * count), opened.kept[0]))
    return graph.op(count * row, *sources)
