"""The graph of one ubatch, rebuilt from the tensors that a header lists, in the order in which ggml evaluates it.

Which projections, norms, experts and states there are decides the operations; replay.py says what they need. The parts
of a block stand in attention.py, states.py, sparse.py and hyper.py; here is how blocks put them together.
Follows src/llama-graph.cpp (build_inp_embd, build_ffn, build_moe_ffn) and src/models/*.cpp of the pin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.plan import hyper, sparse
from launcher.plan.attention import attend_layer, mla_layer, project, turned_back
from launcher.plan.kv import KvSettings
from launcher.plan.sketch import Batch, F, Names, Sketch, by_layer
from launcher.plan.states import gather_ahead, state_layer

# src/llama-arch.cpp:1182: these take no batches that mix tokens and embeddings, so they lack two inputs
_UNMIXED = frozenset({"cogvlm", "deepseek4", "graniteswitch", "eagle3", "dflash", "gemma4-assistant"})
# with heads for drafting in mind, these keep every row of the last block, not only those that are output
_ALL_ROWS = frozenset(
    {"bailingmoe3", "cohere2moe", "gemma4", "hy_v3", "nemotron_h", "nemotron_h_moe", "gpt-oss", "qwen35", "qwen35moe"}
    | {"qwen3next", "step35", "hrm_text"}
)
_PLAIN_NORMS = frozenset({"olmo", "talkie", "hrm_text"})  # their norms have no weights that would show them
_DENSE_ONLY = frozenset({"refact"})  # src/models/refact.cpp:128 looks for no experts, whatever the file has
# one sum for attention and feed-forward that names the latter first: it is evaluated before the output projection
_FEEDS_FIRST = frozenset({"cohere2", "cohere2moe", "command-r", "plamo", "falcon"})
_RESIDUAL_FIRST = frozenset({"lfm2", "lfm2moe", "jamba"})  # their sums are written over the residual row
_SITU = frozenset({"kimi-k3"})  # src/llama-graph.cpp, LLM_FFN_SITU: gate and up made one by one, over themselves
_NORMED_RESIDUAL = frozenset({"minimax-01"})  # src/models/minimax-01.cpp: what is added is the normed row


class Begin(StrEnum):
    """What enters a buffer's first layer."""

    TOKENS = "tokens"  # looked up here
    EMBEDDED = "embedded"  # rows from the host
    SUM = "sum"  # after layers on the host: both rows that the layer before adds, since the sum is made here
    ROW = "row"  # after layers of another device


