"""What a model looks like to a planner: layers, heads, windows, states and tensor sizes. Read from the header alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.model.arch import read_attention
from launcher.model.gguf import Header, TensorInfo, Value
from launcher.model.keys import Keys
from launcher.model.layers import LayerShape, Memory, Recurrent, Window
from launcher.model.shards import read_shards

__all__ = [
    "LayerShape", "Memory", "ModelShape", "Recurrent", "Rope", "TensorInfo", "Window", "build_shape", "read_shape",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: how far the model was trained, and how it was stretched."""

    dimensions: int
    base: float
    scaling: str  # none, linear, yarn, longrope
    factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything the plan and the rules know about a model. `kind`: model, mmproj, adapter, or what the file says.

    block_count     blocks as the file says; `layers` has as many as the engine makes of them (loops, router)
    train_context   tokens it was trained on, before any stretching
    window          tokens of the sliding window, 0 for none
    indexer_length  elements of one row of indexer keys, 0 for none
    files           every shard in order; tensor.file is an index into it
    """

    path: Path
    files: tuple[Path, ...]
    size: int
    arch: str
    kind: str
    name: str
    memory: Memory
    block_count: int
    nextn_layers: int
    train_context: int
    embedding_length: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    tensors: tuple[TensorInfo, ...]
    window: int
    window_kind: Window
    is_mla: bool
    mla_key_length: int
    mla_value_length: int
    indexer_length: int
    recurrent: Recurrent
    expert_count: int
    expert_used: int
    expert_shared: int
    leading_dense: int
    causal: bool
    alibi: bool
    rope: Rope
    chat_template: bool
    tokenizer: str
    file_type: int
    metadata: Mapping[str, Value]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors of all shards."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def cached_layers(self) -> tuple[LayerShape, ...]:
        """Layers with K and V of their own."""
        return tuple(layer for layer in self.layers if layer.cached)

    @property
    def has_tied_output(self) -> bool:
        """True when the output matrix is the token embedding (no `output.weight`)."""
        return not any(tensor.name == "output.weight" for tensor in self.tensors)

    def key(self, suffix: str, default: Value | None = None) -> Value | None:
        """A header value by its name without the architecture: `key("attention.head_count")`."""
        return self.metadata.get(f"{self.arch}.{suffix}", default)


def read_shape(path: Path, *, member: str | None = None) -> ModelShape:
    """The shape of the model at `path`: a GGUF, any one of its shards, or a llamafile that carries one.

    Raises ProfileError (exit code 10) in plain words.
    """
    headers, tensors = read_shards(path, member=member)
    return build_shape(headers, tensors)


def build_shape(headers: tuple[Header, ...], tensors: tuple[TensorInfo, ...]) -> ModelShape:
    """The shape from headers already read: the first shard has the keys, all of them have tensors."""
    first = headers[0]
    keys = Keys(first.path, first.metadata)
    attention = read_attention(keys, tensors)
    return ModelShape(
        path=first.path,
        files=tuple(header.path for header in headers),
        size=sum(header.size for header in headers),
        arch=keys.arch,
        kind=attention.kind,
        name=keys.text("general.name", ""),
        memory=attention.memory,
        block_count=attention.block_count,
        nextn_layers=attention.nextn_layers,
        train_context=keys.count("context_length", 0),
        embedding_length=keys.count("embedding_length", 0),
        vocab_size=keys.length("tokenizer.ggml.tokens") or keys.count("vocab_size", 0),
        layers=attention.layers,
        tensors=tensors,
        window=attention.window,
        window_kind=attention.window_kind,
        is_mla=attention.is_mla,
        mla_key_length=keys.count("attention.key_length_mla", 0),
        mla_value_length=keys.count("attention.value_length_mla", 0),
        indexer_length=attention.indexer_length,
        recurrent=attention.recurrent,
        expert_count=keys.count("expert_count", 0),
        expert_used=max((layer.experts_used for layer in attention.layers), default=0),
        expert_shared=keys.count("expert_shared_count", 0),
        leading_dense=keys.count("leading_dense_block_count", 0),
        causal=keys.flag("attention.causal", attention.causal),
        alibi=keys.number("attention.max_alibi_bias", 0.0) > 0.0,
        rope=_rope(keys),
        chat_template="tokenizer.chat_template" in first.metadata,
        tokenizer=keys.text("tokenizer.ggml.model", ""),
        file_type=keys.count("general.file_type", 0),
        metadata=first.metadata,
    )


def _rope(keys: Keys) -> Rope:
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    return Rope(
        dimensions=keys.count("rope.dimension_count", 0),
        base=keys.number("rope.freq_base", 10000.0),
        scaling=keys.text(f"{keys.arch}.rope.scaling.type", "linear"),
        factor=factor or 1.0,
        original_context=keys.count("rope.scaling.original_context_length", keys.count("context_length", 0)),
    )
