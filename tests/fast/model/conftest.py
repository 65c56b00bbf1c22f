"""Writes small GGUF files, whole or wrong in one way: what the reader is tested on."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

# value type numbers of the format
TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "u64": 10, "i64": 11}
FORMS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q"}


class Gguf:
    """Builds the bytes of one file. Every part can be overridden to be wrong."""

    def __init__(self, version: int = 3, magic: bytes = b"GGUF") -> None:
        self.version = version
        self.magic = magic
        self.keys: list[bytes] = []
        self.tensors: list[bytes] = []
        self.size = 0
        self.key_count: int | None = None
        self.tensor_count: int | None = None
        self.alignment = 32

    @staticmethod
    def text(value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw

    def key(self, name: str, kind: str, value: Any) -> Gguf:
        body = self.text(value) if kind == "str" else struct.pack("<" + FORMS[kind], value)
        self.keys.append(self.text(name) + struct.pack("<I", TYPES[kind]) + body)
        return self

    def array(self, name: str, kind: str, values: Sequence[Any], count: int | None = None) -> Gguf:
        if kind == "str":
            body = b"".join(self.text(value) for value in values)
        else:
            body = struct.pack(f"<{len(values)}{FORMS[kind]}", *values)
        head = struct.pack("<IIQ", 9, TYPES[kind], len(values) if count is None else count)
        self.keys.append(self.text(name) + head + body)
        return self

    def raw(self, body: bytes) -> Gguf:
        self.keys.append(body)
        return self

    def tensor(self, name: str, dims: Sequence[int], kind: int = 0, size: int | None = None) -> Gguf:
        elements = 1
        for dim in dims:
            elements *= dim
        held = elements * {0: 4, 1: 2}.get(kind, 4) if size is None else size
        head = self.text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        self.tensors.append(head + struct.pack("<IQ", kind, self.size))
        self.size += -(-held // self.alignment) * self.alignment
        return self

    def header(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        start = self.magic + struct.pack("<IQQ", self.version, tensors, keys)
        return start + b"".join(self.keys) + b"".join(self.tensors)

    def bytes(self) -> bytes:
        head = self.header()
        return head + b"\0" * (-len(head) % self.alignment) + b"\0" * self.size


def llama(blocks: int = 2, **more: int) -> Gguf:
    """A tiny llama: 4 heads of 16, 2 KV heads."""
    made = Gguf().key("general.architecture", "str", "llama").key("general.name", "str", "tiny")
    values: Mapping[str, int] = {
        "block_count": blocks,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    for name, value in {**values, **more}.items():
        made.key(f"llama.{name}", "u32", value)
    made.array("tokenizer.ggml.tokens", "str", ["a", "b", "c"])
    made.array("tokenizer.ggml.scores", "f32", [0.0, 1.0, 2.0])
    made.tensor("token_embd.weight", [64, 3])
    for block in range(blocks):
        made.tensor(f"blk.{block}.attn_q.weight", [64, 64])
    return made.tensor("output.weight", [64, 3])


@pytest.fixture
def gguf() -> type[Gguf]:
    return Gguf


@pytest.fixture
def tiny() -> Any:
    """The builder of the tiny llama, to be changed before it is written."""
    return llama


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(made: Gguf | bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(made if isinstance(made, bytes) else made.bytes())
        return path

    return writer
