"""What every part of a replayed graph needs: the model, the batch, the sizes of rows, and the inputs by name.

Knows no architecture: attention.py, states.py and sparse.py draw their parts on it, graph.py puts them in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.model.types import storage_type
from launcher.plan.context import ContextSplit
from launcher.plan.kv import KvSettings
from launcher.plan.replay import Graph

F = 4  # bytes of an f32 activation

Names = Mapping[str, tuple[int, ...]]
"""The tensors of one block by their short names (`attn_q.weight`), with their dims."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One worst-case ubatch, as the engine reserves for it. `slots`: those that states are gathered for; `sequences`:
    those that have tokens in it."""

    tokens: int
    streams: int
    outputs: int
    sequences: int
    flash: bool
    slots: int

    def indexed(self, shape: ModelShape) -> bool:
        """MiniMax M3 falls back to dense attention where sequences share a cache (src/models/minimax-m3.cpp:233)."""
        return shape.memory is not Memory.MSA or (self.flash and (self.sequences == 1 or self.streams > 1))

    @classmethod
    def of(cls, context: ContextSplit, settings: KvSettings, outputs_per_slot: int = 1) -> Batch:
        """The batch of sched_reserve for this context."""
        tokens = min(context.total, settings.ubatch_of(context))
        return cls(
            tokens=-(-tokens // context.slots) * context.slots,  # as many of each sequence: llama-context.cpp:2531
            streams=1 if context.unified else context.slots,
            outputs=min(tokens, context.slots * outputs_per_slot),
            sequences=context.slots,
            flash=settings.flash,
            slots=context.slots,
        )


def rotation_bytes(length: int, type_name: str, *, widest: bool) -> int:
    """The Hadamard matrix that quantized rows are turned by (src/llama-kv-cache.cpp:314-345); 0 where none is.

    For K its side is the largest power of two that divides the head (`widest`), for V 64.
    """
    if not storage_type(type_name).quantized or length <= 0 or length % 64:
        return 0
    return hadamard_bytes(length) if widest else 64 * 64 * F


def hadamard_bytes(length: int) -> int:
    """The matrix whose side is the largest power of two, from 64, that divides a row."""
    side = 64
    while length % (2 * side) == 0:
        side *= 2
    return side * side * F


class Sketch:
    """A graph that is being drawn, in the order in which ggml evaluates it."""

    def __init__(
        self, shape: ModelShape, settings: KvSettings, batch: Batch, masks: Mapping[str, int], copies: int = 1
    ) -> None:
        self.shape = shape
        self.settings = settings
        self.batch = batch
        self.graph = Graph()
        self.tokens = batch.tokens
        self.width = shape.embedding_length
        self.masks = masks
        self.copies = copies  # of what enters a device, with pipeline parallelism
        self.widest = max((layer.v_width for layer in shape.layers), default=1)
        self.picked: int | None = None  # what an indexer chose, for the layers after it that have none
        self.held: int | None = None  # states that were gathered ahead of the block that needs them
        self.leaves: list[int] = []  # sizes of the constants that the layer being drawn has of its own
        self._inputs: dict[str, int] = {}
        self._made: dict[str, int] = {}

    def leaf(self, size: int) -> int:
        """A constant of one layer: like an input, it is laid out before anything is evaluated."""
        self.leaves.append(size)
        return self.graph.input(size)

    def once(self, name: str, size: int, *sources: int) -> int:
        """A result that all layers share, made when the first of them needs it."""
        if name not in self._made:
            self._made[name] = self.graph.op(size, *sources)
        return self._made[name]

    def written(self, *results: int) -> None:
        """Copied out of the graph: that is the last that reads them."""
        self.graph.op(0, *results)

    def given(self, name: str, size: int) -> int:
        """An input, laid out where the graph first meets it."""
        if name not in self._inputs:
            self._inputs[name] = self.entering(size)
        return self._inputs[name]

    def entering(self, size: int) -> int:
        """What is filled before each evaluation. In a pipeline the copies take turns, so all of them stay."""
        for _ in range(self.copies - 1):
            self.graph.input(size, kept=True)
        return self.graph.input(size, kept=self.copies > 1)

    @property
    def positions(self) -> int:
        """The position of each token."""
        return self.given("positions", F * self.tokens)

    def row(self, elements: int) -> int:
        """Bytes of an activation of this width for the whole ubatch."""
        return elements * F * self.tokens

    def key(self, name: str) -> int:
        """A count of the model's header; 0 where there is none."""
        value = self.shape.key(name, 0)
        return value if isinstance(value, int) else 0

    def product(self, names: Names, name: str, x: int) -> int:
        """A matrix product: one row for each token, as wide as the matrix."""
        dims = names[f"{name}.weight"]
        return self.graph.op(self.row(dims[-1] if len(dims) > 1 else 1), x)

    def norm(self, x: int, names: Names, name: str, size: int | None = None) -> int:
        """A norm with its weight and bias, over its operand where nobody else reads that."""
        row = self.row(self.width) if size is None else size
        # LayerNorm has a bias and always a place of its own, RMSNorm is made over its operand
        normed = self.graph.op(row, x) if f"{name}.bias" in names else self.graph.over(row, x)
        return self.graph.over(row, normed)

    def cells(self, cache: str) -> int:
        """Cells of a cache that each token sees, by the size of its mask; each token has a row of them."""
        width = 2 if self.batch.flash else F
        return self.masks.get(cache, 0) // (width * self.tokens) if self.tokens else 0

    def turns(self, layer: LayerShape, which: str) -> bool:
        """Whether K or V is turned before it is stored."""
        return self._turning(layer, which) > 0

    def rotation(self, layer: LayerShape, which: str) -> int:
        """The matrix that turns it."""
        kind = "swa" if layer.swa else "main"
        return self.given(f"{which} rotation {kind}", self._turning(layer, which))

    def _turning(self, layer: LayerShape, which: str) -> int:
        # without a cache nothing is stored; src/llama-graph.cpp, build_inp_mem_hybrid_iswa makes no such input
        if self.shape.memory in (Memory.NONE, Memory.HYBRID_ISWA):
            return 0
        tier = self.settings.of(layer.index)
        length, name = (layer.key_length, tier.k) if which == "k" else (layer.value_length, tier.v)
        return rotation_bytes(length, name, widest=which == "k")


def by_layer(shape: ModelShape, blocks: Collection[int]) -> dict[int, dict[str, tuple[int, ...]]]:
    """Dims of these blocks' tensors by their short names: `attn_q.weight`."""
    found: dict[int, dict[str, tuple[int, ...]]] = {block: {} for block in blocks}
    begins = tuple(f"blk.{block}." for block in blocks)
    for tensor in shape.tensors:
        if tensor.name.startswith(begins):
            _, block, name = tensor.name.split(".", 2)
            found[int(block)][name] = tensor.dims
    return found
