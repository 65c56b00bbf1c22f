"""What the engine makes of a case: small questions that several rules ask, answered as its source does."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from ipaddress import ip_address

from launcher.machine.types import Device
from launcher.model.layers import LayerShape, Memory
from launcher.model.shape import ModelShape
from launcher.plan.devices import can_use
from launcher.profile.tier import Tier
from launcher.rules.case import Case

BLOCK = 32  # elements of one block of every quantized cache type: ggml/src/ggml-common.h QK8_0, QK4_0, QK4_NL …
ROTATED = 64  # heads that are a multiple of this are Hadamard-rotated before they are quantized
_PLAIN = frozenset({"f32", "f16", "bf16"})

# src/llama-model.cpp, llama_model_rope_type: positions with several components
_MROPE = frozenset(
    {
        "dflash", "qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "clef", "qwen4exp",
        "qwen3tts",
    }
)  # fmt: skip
_MROPE_BY_SECTIONS = frozenset({"bailingmoe3", "glm4", "glm4moe", "hunyuan_vl"})

# src/llama-arch.cpp:1196, llm_arch_supports_sm_tensor
NO_TENSOR_SPLIT = frozenset(
    {
        "grok", "mpt", "plamo2", "minicpm3", "gemma3n", "mamba", "mamba2", "jamba", "falcon-h1", "olmo2", "olmoe",
        "deepseek2", "deepseek32", "hy_v4", "dots3note", "glm-dsa", "bitnet", "t5", "nemotron_h", "nemotron_h_moe",
        "granitehybrid", "minimax-01", "minimax-m2", "minimax-m3", "mistral4", "kimi-linear", "bailingmoe3",
        "kimi-k3", "glm5-next", "qwen3tts",
    }
)  # fmt: skip


def quantized(type: str) -> bool:
    """Whether a cache type stores blocks with a scale."""
    return type not in _PLAIN


def tiers(case: Case) -> Iterator[tuple[str, Tier]]:
    """Every tier that the profile asks for, with its key."""
    yield "kv.tier", case.profile.kv.tier
    for index, entry in enumerate(case.profile.kv.tiers):
        yield f"kv.tiers.{index}.tier", entry.tier


def flash(case: Case) -> str:
    """What becomes of flash attention: on, off; auto where a device has the last word (src/llama-context.cpp:3820)."""
    asked = case.profile.compute.flash_attention
    if case.shape is not None and case.shape.arch == "grok":
        return "off"
    if asked == "auto" and (case.profile.compute.split == "tensor" or any(quantized(t.v) for _, t in tiers(case))):
        return "on"
    return asked


def patched(case: Case, patch: str) -> bool:
    """Whether the engine is known to carry one of our patches; a given binary is not."""
    return patch in (case.capability.patches or ())


def devices(case: Case) -> tuple[Device, ...]:
    """The devices that an engine of this profile could compute on, the host aside."""
    return tuple(device for device in case.machine.devices if can_use(device, case.profile.compute.backend))


def has_device(case: Case) -> bool:
    """Whether there is anything to offload to: a GPU, or a worker elsewhere."""
    return bool(devices(case) or case.profile.compute.rpc)


def windowed(shape: ModelShape) -> bool:
    """Whether some layers keep a window only, in a cache of their own."""
    return shape.window > 0 and any(layer.swa for layer in shape.layers)


def recurs(shape: ModelShape) -> bool:
    """Whether some layers keep a state instead of a cache."""
    return shape.memory in (Memory.RECURRENT, Memory.HYBRID, Memory.HYBRID_ISWA, Memory.HYBRID_IDX)


def attention_layers(shape: ModelShape) -> tuple[LayerShape, ...]:
    """The layers with K and V: their head sizes are what block sizes must divide."""
    return tuple(layer for layer in shape.layers if layer.cached and not layer.recurrent)


def uses_mrope(shape: ModelShape) -> bool:
    """Whether a position has several components (`n_pos_per_embd() > 1`)."""
    if shape.arch in _MROPE:
        return True
    if shape.arch not in _MROPE_BY_SECTIONS:
        return False
    sections = shape.key("rope.dimension_sections")
    return isinstance(sections, list | tuple | array) and len(sections) > 1 and bool(sections[0]) and bool(sections[1])


def shift_stops(case: Case) -> str:
    """Why this context can't move positions (`get_can_shift`), in words; empty where it can."""
    shape = case.model
    if shape.memory is Memory.NONE:
        return f"{shape.arch} has no cache"
    if shape.memory is Memory.DSV4:
        return "DeepSeek V4's compressed rows hold positions that can't be moved"
    if shape.memory is Memory.RECURRENT:
        return ""
    if shape.arch == "step35":
        return "step35 rotates every layer by other dimensions"
    if uses_mrope(shape):
        return f"{shape.arch} has positions of several components (M-RoPE)"
    if shape.memory in (Memory.ISWA, Memory.HYBRID_ISWA, Memory.DSA_ISWA) and windowed(shape):
        cells = {part.kind: part.cells for part in case.planned.kv if part.cache in ("main", "swa")}
        full, window = cells.get("full"), cells.get("swa")
        if full is not None and window is not None and full != window:
            return f"the windowed layers keep {window} cells and the others {full}: only equal caches can be shifted"
    return ""


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address: a loopback, a unix socket."""
    if host.endswith(".sock") or host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def everywhere(host: str) -> bool:
    """Whether an address means all interfaces."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == "*"
