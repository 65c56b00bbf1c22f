"""The plan as settings for an engine: every choice explicit, so that no default of the engine decides anything.

Why explicit: the defaults change between releases and depend on each other (an explicit slot count turns the unified
cache off, the port is about to change, `--fit` moves layers in silence): engine-facts F2, F18, F19.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.engine.options import Value
from launcher.plan.context import ContextSplit
from launcher.plan.techniques import Techniques
from launcher.profile.schema import Profile
from launcher.units import MIB

_SPECULATION = {"draft": "draft-simple", "mtp": "draft-mtp", "ngram": "ngram-simple"}


def settings(
    profile: Profile,
    split: ContextSplit,
    *,
    model: Path,
    techniques: Techniques,
    gpu_layers: int | str | None,
    cpu_moe: int | str,
    threads: int,
) -> dict[str, Value]:
    """What the engine is told, by our names (launcher/engine/options.py).

    gpu_layers  "all", a number, or None where no device holds anything
    cpu_moe     "off", "all" or the number of layers whose experts stay on the host
    threads     physical cores to use
    """
    told: dict[str, Value] = {}
    told |= _model(profile, model)
    told |= _context(profile, split)
    told |= _cache(profile)
    told |= _compute(profile, gpu_layers, cpu_moe, threads)
    told |= _serve(profile)
    told |= techniques.settings
    return told


def _model(profile: Profile, model: Path) -> dict[str, Value]:
    told: dict[str, Value] = {"model": str(model), "alias": profile.model.alias or profile.name}
    if profile.model.mmproj is not None:
        told["mmproj"] = str(profile.model.mmproj)
    template = profile.model.chat_template
    if isinstance(template, Path):
        told["chat_template_file"] = str(template)
    elif template:
        told["chat_template"] = template
    if profile.model.lora:
        told["lora_scaled"] = ",".join(f"{lora.path}:{lora.scale:g}" for lora in profile.model.lora)
    draft = profile.model.draft
    if draft is not None:
        # a draft without a type is loaded and then dropped without a word (X1): the type is always given
        told["spec_type"] = _SPECULATION[draft.type]
        if draft.path is not None:
            told["draft_model"] = str(draft.path)
    return told


def _context(profile: Profile, split: ContextSplit) -> dict[str, Value]:
    told: dict[str, Value] = {
        "context": split.emitted,
        "slots": split.slots,
        "unified": split.unified,
        "context_shift": profile.context.shift,
    }
    if split.cap is not None:
        told["unified_per_slot"] = split.cap
    if profile.context.keep:
        told["keep"] = profile.context.keep
    rope = profile.context.rope
    if rope is not None:
        if rope.scaling is not None:
            told["rope_scaling"] = rope.scaling
        if rope.factor is not None:
            told["rope_scale"] = rope.factor
    return told


def _cache(profile: Profile) -> dict[str, Value]:
    kv = profile.kv
    return {
        "cache_type_k": kv.tier.k,
        "cache_type_v": kv.tier.v,
        "swa_full": kv.swa_full,
        "cache_ram_mib": -(-kv.reuse.ram // MIB),
        "cache_reuse": kv.reuse.chunk,
        "checkpoints": kv.reuse.checkpoints,
        "similarity": kv.reuse.similarity,
    }


def _compute(profile: Profile, gpu_layers: int | str | None, cpu_moe: int | str, threads: int) -> dict[str, Value]:
    compute = profile.compute
    told: dict[str, Value] = {
        "gpu_layers": 0 if gpu_layers is None else gpu_layers,
        "flash_attention": compute.flash_attention,
        "batch": compute.batch,
        "ubatch": compute.ubatch,
        "threads": threads,
        "load": compute.load,
        "fit": "off",  # we fit ourselves: it is blind to host memory, mmproj and prompt cache (F18)
    }
    if compute.rpc:
        told["rpc"] = ",".join(compute.rpc)
    if compute.devices:
        told["devices"] = ",".join(compute.devices)
    if compute.split != "auto":
        told["split"] = compute.split
    if compute.tensor_split:
        told["tensor_split"] = ",".join(f"{part:g}" for part in compute.tensor_split)
    if profile.is_set("compute.main_gpu"):
        told["main_gpu"] = compute.main_gpu
    if cpu_moe == "all":
        told["cpu_moe"] = True
    elif isinstance(cpu_moe, int) and cpu_moe:
        told["n_cpu_moe"] = cpu_moe
    return told


def _serve(profile: Profile) -> Mapping[str, Value]:
    serve = profile.serve
    told: dict[str, Value] = {"host": ",".join(serve.host), "port": serve.port, "metrics": serve.metrics}
    if serve.api_key_file is not None:
        told["api_key_file"] = str(serve.api_key_file)
    return told
