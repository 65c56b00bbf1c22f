"""Shapes of known models, built from what their headers say, without a file."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.model.gguf import Header, Skipped, TensorInfo
from launcher.model.shape import ModelShape, build_shape
from launcher.model.types import storage_type


def tensors(*table: tuple[str, str, Sequence[int]]) -> tuple[TensorInfo, ...]:
    """Name, type and dims, laid one after another."""
    offset, made = 4096, []
    for name, kind, dims in table:
        size = storage_type(kind).row_bytes(dims[0])
        for dim in dims[1:]:
            size *= dim
        made.append(TensorInfo(name, kind, tuple(dims), offset, size))
        offset += -(-size // 32) * 32
    return tuple(made)


def shape_of(arch: str, keys: Mapping[str, Any], table: Sequence[TensorInfo] = (), vocabulary: int = 0) -> ModelShape:
    """The shape of a model whose header has these keys (names without the architecture)."""
    values: dict[str, Any] = {"general.architecture": arch}
    for name, value in keys.items():
        values[f"{arch}.{name}"] = array("I", value) if isinstance(value, list) else value
    if vocabulary:
        values["tokenizer.ggml.tokens"] = Skipped(vocabulary)
    header = Header(Path("model.gguf"), 3, values, tuple(table), 0, 4096, 1 << 30)
    return build_shape((header,), tuple(table))


def dense_tensors(blocks: int, width: int, ff: int, q: int, kv: int, vocabulary: int, kind: str = "q8_0") -> Any:
    """A usual decoder with a tied output."""
    table: list[tuple[str, str, Sequence[int]]] = [("token_embd.weight", kind, (width, vocabulary))]
    for block in range(blocks):
        for name, dims in (
            ("attn_q", (width, q)),
            ("attn_k", (width, kv)),
            ("attn_v", (width, kv)),
            ("attn_output", (q, width)),
            ("ffn_gate", (width, ff)),
            ("ffn_up", (width, ff)),
            ("ffn_down", (ff, width)),
        ):
            table.append((f"blk.{block}.{name}.weight", kind, dims))
        for name in ("attn_norm", "ffn_norm"):
            table.append((f"blk.{block}.{name}.weight", "f32", (width,)))
    table.append(("output_norm.weight", "f32", (width,)))
    return tensors(*table)


def smollm2_shape() -> ModelShape:
    keys = {
        "block_count": 30, "context_length": 8192, "embedding_length": 576, "feed_forward_length": 1536,
        "attention.head_count": 9, "attention.head_count_kv": 3,
    }  # fmt: skip
    return shape_of("llama", keys, dense_tensors(30, 576, 1536, 576, 192, 49152), 49152)


def gemma3_shape() -> ModelShape:
    keys = {
        "block_count": 18, "context_length": 32768, "embedding_length": 640, "feed_forward_length": 2048,
        "attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 256,
        "attention.value_length": 256, "attention.sliding_window": 512,
    }  # fmt: skip
    return shape_of("gemma3", keys, dense_tensors(18, 640, 2048, 1024, 256, 262144), 262144)


def mixture_shape(blocks: int = 8) -> ModelShape:
    """A small mixture of experts: 16 experts, 4 of them in use."""
    keys = {
        "block_count": blocks, "context_length": 32768, "embedding_length": 512, "attention.head_count": 8,
        "attention.head_count_kv": 2, "expert_count": 16, "expert_used_count": 4, "feed_forward_length": 1024,
    }  # fmt: skip
    table: list[tuple[str, str, Sequence[int]]] = [("token_embd.weight", "q4_0", (512, 32000))]
    for block in range(blocks):
        table += [
            (f"blk.{block}.attn_norm.weight", "f32", (512,)),
            (f"blk.{block}.attn_q.weight", "q4_0", (512, 512)),
            (f"blk.{block}.attn_output.weight", "q4_0", (512, 512)),
            (f"blk.{block}.ffn_norm.weight", "f32", (512,)),
            (f"blk.{block}.ffn_up_exps.weight", "q4_0", (512, 1024, 16)),
            (f"blk.{block}.ffn_gate_exps.weight", "q4_0", (512, 1024, 16)),
            (f"blk.{block}.ffn_down_exps.weight", "q4_0", (1024, 512, 16)),
        ]
    table.append(("output.weight", "q4_0", (512, 32000)))
    return shape_of("qwen3moe", keys, tensors(*table), 32000)


@pytest.fixture(scope="session")
def smollm2() -> ModelShape:
    """SmolLM2-135M."""
    return smollm2_shape()


@pytest.fixture(scope="session")
def gemma3() -> ModelShape:
    """gemma-3-270m."""
    return gemma3_shape()


@pytest.fixture(scope="session")
def mixture() -> ModelShape:
    return mixture_shape()


@pytest.fixture(scope="session")
def shape() -> Callable[..., ModelShape]:
    """`shape_of`."""
    return shape_of


@pytest.fixture(scope="session")
def table() -> Callable[..., tuple[TensorInfo, ...]]:
    """`tensors`."""
    return tensors
