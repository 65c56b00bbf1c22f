"""Bytes of the cache. The golden numbers were read from the engine's own "KV buffer size" lines."""

from __future__ import annotations

import pytest

from launcher.plan.context import allocate
from launcher.plan.kv import HOST, KvSettings, bytes_per_token, heads_kept, kv_bytes, kv_parts
from launcher.profile.tier import Tier
from launcher.units import MIB


def _mib(shape, context, **settings) -> float:
    return kv_bytes(kv_parts(shape, context, KvSettings(**settings))) / MIB


@pytest.mark.parametrize(("tier", "expected"), [("f16", 180.0), ("q8_0", 95.625), ("q4_0", 50.625), ("f32", 360.0)])
def test_smollm2_at_8192(smollm2, tier, expected):
    assert _mib(smollm2, allocate(8192, 1, False), tier=Tier(tier, tier)) == expected


@pytest.mark.parametrize(
    ("slots", "unified", "full", "expected"),
    [(1, False, False, 111.0), (4, True, False, 133.5), (4, False, False, 156.0), (1, False, True, 576.0)],
)
def test_gemma3_at_32768(gemma3, slots, unified, full, expected):
    assert _mib(gemma3, allocate(32768, slots, unified), swa_full=full) == expected


def test_lfm2(shape):
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    lfm2 = shape(
        "lfm2",
        {"block_count": 16, "context_length": 128000, "embedding_length": 2048, "attention.head_count": 32,
         "attention.head_count_kv": heads, "shortconv.l_cache": 3},
    )  # fmt: skip
    parts = kv_parts(lfm2, allocate(32768, 1, False), KvSettings())
    assert kv_bytes([part for part in parts if part.kind == "full"]) / MIB == 384.0
    state = next(part for part in parts if part.kind == "recurrent")
    assert (state.layers, state.bytes) == (10, 10 * 2 * 2048 * 4)


def test_llama_70b(shape):
    llama = shape(
        "llama",
        {"block_count": 80, "context_length": 131072, "embedding_length": 8192, "attention.head_count": 64,
         "attention.head_count_kv": 8},
    )  # fmt: skip
    assert _mib(llama, allocate(131072, 1, False), tier=Tier("q8_0", "q8_0")) == 21760.0


def test_deepseek_v3_stores_k_only(shape):
    deepseek = shape(
        "deepseek2",
        {"block_count": 61, "context_length": 163840, "embedding_length": 7168, "attention.head_count": 128,
         "attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512,
         "attention.kv_lora_rank": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128},
    )  # fmt: skip
    (part,) = kv_parts(deepseek, allocate(32768, 1, False), KvSettings())
    assert (part.k_bytes / MIB, part.v_bytes) == (2196.0, 0)


def test_split_slots_round_up(smollm2):
    context = allocate(163840, 6, False)
    (part,) = kv_parts(smollm2, context, KvSettings())
    assert (context.total, context.per_slot, part.cells) == (164352, 27392, 164352)


def test_without_flash_attention_v_is_padded_to_the_widest(shape):
    mixed = shape(
        "openelm",
        {"block_count": 3, "context_length": 2048, "embedding_length": 512, "attention.head_count": [8, 8, 8],
         "attention.head_count_kv": [2, 4, 8], "attention.key_length": 64, "attention.value_length": 64},
    )  # fmt: skip
    (flash,) = kv_parts(mixed, allocate(1024, 1, False), KvSettings())
    (plain,) = kv_parts(mixed, allocate(1024, 1, False), KvSettings(flash=False))
    assert flash.k_bytes == plain.k_bytes == flash.v_bytes == (2 + 4 + 8) * 64 * 2 * 1024
    assert plain.v_bytes == 3 * 8 * 64 * 2 * 1024


def test_a_tier_of_its_own_for_some_layers(smollm2):
    (plain,) = kv_parts(smollm2, allocate(8192, 1, False), KvSettings(tier=Tier("q4_0", "q4_0")))
    tiers = {0: Tier("q8_0", "q4_0"), 1: Tier("q8_0", "q4_0")}
    (mixed,) = kv_parts(smollm2, allocate(8192, 1, False), KvSettings(tier=Tier("q4_0", "q4_0"), tiers=tiers))
    assert mixed.v_bytes == plain.v_bytes
    assert mixed.k_bytes - plain.k_bytes == 2 * 8192 * 192 // 32 * (34 - 18)


