"""The graph of one ubatch, rebuilt from the tensors that a header lists, in the order in which ggml evaluates it.

Which projections, norms, experts and states there are decides the operations; replay.py says what they need. Exact for
common decoders; recurrent, indexed and hyper-connected attention are approximated.
Follows src/llama-graph.cpp (build_inp_embd, build_qkv, build_attn, build_attn_mha, build_ffn, build_moe_ffn) and
src/models/*.cpp of the pin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.model.types import storage_type
from launcher.plan.context import ContextSplit
from launcher.plan.kv import KvSettings
from launcher.plan.replay import Graph

_F = 4  # bytes of an f32 activation
# src/llama-arch.cpp:1182: these take no batches that mix tokens and embeddings, so they lack two inputs
_UNMIXED = frozenset({"cogvlm", "deepseek4", "graniteswitch", "eagle3", "dflash", "gemma4-assistant"})
# with heads for drafting in mind, these keep every row of the last block, not only those that are output
_ALL_ROWS = frozenset(
    {"bailingmoe3", "cohere2moe", "gemma4", "hy_v3", "nemotron_h", "nemotron_h_moe", "gpt-oss", "qwen35", "qwen35moe"}
    | {"qwen3next", "step35"}
)
_POOLED = 14  # scores over pooled keys: measured on the test models of glm5-next and qwen4exp
_KDA_CHUNK = 16  # src/models/delta-net-base.cpp:39: its decay mask has 16 rows for every token and key dimension
_HYPER = 40  # rows of hyper-connections: measured on the test model of deepseek4


@dataclass(frozen=True, slots=True)
class Batch:
    """One worst-case ubatch, as the engine reserves for it."""

    tokens: int
    streams: int
    outputs: int
    sequences: int
    flash: bool

    def indexed(self, shape: ModelShape) -> bool:
        """MiniMax M3 falls back to dense attention where sequences share a cache (src/models/minimax-m3.cpp:233)."""
        return shape.memory is not Memory.MSA or (self.flash and (self.sequences == 1 or self.streams > 1))

    @classmethod
    def of(cls, context: ContextSplit, settings: KvSettings, outputs_per_slot: int = 1) -> Batch:
        """The batch of sched_reserve for this context."""
        tokens = min(context.total, settings.ubatch_of(context))
        return cls(
            tokens=tokens,
            streams=1 if context.unified else context.slots,
            outputs=min(tokens, context.slots * outputs_per_slot),
            sequences=context.slots,
            flash=settings.flash,
        )


def rotation_bytes(length: int, type_name: str, *, widest: bool) -> int:
    """The Hadamard matrix that quantized rows are turned by (src/llama-kv-cache.cpp:314-345); 0 where none is.

    For K its side is the largest power of two that divides the head (`widest`), for V 64.
    """
    if not storage_type(type_name).quantized or length <= 0 or length % 64:
        return 0
    side = 64
    while widest and length % (2 * side) == 0:
        side *= 2
    return side * side * _F


class Builder:
    """Rebuilds the graph of an architecture from its tensor names, in the order in which ggml evaluates it."""

    def __init__(self, shape: ModelShape, settings: KvSettings, batch: Batch, masks: Mapping[str, int]) -> None:
        self.shape = shape
        self.settings = settings
        self.batch = batch
        self.graph = Graph()
        self.tensors = _by_layer(shape)
        self.tokens = batch.tokens
        self.width = shape.embedding_length
        self.masks = masks
        self.widest = max((layer.v_width for layer in shape.layers), default=1)
        self._inputs: dict[str, int] = {}

    def given(self, name: str, size: int) -> int:
        """An input, laid out where the graph first meets it."""
        if name not in self._inputs:
            self._inputs[name] = self.graph.input(size)
        return self._inputs[name]

    @property
    def positions(self) -> int:
        """The position of each token."""
        return self.given("positions", _F * self.tokens)

    def row(self, elements: int) -> int:
        """Bytes of an activation of this width for the whole ubatch."""
        return elements * _F * self.tokens

    def run(self, layers: Sequence[LayerShape], *, looked_up: bool, embedding: bool, output: bool) -> int:
        current = self._embedding(looked_up, embedding)
        last = len(layers) - 1
        for number, layer in enumerate(layers):
            ends = output and number == last and self.shape.arch not in _ALL_ROWS
            current = self._block(layer, current, last=ends)
        if output:
            rows = self.batch.outputs * _F
            current = self.graph.over(rows * self.width, self.graph.op(rows * self.width, current))
            self.graph.op(rows * max(self.shape.vocab_size, 1), current)
        return self.graph.peak()

    def _embedding(self, looked_up: bool, embedding: bool) -> int:
        """build_inp_embd: rows by token, rows as given, and a mix of both; two of the three are never used."""
        graph, row = self.graph, self.row(self.width)
        if not looked_up:
            if not embedding:
                return graph.input(row)
            # the rows come from the host, all three kinds; the mix is made here
            found = graph.input(row)
            if self.shape.arch not in _UNMIXED:
                rows, slots = graph.input(row), graph.input(8 * self.tokens)
                copied = graph.op(row, graph.input(row))
                graph.set_rows(copied, rows, slots)
            return found
        tokens = graph.input(_F * self.tokens)
        graph.input(row)
        found = graph.op(row, tokens)
        if self.shape.arch not in _UNMIXED:
            ids, slots = graph.input(_F * self.tokens), graph.input(8 * self.tokens)
            rows = graph.op(row, ids)
            # written into a copy, a view of which is the result: nothing reads it, so nothing frees it
            copied = graph.op(row, graph.input(row))
            graph.set_rows(copied, rows, slots)
        return found

    # one block

    def _block(self, layer: LayerShape, x: int, *, last: bool) -> int:
        graph, names = self.graph, self.tensors.get(self._stored(layer), {})
        e = self.row(self.width)
        normed = self._norm(x, names, "attn_norm")
        if self.shape.memory is Memory.DSV4:
            normed = graph.op(e, graph.op(_HYPER * e, normed))
        if layer.recurrent and layer.cached:  # falcon-h1: both, in parallel
            mixed = graph.over(e, self._attention(layer, normed, names), self._recurrent(layer, normed, names))
        elif layer.recurrent:
            mixed = self._recurrent(layer, normed, names)
        elif layer.cached or layer.reuses is not None or self.shape.memory is Memory.NONE:
            mixed = self._attention(layer, normed, names)
        else:
            mixed = normed
        if "post_attention_norm.weight" in names and "ffn_norm.weight" in names:
            mixed = graph.over(e, mixed)
        size = e
        if last:
            size = self.batch.outputs * self.width * _F
            ids = self.given("outputs", _F * self.batch.outputs)
            mixed = graph.op(size, mixed, ids)
            x = graph.op(size, x, ids)
        # one norm for attention and feed-forward: both read it (olmo's two norms have no weights)
        named = {"ffn_norm.weight", "post_attention_norm.weight"} & names.keys()
        parallel = not named and self.shape.arch != "olmo"
        fed_by = {"ffn_up.weight", "ffn_up_exps.weight"} & names.keys()
        if parallel and layer.cached and fed_by and "post_ffw_norm.weight" not in names:
            fed = self._feed_forward(layer, normed, names, size)
            return graph.over(size, graph.over(size, fed, mixed), x)
        summed = graph.over(size, mixed, x)
        if not any(name.startswith("ffn_") for name in names):
            return summed
        normed = self._norm(summed, names, "ffn_norm", size)
        fed = self._feed_forward(layer, normed, names, size)
        return graph.over(size, fed, summed)

    def _stored(self, layer: LayerShape) -> int:
        """The block whose weights a layer uses: a looped model goes round its blocks."""
        return layer.index % self.shape.block_count if self.shape.block_count else layer.index

    def _norm(self, x: int, names: Mapping[str, tuple[int, ...]], name: str, size: int | None = None) -> int:
        row = self.row(self.width) if size is None else size
        normed = self.graph.op(row, x)
        if f"{name}.weight" in names:
            normed = self.graph.over(row, normed)
        if f"{name}.bias" in names:
            normed = self.graph.over(row, normed)
        return normed

    def _attention(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]]) -> int:
        graph = self.graph
        if layer.indexer and self.batch.indexed(self.shape):
            self._indexer(x)
        if self.shape.is_mla:
            return self._latent_attention(layer, x, names)
        q, k, v = self._projections(layer, x, names)
        kind = "swa" if layer.swa else "main"
        graph.op(0, graph.view(k), self.given(f"k rows {kind}", 8 * self.tokens))
        spread = 1 if self.batch.flash else self.widest  # without flash attention V lies transposed
        graph.op(0, graph.view(v), self.given(f"v rows {kind}", 8 * self.tokens * spread))
        attended = self._attend(layer, q, layer.value_length)
        if self._turns(layer, "v"):
            turn = self._rotation(layer, "v")
            attended = graph.op(self.row(layer.heads * layer.value_length), turn, graph.view(attended))
        return graph.op(self.row(self.width), graph.view(attended))

    def _projections(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int]:
        """Q, V, K in the order of evaluation, rotated over themselves; from one fused matrix: copies of its parts."""
        graph = self.graph
        q_size, k_size = self.row(layer.heads * layer.key_length), self.row(layer.k_width)
        v_size = self.row(layer.v_width)
        k_turns, v_turns = self._turns(layer, "k"), self._turns(layer, "v")

        def hadamard(size: int, node: int, needed: bool, which: str = "k") -> int:
            if not needed:
                return node
            turn = self._rotation(layer, which)
            return graph.op(size, turn, graph.view(node))

        if "attn_qkv.weight" in names:
            fused = graph.op(q_size + k_size + v_size, x)
            if "attn_qkv.bias" in names:
                fused = graph.over(q_size + k_size + v_size, fused)
            q = hadamard(q_size, graph.op(q_size, graph.part(fused, q_size), self.positions), k_turns)
            v = hadamard(v_size, graph.part(fused, v_size), v_turns, "v")
            k = hadamard(k_size, graph.op(k_size, graph.part(fused, k_size), self.positions), k_turns)
            return q, k, v

        def turned(size: int) -> int:
            return graph.over(size, graph.view(graph.op(size, x)), self.positions)

        q = hadamard(q_size, turned(q_size), k_turns)
        v = hadamard(v_size, graph.view(graph.op(v_size, x)), v_turns, "v")
        k = hadamard(k_size, turned(k_size), k_turns)
        return q, k, v

    def _turns(self, layer: LayerShape, which: str) -> bool:
        tier = self.settings.of(layer.index)
        length, name = (layer.key_length, tier.k) if which == "k" else (layer.value_length, tier.v)
        return rotation_bytes(length, name, widest=which == "k") > 0

    def _rotation(self, layer: LayerShape, which: str) -> int:
        tier = self.settings.of(layer.index)
        length, name = (layer.key_length, tier.k) if which == "k" else (layer.value_length, tier.v)
        kind = "swa" if layer.swa else "main"
        return self.given(f"{which} rotation {kind}", rotation_bytes(length, name, widest=which == "k"))

    def _attend(self, layer: LayerShape, q: int, value_length: int) -> int:
        graph = self.graph
        name = "swa" if layer.swa and "swa" in self.masks else "main"
        bytes_of_mask = self.masks.get(name, 0)
        mask = self.given(f"mask {name}", bytes_of_mask)
        out = self.row(layer.heads * value_length)
        if self.batch.flash:
            return graph.op(out, graph.view(q), mask)
        # scores of every head, f32 like the mask: [cells, tokens of a stream, heads] for each stream
        scores = layer.heads * bytes_of_mask
        found = graph.over(scores, graph.op(scores, graph.view(q)), mask)
        return graph.op(out, graph.op(out, found))

    def _latent_attention(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]]) -> int:
        """MLA, absorbed: Q is carried into the latent space and back (src/models/deepseek2.cpp)."""
        graph, heads, key, value = self.graph, layer.heads, layer.key_length, layer.value_length
        head = self.shape.mla_key_length or key
        if "attn_q_a.weight" in names:
            low = self.row(names["attn_q_a.weight"][-1])
            x_q = graph.over(low, graph.op(low, x))
            q = graph.op(self.row(heads * head), x_q)
        else:
            q = graph.op(self.row(heads * head), x)
        latent = graph.op(self.row(key), x)
        turned = graph.op(self.row(heads * max(key - value, 0)), graph.part(q, 0), self.positions)
        k_turned = graph.op(self.row(max(key - value, 0)), graph.part(latent, 0), self.positions)
        normed = graph.op(self.row(value), graph.part(latent, 0))
        absorbed = graph.op(self.row(heads * value), graph.part(q, 0))
        whole = graph.op(self.row(heads * key), turned, graph.view(absorbed))
        k = graph.op(self.row(key), k_turned, normed)
        graph.op(0, graph.view(k), self.given("k rows main", 8 * self.tokens))
        attended = self._attend(layer, whole, value)
        back = self.row(heads * (self.shape.mla_value_length or value))
        opened = graph.op(back, graph.op(back, graph.view(attended)))
        return graph.op(self.row(self.width), opened)

    def _indexer(self, x: int) -> None:
        """An approximation: queries of the indexer and their rotation, scores and a mask over all cells."""
        graph, heads = self.graph, self.shape.key("attention.indexer.head_count", 0)
        count = heads if isinstance(heads, int) else 0
        length = self.shape.key("attention.indexer.key_length", 0)
        queries = self.row(count * (length if isinstance(length, int) else 0))
        mask = max(self.masks.values(), default=0)
        cells = mask * (2 if self.batch.flash else 1)  # f32 of every cell for every token
        asked = graph.op(queries, graph.op(queries, x))
        # pools of several sequences in one cache are scored apart
        shared = self.batch.streams == 1 and self.batch.sequences > 1
        pooled = self.shape.memory is Memory.HYBRID_IDX and shared
        graph.op(cells, graph.op(cells * (_POOLED if pooled else 1), asked, self.given("mask indexer", mask)))

    def _recurrent(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]]) -> int:
        """An approximation for all kinds of state: projection, convolution over the state, scan, gate, projection."""
        graph, state = self.graph, self.shape.recurrent
        sequences = self.batch.sequences
        inner = self.shape.key("ssm.inner_size", 0)
        channels = names["ssm_conv1d.weight"][-1] if "ssm_conv1d.weight" in names else 0
        width = inner if isinstance(inner, int) and inner else self.width
        projected = next((names[n][-1] for n in ("ssm_in.weight", "attn_qkv.weight") if n in names), 3 * width)
        copied = graph.op(state.r * sequences * _F) if state.r else None
        proj = graph.op(self.row(projected), x)
        gate = graph.op(self.row(width), x) if "ssm_in.weight" not in names else proj
        mixed = proj
        if channels:
            joined = self.row(channels) + state.r * sequences * _F
            mixed = graph.op(joined, proj, *([] if copied is None else [copied]))
            mixed = graph.over(self.row(channels), graph.op(self.row(channels), mixed))
        kda = self.shape.key("kda.head_dim", 0)
        if isinstance(kda, int) and kda and self.shape.memory is Memory.HYBRID_IDX:
            decay = self.row(_KDA_CHUNK * layer.heads * kda)
            mixed = graph.op(self.row(width), graph.op(decay, graph.op(decay, mixed)))
        scanned = mixed
        if state.s:
            held = graph.op(state.s * sequences * _F)
            scanned = graph.op(self.row(width) + state.s * sequences * _F, mixed, held)
        gated = graph.op(self.row(width), graph.op(self.row(width), graph.part(scanned, 0)), gate)
        return graph.op(self.row(self.width), gated)

    def _feed_forward(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]], size: int) -> int:
        graph = self.graph
        if "ffn_up_exps.weight" not in names and "ffn_gate_up_exps.weight" not in names:
            return self._dense(x, names, "", size)
        routed = self._experts(layer, x, names, size)
        if "ffn_up_shexp.weight" in names:
            shared = self._dense(x, names, "_shexp", size)
            return graph.over(size, routed, shared)
        if "ffn_up.weight" in names:
            return graph.over(size, self._dense(x, names, "", size), routed)
        return routed

    def _dense(self, x: int, names: Mapping[str, tuple[int, ...]], suffix: str, size: int) -> int:
        graph = self.graph
        up = names.get(f"ffn_up{suffix}.weight")
        if up is None:
            return graph.op(size, x)
        rows = size // (self.width * _F) if self.width else 0
        inner = up[-1] * rows * _F
        if f"ffn_gate{suffix}.weight" in names:
            gate = graph.op(inner, x)
            active = graph.op(inner, gate, graph.op(inner, x))
        else:
            raised = graph.op(inner, x)
            down = names.get(f"ffn_down{suffix}.weight", up)
            # phi3 and chatglm: gate and up in one matrix, twice as wide as what down takes
            active = graph.op(inner // 2, raised) if down[0] * 2 == up[-1] else graph.over(inner, raised)
        return graph.op(size, active)

    def _experts(self, layer: LayerShape, x: int, names: Mapping[str, tuple[int, ...]], size: int) -> int:
        graph = self.graph
        rows = size // (self.width * _F) if self.width else 0
        used, count = max(layer.experts_used, 1), max(self.shape.expert_count, 1)
        up = names.get("ffn_up_exps.weight") or names["ffn_gate_up_exps.weight"]
        wide = up[1] if len(up) > 1 else 0
        probs = graph.over(count * rows * _F, graph.op(count * rows * _F, x))
        order = graph.op(count * rows * _F, probs)
        chosen = graph.part(order, used * rows * _F)
        weights = graph.over(used * rows * _F, graph.op(used * rows * _F, graph.view(probs), chosen))
        inner = wide * used * rows * _F
        if "ffn_gate_up_exps.weight" in names:
            fused = graph.op(inner, x, chosen)
            active = graph.op(inner // 2, graph.part(fused, inner // 2))
        elif "ffn_gate_exps.weight" in names:
            gate = graph.op(inner, x, chosen)
            active = graph.op(inner, gate, graph.op(inner, x, chosen))
        else:
            active = graph.over(inner, graph.op(inner, x, chosen))
        down = graph.over(used * size, graph.op(used * size, active, chosen), weights)
        parts = [graph.part(down, size) for _ in range(used)]
        out = parts[0]
        for part in parts[1:]:
            out = graph.over(size, out, part)
        return graph.op(size, out) if used == 1 else out


def _by_layer(shape: ModelShape) -> dict[int, dict[str, tuple[int, ...]]]:
    """Dims of each block's tensors by their short names: `attn_q.weight`."""
    found: dict[int, dict[str, tuple[int, ...]]] = {}
    for tensor in shape.tensors:
        if tensor.layer is not None:
            found.setdefault(tensor.layer, {})[tensor.name.split(".", 2)[2]] = tensor.dims
    return found
