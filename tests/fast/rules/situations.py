"""What the words in a rule's example stand for: models, machines and engines as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.diagnostic import Diagnostic
from launcher.engine.capability import Capability, HelpOption, read_record
from launcher.engine.options import OPTIONS, Form
from launcher.machine.types import Cpu, Device, DeviceKind, LinkState, Machine, Memory, PcieLink
from launcher.model.layers import LayerShape, Recurrent, Window
from launcher.model.layers import Memory as Cache
from launcher.model.shape import ModelShape, Rope, TensorInfo
from launcher.plan.plan import Plan, make_plan
from launcher.plan.verdict import Fit
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile
from launcher.profile.tier import CACHE_TYPES
from launcher.rules import check
from launcher.rules.case import Files

GIB = 1 << 30


def layer(index: int, head: int = 64, value: int | None = None, **more: Any) -> LayerShape:
    return LayerShape(index, heads=8, kv_heads=4, key_length=head, value_length=value or head, **more)


def model(arch: str = "llama", **more: Any) -> ModelShape:
    """Thirty layers, heads of 64, trained for 8192 tokens, 98 MB of weights."""
    tensor = TensorInfo("token_embd.weight", (64, 64), 2, 0, 98_000_000)
    base: dict[str, Any] = {
        "path": Path("model.gguf"), "files": (Path("model.gguf"),), "size": 98_000_000, "arch": arch, "kind": "model",
        "name": "m", "memory": Cache.KV, "block_count": 30, "nextn_layers": 0, "train_context": 8192,
        "embedding_length": 512, "vocab_size": 49152, "layers": tuple(layer(i) for i in range(30)),
        "tensors": (tensor,), "window": 0, "window_kind": Window.NONE, "is_mla": False, "mla_key_length": 0,
        "mla_value_length": 0, "indexer_length": 0, "recurrent": Recurrent(), "expert_count": 0, "expert_used": 0,
        "expert_shared": 0, "leading_dense": 0, "causal": True, "alibi": False,
        "rope": Rope(64, 10000.0, "linear", 1.0, 8192), "chat_template": True, "tokenizer": "gpt2", "file_type": 3,
        "metadata": {},
    }  # fmt: skip
    return ModelShape(**{**base, **more})


def heads(size: int) -> ModelShape:
    return model(layers=tuple(layer(i, size) for i in range(30)), rope=Rope(size, 1e4, "linear", 1.0, 8192))


WINDOWS = model(
    "gemma3", memory=Cache.ISWA, window=512, window_kind=Window.STANDARD,
    layers=tuple(layer(i, swa=i % 6 < 5) for i in range(30)),
)  # fmt: skip

MODELS: dict[str, ModelShape] = {
    "a model with sliding windows": WINDOWS,
    "a model with heads of 80": heads(80),
    "a model with heads of 96": heads(96),
    "an MLA model": model("deepseek2", is_mla=True, layers=tuple(layer(i, 576, 512) for i in range(30))),
    "grok": model("grok"),
    "a model whose layers differ": model(layers=(layer(0, 64), layer(1, 128))),
    "a model with an MTP head": model(nextn_layers=1),
    "a recurrent model": model(
        "mamba", memory=Cache.RECURRENT, recurrent=Recurrent(64, 64),
        layers=tuple(layer(i, recurrent=True, cached=False) for i in range(30)),
    ),
    "a model with experts": model(expert_count=8),
    "a diffusion model": model("llada", memory=Cache.NONE, layers=tuple(layer(i, cached=False) for i in range(30))),
    "a projector in the model's place": model("clip", kind="mmproj"),
}  # fmt: skip


def gpu(index: int = 0, **more: Any) -> Device:
    base = Device(f"CUDA{index}", "GPU", DeviceKind.DISCRETE, 24 * GIB, 23 * GIB, vendor="nvidia")
    return replace(base, **more)


BOX = Machine(memory=Memory(total=16 * GIB, available=12 * GIB, lockable=16 * GIB), cpu=Cpu("cpu", cores=8, threads=16))
NARROW = PcieLink(gen=4, gen_max=4, width=4, width_max=16, state=LinkState.NARROW)
MACHINES: dict[str, Machine] = {
    "a CUDA GPU": BOX.with_devices((gpu(),)),
    "two CUDA GPUs": BOX.with_devices((gpu(0), gpu(1))),
    "a GPU on a narrow link": BOX.with_devices((gpu(pcie=NARROW),)),
    "a box with 2 GiB": replace(BOX, memory=Memory(total=2 * GIB, available=2 * GIB)),
    "a box that locks 8 MiB": replace(BOX, memory=replace(BOX.memory, lockable=8 << 20)),
}

FILES: dict[str, Files] = {
    "a draft with another vocabulary": Files(shapes={"model.draft.path": model(vocab_size=32000)}),
    "a draft with the same vocabulary": Files(shapes={"model.draft.path": model()}),
    "a model in the projector's place": Files(shapes={"model.mmproj": model()}),
    "a projector": Files(shapes={"model.mmproj": model("clip", kind="mmproj")}),
    "an adapter for another architecture": Files(shapes={"model.lora.0.path": model("gemma3", kind="adapter")}),
    "an adapter for this model": Files(shapes={"model.lora.0.path": model(kind="adapter")}),
    "a key file that others may read": Files(loose=frozenset({"serve.api_key_file"})),
    "a key file without a key": Files(empty=frozenset({"serve.api_key_file"})),
    "an address of another machine": Files(hosts={0: "is no address of this machine"}),
    "a config file of the engine's own": Files(config=Path("/etc/llama.cpp/config.ini")),
    "a projector that is missing": Files(missing={"model.mmproj": "p.gguf: no such file"}),
}
OTHER = {"no model yet", "an engine without our patches", "a plan that is tight"}


def engine(patched: bool = True) -> Capability:
    """The record of the pin, with all options of our patches, or none."""
    ours = {flag for option in OPTIONS.values() if option.patch for flag in option.spellings}
    entries = [entry for entry in read_record() if not ours.intersection(entry.spellings)]
    upstream = tuple(t for t in CACHE_TYPES if not t.startswith("turbo"))
    known = CACHE_TYPES if patched else upstream
    entries = [replace(e, choices=known) if "--cache-type-k" in e.spellings else e for e in entries]
    if patched:
        entries += [
            HelpOption(option.spellings, "V" if option.form is Form.VALUE else "")
            for option in OPTIONS.values()
            if option.patch
        ]
        return Capability(tuple(entries), ("0005", "0006", "0010", "0072"), "all of it")
    return Capability(tuple(entries), (), "upstream")


PATCHED, UPSTREAM = engine(), engine(patched=False)


@dataclass(frozen=True)
class Situation:
    """A case, put together from words."""

    machine: Machine = BOX
    shape: ModelShape | None = field(default_factory=model)
    capability: Capability = PATCHED
    files: Files = field(default_factory=Files)
    tight: bool = False


def situation(given: Sequence[str]) -> Situation:
    """Raises KeyError for a word that stands for nothing."""
    result = Situation()
    for words in given:
        if words in MODELS:
            result = replace(result, shape=MODELS[words])
        elif words in MACHINES:
            result = replace(result, machine=MACHINES[words])
        elif words in FILES:
            result = replace(result, files=FILES[words])
        elif words == "no model yet":
            result = replace(result, shape=None)
        elif words == "an engine without our patches":
            result = replace(result, capability=UPSTREAM)
        elif words == "a plan that is tight":
            result = replace(result, tight=True)
        else:
            raise KeyError(words)
    return result


def plan_of(profile: Profile, case: Situation) -> Plan | None:
    if case.shape is None:
        return None
    plan = make_plan(
        profile, case.shape, case.machine, case.capability.options, model=case.shape.path, state_dir=Path("/state")
    )
    if not case.tight:
        return plan
    return replace(plan, devices=tuple(replace(device, fit=Fit.TIGHT) for device in plan.devices))


def findings(folder: Path, text: str, given: Sequence[str] = ()) -> tuple[tuple[Diagnostic, ...], tuple[str, ...]]:
    """What `check` says of a profile in a situation, and what it skipped."""
    file = folder / "p.toml"
    file.write_text(text)
    case = situation(given)
    profile = load_profile(file, (), {"HOME": str(folder)})
    return check(profile, case.shape, case.machine, case.capability, plan_of(profile, case), case.files)
