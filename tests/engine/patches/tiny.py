"""Models of a few hundred kilobytes with random weights and any head shape, for faults that shapes alone cause."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS = 2
FEED_FORWARD = 64


def write_tiny(
    path: Path,
    *,
    arch: str = "qwen2",
    head: int,
    rotated: int | None = None,
    heads: int = 2,
    heads_kv: int = 2,
    context: int = 2048,
    seed: int = 0,
) -> Path:
    """Two layers over a vocabulary of single bytes. `rotated` < head: a partial rotary embedding (stablelm)."""
    width = head * heads
    random = np.random.default_rng(seed)
    out = gguf.GGUFWriter(path, arch)

    out.add_context_length(context)
    out.add_embedding_length(width)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(heads)
    out.add_head_count_kv(heads_kv)
    out.add_key_length(head)
    out.add_value_length(head)
    out.add_rope_dimension_count(rotated or head)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_layer_norm_eps(1e-5)

    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)

    def tensor(name: str, *shape: int, scale: float | None = None) -> None:
        spread = scale if scale is not None else shape[-1] ** -0.5
        out.add_tensor(name, (random.standard_normal(shape) * spread).astype(np.float32))

    def constant(name: str, size: int, value: float) -> None:
        out.add_tensor(name, np.full(size, value, np.float32))

    normed_with_bias = arch == "stablelm"
    tensor("token_embd.weight", len(tokens), width, scale=1.0)
    # only ASCII is ever the likeliest: half a UTF-8 character would hold back the server's answer
    output = random.standard_normal((len(tokens), width)).astype(np.float32) * width**-0.5
    output[:3] = output[3 + 128 :] = 0
    out.add_tensor("output.weight", output)
    constant("output_norm.weight", width, 1)
    if normed_with_bias:
        constant("output_norm.bias", width, 0)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            constant(f"{block}{norm}.weight", width, 1)
            if normed_with_bias:
                constant(f"{block}{norm}.bias", width, 0)
        # three times the usual spread for Q and K: attention that looks somewhere, so that positions matter
        sharp = 3 * width**-0.5
        for part, rows, scale in (
            ("q", heads * head, sharp),
            ("k", heads_kv * head, sharp),
            ("v", heads_kv * head, None),
        ):
            tensor(f"{block}attn_{part}.weight", rows, width, scale=scale)
            if arch == "qwen2":
                constant(f"{block}attn_{part}.bias", rows, 0)
        tensor(f"{block}attn_output.weight", width, heads * head)
        tensor(f"{block}ffn_gate.weight", FEED_FORWARD, width)
        tensor(f"{block}ffn_up.weight", FEED_FORWARD, width)
        tensor(f"{block}ffn_down.weight", width, FEED_FORWARD)

    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
