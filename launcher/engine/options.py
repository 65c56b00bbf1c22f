"""What an engine can be told: our name for each option, how engines spell it, which patch brings it.

The plan fills a mapping from our names to values; `spell` turns it into arguments for one engine, by what that
engine's own help lists. A spelling that upstream renamed gets the older one as its second choice here.
Source: common/arg.cpp of the pin; the patches' options: contract.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from launcher.errors import ProfileError

Value = str | int | float | bool


class Form(Enum):
    """How an option takes its value."""

    VALUE = auto()
    """`--flag value`"""
    FLAG = auto()
    """`--flag` when true, nothing when false"""
    SWITCH = auto()
    """`--flag` or `--no-flag`: always one of both"""


@dataclass(frozen=True, slots=True)
class Option:
    """`spellings`: the one to prefer first. `negative`: what a SWITCH says for false. `patch`: None is upstream's."""

    spellings: tuple[str, ...]
    form: Form = Form.VALUE
    negative: str = ""
    patch: str | None = None


def _value(*spellings: str, patch: str | None = None) -> Option:
    return Option(spellings, patch=patch)


def _flag(*spellings: str, patch: str | None = None) -> Option:
    return Option(spellings, Form.FLAG, patch=patch)


def _switch(positive: str, negative: str) -> Option:
    return Option((positive,), Form.SWITCH, negative)


OPTIONS: Mapping[str, Option] = {
    # rpc stands before devices: the engine knows a device only after its worker was named (P9)
    "rpc": _value("--rpc"),
    "model": _value("--model"),
    "alias": _value("--alias"),
    "mmproj": _value("--mmproj"),
    "chat_template": _value("--chat-template"),
    "chat_template_file": _value("--chat-template-file"),
    "lora": _value("--lora"),
    "lora_scaled": _value("--lora-scaled"),
    "draft_model": _value("--spec-draft-model", "--model-draft"),
    "spec_type": _value("--spec-type"),
    # context
    "context": _value("--ctx-size"),
    "slots": _value("--parallel"),
    "unified": _switch("--kv-unified", "--no-kv-unified"),
    "unified_per_slot": _value("--kv-unified-per-slot"),
    "context_shift": _switch("--context-shift", "--no-context-shift"),
    "keep": _value("--keep"),
    "rope_scaling": _value("--rope-scaling"),
    "rope_scale": _value("--rope-scale"),
    "rope_freq_base": _value("--rope-freq-base"),
    "yarn_orig_ctx": _value("--yarn-orig-ctx"),
    # cache
    "cache_type_k": _value("--cache-type-k"),
    "cache_type_v": _value("--cache-type-v"),
    "swa_full": _flag("--swa-full"),
    "cache_ram_mib": _value("--cache-ram"),
    "cache_reuse": _value("--cache-reuse"),
    "cache_idle_slots": _switch("--cache-idle-slots", "--no-cache-idle-slots"),
    "checkpoints": _value("--ctx-checkpoints"),
    "similarity": _value("--slot-prompt-similarity"),
    "kv_offload": _switch("--kv-offload", "--no-kv-offload"),
    # compute
    "devices": _value("--device"),
    "gpu_layers": _value("--gpu-layers"),
    "split": _value("--split-mode"),
    "tensor_split": _value("--tensor-split"),
    "main_gpu": _value("--main-gpu"),
    "cpu_moe": _flag("--cpu-moe"),
    "n_cpu_moe": _value("--n-cpu-moe"),
    "flash_attention": _value("--flash-attn"),
    "batch": _value("--batch-size"),
    "ubatch": _value("--ubatch-size"),
    "threads": _value("--threads"),
    "load": _value("--load-mode"),
    "fit": _value("--fit"),
    # serving
    "host": _value("--host"),
    "port": _value("--port"),
    "api_key_file": _value("--api-key-file"),
    "metrics": _flag("--metrics"),
    "log_jsonl": _flag("--log-jsonl"),
    "log_verbosity": _value("--verbosity"),
    "ui": _switch("--ui", "--no-ui"),
    "slot_save_path": _value("--slot-save-path"),
    # our patches
    "session_affinity": _flag("--session-affinity", patch="0006"),
    "kv_telemetry": _flag("--kv-telemetry", patch="0008"),
    "rest_kv_eviction": _flag("--rest-kv-eviction", patch="0010"),
    "rest_kv_recent": _value("--rest-kv-recent", patch="0010"),
    "rest_kv_layer": _value("--rest-kv-layer", patch="0010"),
    "rest_kv_mode": _value("--rest-kv-mode", patch="0010"),
    "listen_fd": _value("--listen-fd", patch="0016"),
    "headinfer_fraction": _value("--headinfer-gpu-heads-frac", patch="0020"),
    "neo": _value("--neo-pipeline", patch="0030"),
    "pcie_autodetect": _flag("--pcie-autodetect", patch="0036"),
    "pcie_bandwidth": _value("--pcie-bw-gbps", patch="0036"),
    "cpu_attention": _value("--cpu-flash", patch="0040"),
    "residency": _value("--kv-residency-mode", patch="0070"),
    "device_budget": _value("--kv-device-budget", patch="0070"),
    "host_layers": _value("--kv-host-layers", patch="0070"),
    "prefix_pool": _flag("--poly-kv", patch="0072"),
    "prefix_pool_min": _value("--poly-kv-min", patch="0072"),
    "prefix_pool_pinned": _value("--poly-kv-pinned", patch="0072"),
    "tier_layers": _value("--kv-tier-layers", patch="0074"),
    "state_dir": _value("--state-dir", patch="0076"),
    "state_budget": _value("--state-budget", patch="0076"),
    "state_idle": _value("--state-idle", patch="0076"),
    "exact_first": _value("--kv-exact-first", patch="0077"),
    "exact_recent": _value("--kv-exact-recent", patch="0077"),
    "calibration": _value("--kv-calibration", patch="0078"),
    "topk_blocks": _value("--kv-topk-blocks", patch="0090"),
}


def spelling(name: str, known: Collection[str]) -> str | None:
    """The spelling of one of our options that an engine with the options `known` takes; None if it lacks it."""
    return next((flag for flag in OPTIONS[name].spellings if flag in known), None)


def spell(settings: Mapping[str, Value], known: Collection[str]) -> list[str]:
    """Arguments for an engine whose help lists the options `known`, in the table's order.

    Raises ProfileError (10) that names each option, and its patch, which the engine lacks.
    """
    argv: list[str] = []
    lacking: list[str] = []
    for name, option in OPTIONS.items():
        if name not in settings:
            continue
        value = settings[name]
        if option.form is Form.FLAG and not value:
            continue
        if (flag := spelling(name, known)) is None:
            lacking.append(option.spellings[0] + (f" (patch {option.patch})" if option.patch else ""))
        elif option.form is Form.VALUE:
            argv += [flag, _text(value)]
        elif value:
            argv.append(flag)
        else:
            argv.append(option.negative)
    if lacking:
        raise ProfileError(
            f"this engine has no {', '.join(lacking)}",
            rule="KV801",
            help="build the engine with these patches (engine.patches), or leave the keys that need them out",
        )
    return argv


def _text(value: Value) -> str:
    if isinstance(value, float):
        return format(value, ".10g")
    return str(value)


def owner_of(flag: str) -> str | None:
    """Our name for an option that kvlaunch itself sets, so that `engine.args` can refuse it; None if it's free."""
    for name, option in OPTIONS.items():
        if flag in option.spellings or (flag and flag == option.negative):
            return name
    return None
