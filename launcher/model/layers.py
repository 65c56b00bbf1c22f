"""The parts of a model shape that decide its cache: one block, its state, and which kind of cache the engine makes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Memory(StrEnum):
    """Which kind of cache the engine makes for an architecture (`create_memory`, src/llama-model.cpp:2358)."""

    NONE = "none"  # encoders and diffusion models
    KV = "kv"
    ISWA = "iswa"  # two caches: full attention, sliding window
    RECURRENT = "recurrent"
    HYBRID = "hybrid"  # attention cache and recurrent state
    HYBRID_ISWA = "hybrid-iswa"
    HYBRID_IDX = "hybrid-idx"  # and a cache of indexer keys
    DSA = "dsa"  # attention cache and indexer keys (DeepSeek 3.2)
    DSA_ISWA = "dsa-iswa"
    MSA = "msa"  # MiniMax M3
    DSV4 = "dsv4"  # raw window, compressed caches and compressor states (DeepSeek V4)


class Window(StrEnum):
    """How a sliding window masks (`llama_swa_type`)."""

    NONE = "none"
    STANDARD = "standard"
    CHUNKED = "chunked"
    SYMMETRIC = "symmetric"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One block, as the engine counts them (nextn blocks and a router layer included).

    heads, kv_heads           query heads, and heads of the cache (MLA: 1)
    key_length, value_length  elements of one head's K and V row in the cache
    cached                    has K and V of its own in the attention cache of the main context
    swa                       sees a sliding window only
    recurrent                 keeps a state of fixed size for every sequence
    reuses                    the layer whose K and V it reads instead of its own, or None
    nextn                     a block for drafting the next tokens, not part of the trunk
    ff_length, experts_used   width of the feed-forward part; experts per token (0: dense)
    indexer                   has an indexer that picks keys (sparse attention), with a cache of its own
    compress                  DeepSeek V4: tokens per compressed row, 0 for none
    ple                       keeps a convolution history of n-gram embeddings (qwen4exp)
    """

    index: int
    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    cached: bool = True
    swa: bool = False
    recurrent: bool = False
    reuses: int | None = None
    nextn: bool = False
    ff_length: int = 0
    experts_used: int = 0
    indexer: bool = False
    compress: int = 0
    ple: bool = False

    @property
    def k_width(self) -> int:
        """Elements of one cache row of K (`n_embd_k_gqa`)."""
        return self.kv_heads * self.key_length

    @property
    def v_width(self) -> int:
        """Elements of one cache row of V (`n_embd_v_gqa`); with MLA nothing is stored for it."""
        return self.kv_heads * self.value_length


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Elements (f32) of one sequence's state in one recurrent layer: `n_embd_r`, `n_embd_s`, and the PLE history."""

    r: int = 0
    s: int = 0
    ple: int = 0