def test_layers_lie_with_their_devices(gemma3):
    devices = ["CUDA0"] * 10 + [HOST] * 8
    parts = kv_parts(gemma3, allocate(32768, 1, False), KvSettings(), devices)
    assert {part.device for part in parts} == {"CUDA0", HOST}
    assert sum(part.layers for part in parts) == 18
    assert kv_bytes(parts) == kv_bytes(kv_parts(gemma3, allocate(32768, 1, False), KvSettings()))
    assert kv_bytes(parts, HOST) == sum(part.bytes for part in parts if part.device == HOST)


@pytest.mark.parametrize(("fraction", "kept"), [(0.0, 1), (0.34, 1), (0.5, 2), (0.66, 2), (1.0, 2)])
def test_heads_split(smollm2, fraction, kept):
    assert heads_kept(fraction, 3) == kept
    settings = KvSettings(heads_on_device=fraction)
    parts = kv_parts(smollm2, allocate(8192, 1, False), settings, ["RPC0"] * 30)
    near = next(part for part in parts if part.device == "RPC0")
    assert near.bytes / MIB == 60.0 * kept
    assert kv_bytes(parts) / MIB == 180.0


def test_one_head_cannot_be_split(gemma3):
    parts = kv_parts(gemma3, allocate(4096, 1, False), KvSettings(heads_on_device=0.5), ["CUDA0"] * 18)
    assert {part.device for part in parts} == {"CUDA0"}


def test_a_window_of_cells_on_the_device(smollm2):
    parts = kv_parts(smollm2, allocate(8192, 1, False), KvSettings(device_cells=2048), ["CUDA0"] * 30)
    assert {part.device: (part.cells, part.bytes / MIB) for part in parts} == {
        "CUDA0": (2048, 45.0),
        HOST: (6144, 135.0),
    }


def test_bytes_per_token_is_what_one_more_cell_costs(smollm2, gemma3):
    assert bytes_per_token(smollm2, KvSettings()) == 180 * MIB / 8192
    assert bytes_per_token(gemma3, KvSettings()) == 3 * 256 * 2 * 2  # three full layers; sliding ones cost nothing more
    for shape in (smollm2, gemma3):
        for tier in (Tier("f16", "f16"), Tier("q8_0", "q4_0")):
            settings = KvSettings(tier=tier)
            small = kv_bytes(kv_parts(shape, allocate(8192, 1, False), settings))
            large = kv_bytes(kv_parts(shape, allocate(16384, 1, False), settings))
            assert (large - small) / 8192 == bytes_per_token(shape, settings)


def test_states_are_for_each_slot_and_each_step_back(shape):
    keys = {"block_count": 4, "context_length": 4096, "embedding_length": 64, "attention.head_count": 0,
            "ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 1}  # fmt: skip
    mamba = shape("mamba2", keys)
    one = kv_bytes(kv_parts(mamba, allocate(4096, 1, False), KvSettings()))
    assert one == 4 * (3 * 160 + 16 * 128) * 4
    assert kv_bytes(kv_parts(mamba, allocate(4096, 4, False), KvSettings(rollback=2))) == 12 * one


def test_a_small_ubatch_shrinks_the_window(gemma3):
    context = allocate(32768, 1, False)
    for ubatch, cells in ((512, 1024), (64, 768), (2048, 2560), (16, 768)):
        parts = kv_parts(gemma3, context, KvSettings(ubatch=ubatch, batch=4096))
        assert next(part for part in parts if part.kind == "swa").cells == cells


def test_the_batch_cannot_exceed_the_context(gemma3):
    assert KvSettings(batch=2048, ubatch=512).ubatch_of(allocate(100, 1, False)) == 100
    assert KvSettings(batch=256, ubatch=512).ubatch_of(allocate(4096, 1, False)) == 256


def test_exact_tokens_have_a_cache_beside(smollm2):
    context = allocate(8192, 2, True)
    parts = kv_parts(smollm2, context, KvSettings(exact=(4, 32), tier=Tier("q4_0", "q4_0")))
    exact = next(part for part in parts if part.cache == "exact")
    assert exact.layers == 30
    assert exact.cells % 256 == 0 and exact.cells >= 2 * (4 + 32) + 512