class Builder(Sketch):
    """Rebuilds the graph of an architecture from its tensor names, in the order in which ggml evaluates it."""

    def __init__(
        self, shape: ModelShape, settings: KvSettings, batch: Batch, masks: Mapping[str, int], copies: int = 1
    ) -> None:
        super().__init__(shape, settings, batch, masks, copies)
        self.tensors: Mapping[int, Names] = {}
        self.away: Collection[int] = ()  # layers whose experts are multiplied on the host, where these lie elsewhere
        self._embedded = 0
        self._next: LayerShape | None = None

    def run(self, layers: Sequence[LayerShape], *, begins: Begin, output: bool, alike: Sequence[int] = ()) -> int:
        """Bytes of the buffer. `alike`: for each layer that is not drawn, which of `layers` it is like."""
        self.tensors = by_layer(self.shape, {self._stored(layer) for layer in layers})
        current = self._embedded = self._embedding(begins)
        current = hyper.begin(self, current)
        if self.shape.arch == "talkie":  # src/models/talkie.cpp: every layer adds the normed embedding again
            current = self._embedded = self.graph.over(self.row(self.width), current)
        if self.shape.arch == "hrm_text":  # src/models/hrm-text.cpp: two states, of which one waits for the other
            current = self.graph.op(self.row(self.width), current)
        last = len(layers) - 1
        own: list[list[int]] = []
        for number, layer in enumerate(layers):
            self.leaves = []
            ends = output and number == last and self.shape.arch not in _ALL_ROWS
            if number == 0 and layer.recurrent and not layer.cached:
                gather_ahead(self)
            self._next = layers[number + 1] if number < last else None
            current = self._block(layer, current, last=ends)
            own.append(self.leaves)
        if self.shape.arch == "hrm_text":
            current = self.graph.over(self.row(self.width), self._embedded, current)
        for index in alike:
            for size in own[index]:
                self.graph.input(size)
        if output:
            rows = self.batch.outputs * F
            current = self.graph.over(rows * self.width, self.graph.op(rows * self.width, current))
            self.graph.op(rows * max(self.shape.vocab_size, 1), current)
        return self.graph.peak()

    def _embedding(self, begins: Begin) -> int:
        """build_inp_embd: rows by token, rows as given, and a mix of both; two of the three are never used."""
        graph, row = self.graph, self.row(self.width)
        if begins is Begin.SUM:
            return graph.over(row, self.entering(row), self.entering(row))
        if begins is Begin.ROW:
            return self.entering(row)
        if begins is Begin.EMBEDDED:  # all three kinds of rows come from the host; the mix is made here
            found = self.entering(row)
            if self.shape.arch not in _UNMIXED:
                rows, slots = self.entering(row), self.entering(8 * self.tokens)
                graph.set_rows(graph.op(row, self.entering(row)), rows, slots)
            return found
        tokens = graph.input(F * self.tokens)
        graph.input(row)
        found = graph.op(row, tokens)
        if self.shape.arch not in _UNMIXED:
            ids, slots = graph.input(F * self.tokens), graph.input(8 * self.tokens)
            rows = graph.op(row, ids)
            # written into a copy, a view of which is the result: nothing reads it, so nothing frees it
            copied = graph.op(row, graph.input(row))
            graph.set_rows(copied, rows, slots)
        return found

    # one block

    def _block(self, layer: LayerShape, x: int, *, last: bool) -> int:
        names = self.tensors.get(self._stored(layer), {})
        if hyper.streams(self):
            return self._streamed(layer, x, names)
        graph, e = self.graph, self.row(self.width)
        if "attn_res_score.weight" in names and layer.index:  # src/models/kimi-k3.cpp: a mix with the first row
            inner = graph.over(e, graph.over(e, graph.op(e, graph.view(self._embedded)), graph.op(e, x)))
        else:
            inner = self._normed(x, names, "attn_norm_2" if "attn_norm_2.bias" in names else "attn_norm")
        if self.shape.arch in _NORMED_RESIDUAL:
            x = inner
        mixed, projected = self._mixed(layer, x, inner, names)
        if self._next is not None and self._next.recurrent and not self._next.cached and not layer.experts_used:
            gather_ahead(self)
        size = self.batch.outputs * self.width * F if last else e
        if self._parallel(layer, names):
            return self._in_parallel(layer, x, inner, mixed, names, size)
        if not projected:
            mixed = project(self, mixed)
        if "post_attention_norm.weight" in names and "ffn_norm.weight" in names:
            mixed = graph.over(e, mixed)
        if last:
            mixed, x = self._chosen(mixed, size), self._chosen(x, size)
        summed = self._added(size, mixed, x)
        if not any(name.startswith("ffn_") for name in names):
            return summed
        normed = self._normed(summed, names, "ffn_norm", size)
        if self.shape.arch in _NORMED_RESIDUAL:
            summed = normed
        fed = self._feed_forward(layer, normed, names, size)
        summed = self._added(size, fed, summed)
        if self.shape.arch == "talkie":
            summed = graph.over(size, summed, graph.op(size, self._embedded))
        return summed

    def _added(self, size: int, result: int, residual: int) -> int:
        first, second = (residual, result) if self.shape.arch in _RESIDUAL_FIRST else (result, residual)
        return self.graph.over(size, first, second)

    def _chosen(self, rows: int, size: int) -> int:
        """Only the rows that are output."""
        return self.graph.op(size, rows, self.given("outputs", F * self.batch.outputs))

    def _mixed(self, layer: LayerShape, x: int, inner: int, names: Names) -> tuple[int, bool]:
        """What attention or states make of a row, and whether the output projection is in it."""
        if layer.recurrent and layer.cached:  # falcon-h1: both, each from a norm of its own
            attended = attend_layer(self, layer, inner, names)
            gather_ahead(self)
            states = state_layer(self, layer, self._normed(x, names, "attn_norm"), names)
            return self.graph.over(self.row(self.width), project(self, attended), states), True
        if layer.recurrent:
            return state_layer(self, layer, inner, names), True
        if layer.cached or layer.reuses is not None or self.shape.memory is Memory.NONE:
            return self._attended(layer, inner, names), False
        return inner, True

    def _attended(self, layer: LayerShape, x: int, names: Names) -> int:
        memory = self.shape.memory
        if memory is Memory.DSV4:
            return sparse.compressed_layer(self, layer, x, names)
        if memory is Memory.HYBRID_IDX and layer.indexer:
            pooled = sparse.pooled_latents if self.shape.is_mla else sparse.pooled_layer
            return pooled(self, layer, x, names)
        if memory in (Memory.DSA, Memory.DSA_ISWA) and self.shape.is_mla and not layer.swa:
            return sparse.indexed_latents(self, layer, x, names)
        if memory is Memory.MSA and layer.indexer and self.batch.indexed(self.shape):
            return sparse.block_layer(self, layer, x, names)
        if self.shape.is_mla:
            return mla_layer(self, layer, x, names)
        return attend_layer(self, layer, x, names, last=self.shape.arch in _FEEDS_FIRST)

    def _parallel(self, layer: LayerShape, names: Names) -> bool:
        """One norm for attention and feed-forward, both of which read it."""
        named = {"ffn_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"} & names.keys()
        fed_by = {"ffn_up.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight"} & names.keys()
        return not named and self.shape.arch not in _PLAIN_NORMS and layer.cached and bool(fed_by)

    def _in_parallel(self, layer: LayerShape, x: int, inner: int, mixed: int, names: Names, size: int) -> int:
        graph = self.graph
        if self.shape.arch not in _FEEDS_FIRST:
            mixed = project(self, mixed)
        if "attn_norm_2.bias" in names:  # falcon-40b: a norm for each
            inner = self._normed(x, names, "attn_norm")
        fed = self._feed_forward(layer, inner, names, size)
        if self.shape.arch in _FEEDS_FIRST:
            fed = graph.over(size, fed, x) if self.shape.arch.startswith("co") else fed
            mixed = project(self, turned_back(self, layer, mixed))
        if size != self.row(self.width):
            mixed, x = self._chosen(mixed, size), self._chosen(x, size)
        return graph.over(size, graph.over(size, fed, mixed), x)

    def _streamed(self, layer: LayerShape, x: int, names: Names) -> int:
        """A block between several residual streams."""
        size = self.row(self.width)
        if layer.ple:
            x = self._with_ngrams(x, names)
        opened = hyper.open_half(self, x, names, "attn")
        mixed, projected = self._mixed(layer, x, opened.inner, names)
        x = hyper.close_half(self, opened, mixed if projected else project(self, mixed))
        opened = hyper.open_half(self, x, names, "ffn")
        return hyper.close_half(self, opened, self._feed_forward(layer, opened.inner, names, size))

    def _with_ngrams(self, x: int, names: Names) -> int:
        """Qwen 4 exp: embeddings of n-grams, gated, convolved over the tokens and added to every stream."""
        graph, row = self.graph, self.row(self.width)
        wide, taps = hyper.streams(self) * row, names["ple_conv1d.weight"][0]
        before = self.shape.recurrent.ple * self.batch.sequences * F
        held = graph.op(before, self.given("states", F * self.batch.sequences))
        looked_up = graph.op(row)
        values = graph.op(wide, graph.view(graph.op(row, looked_up)))
        keys = graph.op(wide, graph.view(graph.op(wide, looked_up)))
        gate = graph.op(self.row(hyper.streams(self)), graph.over(wide, keys, graph.op(wide, graph.view(x))))
        values = graph.over(wide, values, gate)
        joined = graph.op(wide + before, graph.view(held), graph.op(wide, graph.view(values)))
        self.written(graph.op(before, graph.view(joined)))
        summed = graph.over(wide, graph.op(wide, graph.view(joined)))
        for _ in range(taps - 1):
            summed = graph.over(wide, summed, graph.op(wide, graph.view(joined)))
        return graph.over(wide, x, graph.over(wide, values, graph.view(graph.op(wide, summed))))

    def _stored(self, layer: LayerShape) -> int:
        """The block whose weights a layer uses: a looped model goes round its blocks."""
        return layer.index % self.shape.block_count if self.shape.block_count else layer.index

    def _normed(self, x: int, names: Names, name: str, size: int | None = None) -> int:
        """A norm, where the block has one: some norm only what comes out of a half (src/models/olmo2.cpp)."""
        if f"{name}.weight" not in names and self.shape.arch not in _PLAIN_NORMS:
            # qwen3next: what is called the norm after attention stands before the feed-forward part
            before_ffn = name == "ffn_norm" and "post_attention_norm.weight" in names
            if not before_ffn or "post_ffw_norm.weight" in names:
                return x
        return self.norm(x, names, name, size)

    # feed-forward

    def _feed_forward(self, layer: LayerShape, x: int, names: Names, size: int) -> int:
        graph = self.graph
        if self.shape.arch in _DENSE_ONLY or not {"ffn_up_exps.weight", "ffn_gate_up_exps.weight"} & names.keys():
            return self._dense(x, names, "", size)
        routed = self._experts(layer, x, names, size)
        if "ffn_up_shexp.weight" in names:
            shared = self._dense(x, names, "_shexp", size)
            return graph.over(size, routed, shared)
        if "ffn_up.weight" in names:
            return graph.over(size, self._dense(x, names, "", size), routed)
        return routed

    def _dense(self, x: int, names: Names, suffix: str, size: int) -> int:
        graph = self.graph
        up = names.get(f"ffn_up{suffix}.weight")
        if up is None:
            return graph.op(size, x)
        rows = size // (self.width * F) if self.width else 0
        inner = up[-1] * rows * F
        if f"ffn_gate{suffix}.weight" in names:
            active = self._activated(inner, x)
        else:
            raised = graph.op(inner, x)
            down = names.get(f"ffn_down{suffix}.weight", up)
            # phi3 and chatglm: gate and up in one matrix, twice as wide as what down takes
            active = graph.op(inner // 2, raised) if down[0] * 2 == up[-1] else graph.over(inner, raised)
        return graph.op(size, active)

    def _activated(self, inner: int, x: int, *sources: int) -> int:
        """Gate and up, made one."""
        graph = self.graph
        gate = graph.op(inner, x, *sources)
        if self.shape.arch in _SITU:
            curved = graph.over(inner, graph.op(inner, gate), graph.over(inner, gate))
            return graph.over(inner, curved, graph.op(inner, x, *sources))
        return graph.op(inner, gate, graph.op(inner, x, *sources))

    def _experts(self, layer: LayerShape, x: int, names: Names, size: int) -> int:
        graph = self.graph
        rows = size // (self.width * F) if self.width else 0
        used, count = max(layer.experts_used, 1), max(self.shape.expert_count, 1)
        up = names.get("ffn_up_exps.weight") or names["ffn_gate_up_exps.weight"]
        wide = up[1] if len(up) > 1 else 0
        probs = graph.over(count * rows * F, graph.op(count * rows * F, x))
        order = graph.op(count * rows * F, probs)
        chosen = graph.part(order, used * rows * F)
        weights = graph.over(used * rows * F, graph.op(used * rows * F, graph.view(probs), chosen))
        inner = wide * used * rows * F
        if layer.index in self.away:  # what comes back from the host is weighed here
            down = graph.over(used * size, graph.op(used * size), weights)
            return self._summed(down, used, size)
        narrow = names.get("ffn_routed_down.weight")
        if narrow is not None:  # experts in a space of their own (src/models/kimi-k3.cpp)
            x = graph.op(narrow[-1] * rows * F, x)
        if self.shape.arch == "llama4":  # weighs before the experts: a copy of the row for each of them
            x = graph.over(used * size, graph.op(used * size, graph.view(x)), weights)
        if "ffn_gate_up_exps.weight" in names:
            fused = graph.op(inner, x, chosen)
            active = graph.op(inner // 2, graph.part(fused, inner // 2))
        elif "ffn_gate_exps.weight" in names:
            active = self._activated(inner, x, chosen)
        else:
            active = graph.over(inner, graph.op(inner, x, chosen))
        out_size = size if narrow is None else narrow[-1] * rows * F
        down = graph.over(used * out_size, graph.op(used * out_size, active, chosen), weights)
        out = self._summed(down, used, out_size)
        return out if narrow is None else graph.op(size, out)

    def _summed(self, experts: int, used: int, size: int) -> int:
        """The rows of all experts as one."""
        parts = [self.graph.part(experts, size) for _ in range(used)]
        out = parts[0]
        for part in parts[1:]:
            out = self.graph.over(size, out, part)
        return self.graph.op(size, out) if used == 1 else out

    def run_experts(self, layers: Sequence[LayerShape]) -> int:
        """Bytes of the host's buffer where only the experts of these layers are multiplied there (`--cpu-moe`): all
        else enters here and is copied on before the first of them."""
        graph, row = self.graph, self.row(self.width)
        self.tensors = by_layer(self.shape, {self._stored(layer) for layer in layers})
        rows = self._embedding(Begin.TOKENS)
        masks = [self.given(f"mask {name}", size) for name, size in self.masks.items()]
        # attention's inputs go on with its first layer. Where states come first that is later: uncertain by how much
        self.written(rows, *([] if self.shape.layers[0].recurrent else masks), self.positions)
        for layer in layers:
            names = self.tensors[self._stored(layer)]
            up = names.get("ffn_up_exps.weight") or names.get("ffn_gate_up_exps.weight")
            if up is None:
                continue
            used = max(layer.experts_used, 1)
            inner = self.row((up[1] if len(up) > 1 else 0) * used)
            x, chosen = graph.op(row), graph.op(self.row(used))
            if "ffn_gate_up_exps.weight" in names:
                active = graph.op(inner // 2, graph.op(inner, x, chosen))
            elif "ffn_gate_exps.weight" in names:
                active = self._activated(inner, x, chosen)
            else:
                active = graph.over(inner, graph.op(inner, x, chosen))
            self.written(graph.op(row * used, active, chosen))
        return graph.peak()
