"""Tiny models with random weights, one per weight type, written in a moment: what a new engine has to compute with.

A llama of two layers with a byte vocabulary. What it says is noise; that it is finite, and that every kernel for the
type has run, is what verification wants. Written here rather than shipped: half a megabyte each, and no binary in
the package. The formats: ggml/include/gguf.h (container), ggml/src/ggml-common.h (blocks).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

EMBEDDING, HEADS, KV_HEADS, FEED_FORWARD, LAYERS, CONTEXT = 256, 4, 2, 512, 2, 2048
_ALIGNMENT = 32
_WORDS = [*"abcdefghijklmnopqrstuvwxyz", "▁", *(f"▁{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5  # gguf_type

Pack = Callable[[random.Random, int], bytes]
"""A random source and a number of blocks to the bytes of these blocks."""


@dataclass(frozen=True, slots=True)
class WeightType:
    """`number` is ggml_type; `block` weights take one unit that `pack` writes."""

    number: int
    block: int
    pack: Pack


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _table(encode: Callable[[float], bytes]) -> Pack:
    """Unquantized weights: each byte of noise picks one of 256 values around zero."""
    values = [encode((byte - 127.5) / 128 * 0.06) for byte in range(256)]
    return lambda noise, count: b"".join([values[byte] for byte in noise.randbytes(count)])


def _blocks(head: bytes, noise_bytes: int, tail: bytes = b"") -> Pack:
    """Quantized weights: fixed scales, chosen so that weights stay near ±0.05, and noise for the rest."""

    def pack(noise: random.Random, count: int) -> bytes:
        data = noise.randbytes(count * noise_bytes)
        return b"".join([head + data[i : i + noise_bytes] + tail for i in range(0, len(data), noise_bytes)])

    return pack


TYPES: Mapping[str, WeightType] = {
    "f16": WeightType(1, 1, _table(_half)),
    "bf16": WeightType(30, 1, _table(lambda value: struct.pack("<f", value)[2:])),
    "q8_0": WeightType(8, 32, _blocks(_half(0.0004), 32)),
    "q4_0": WeightType(2, 32, _blocks(_half(0.007), 16)),
    "q4_1": WeightType(3, 32, _blocks(_half(0.007) + _half(-0.052), 16)),
    "q5_0": WeightType(6, 32, _blocks(_half(0.0035), 20)),
    "iq4_nl": WeightType(20, 32, _blocks(_half(0.0005), 16)),
    "q4_K": WeightType(12, 256, _blocks(_half(0.0002) + _half(0.0015), 140)),
    "q5_K": WeightType(13, 256, _blocks(_half(0.0001) + _half(0.0015), 172)),
    "q6_K": WeightType(14, 256, _blocks(b"", 208, _half(0.00003))),
}


def write_model(path: Path, weights: str, seed: int = 1) -> Path:
    """Write a model whose matrices all are of the type `weights`. The same seed gives the same bytes."""
    kind = TYPES[weights]
    noise = random.Random(seed)
    infos, data, offset = [], [], 0
    for name, (columns, rows) in _tensors():
        if rows == 0:  # a vector: always f32
            number, content = 0, struct.pack(f"<{columns}f", *(1.0,) * columns)
        else:
            number, content = kind.number, kind.pack(noise, columns * rows // kind.block)
        shape = (columns, rows) if rows else (columns,)
        infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset))
        content += b"\0" * (-len(content) % _ALIGNMENT)
        data.append(content)
        offset += len(content)
    fields = list(_fields())
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(fields)) + b"".join(fields) + b"".join(infos)
    path.write_bytes(head + b"\0" * (-len(head) % _ALIGNMENT) + b"".join(data))
    return path


def _tensors() -> Iterable[tuple[str, tuple[int, int]]]:
    head = EMBEDDING // HEADS
    yield "token_embd.weight", (EMBEDDING, len(_vocabulary()))
    yield "output_norm.weight", (EMBEDDING, 0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (EMBEDDING, 0)
        yield f"{block}.attn_q.weight", (EMBEDDING, EMBEDDING)
        yield f"{block}.attn_k.weight", (EMBEDDING, KV_HEADS * head)
        yield f"{block}.attn_v.weight", (EMBEDDING, KV_HEADS * head)
        yield f"{block}.attn_output.weight", (EMBEDDING, EMBEDDING)
        yield f"{block}.ffn_norm.weight", (EMBEDDING, 0)
        yield f"{block}.ffn_gate.weight", (EMBEDDING, FEED_FORWARD)
        yield f"{block}.ffn_up.weight", (EMBEDDING, FEED_FORWARD)
        yield f"{block}.ffn_down.weight", (FEED_FORWARD, EMBEDDING)


def _vocabulary() -> list[tuple[str, int]]:
    """Token and llama_token_type: unknown 2, control 3, byte 6, normal 1. A multiple of 32 in number."""
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    tokens = special + [(f"<0x{byte:02X}>", 6) for byte in range(256)] + [(word, 1) for word in _WORDS]
    return tokens + [(f"▁▁{n}", 1) for n in range(-len(tokens) % 32)]


def _fields() -> Iterable[bytes]:
    tokens = _vocabulary()
    yield _field("general.architecture", _STRING, _string("llama"))
    yield _field("general.name", _STRING, _string("kvlaunch verification"))
    for name, value in {
        "llama.context_length": CONTEXT,
        "llama.embedding_length": EMBEDDING,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }.items():
        yield _field(name, _U32, struct.pack("<I", value))
    yield _field("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5))
    yield _field("tokenizer.ggml.model", _STRING, _string("llama"))
    yield _array("tokenizer.ggml.tokens", _STRING, [_string(text) for text, _ in tokens])
    yield _array("tokenizer.ggml.scores", _F32, [struct.pack("<f", -float(i)) for i in range(len(tokens))])
    yield _array("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for _, kind in tokens])


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _field(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _array(name: str, kind: int, items: list[bytes]) -> bytes:
    return _field(name, _ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))
