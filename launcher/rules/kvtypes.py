"""KV3xx: how K and V are stored, and the attention that has to read them."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.rules.case import Case
from launcher.rules.facts import BLOCK, ROTATED, attention_layers, devices, flash, patched, quantized, tiers
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n[context]\nper_slot = 4096\n'
# GGML_CUDA_FA_QUANTS, ggml/CMakeLists.txt: the pairs that a usual CUDA build has kernels for
_CUDA_PAIRS = frozenset({("q4_0", "q4_0"), ("q8_0", "q8_0"), ("f16", "f16"), ("bf16", "bf16")})


@rule(
    "KV301",
    "quantized-v-needs-flash",
    Severity.ERROR,
    Act.REFUSE,
    why="V is stored transposed without flash attention, and blocks can't be: `quantized V cache requires flash_attn "
    "to be enabled` (src/llama-context.cpp:3849).",
    cost="The model is loaded for nothing; then the engine ends.",
    example=Example(_MODEL + '[kv]\ntier = "q8_0"\n[compute]\nflash_attention = "off"\n'),
    counter=Example(_MODEL + '[kv]\ntier = "q8_0:f16"\n[compute]\nflash_attention = "off"\n'),
)
def quantized_v_needs_flash(case: Case) -> Iterator[Found]:
    if flash(case) != "off":
        return
    for key, tier in tiers(case):
        if quantized(tier.v):
            grok = case.shape is not None and case.shape.arch == "grok"
            whose = "grok runs without flash attention" if grok else 'flash_attention is "off"'
            yield Found(
                key,
                f"V is stored as {tier.v}, which only flash attention can read, and {whose}",
                f'write tier = "{tier.k}:f16"' + ("" if grok else ', or flash_attention = "auto"'),
            )


@rule(
    "KV302",
    "head-not-a-block",
    Severity.ERROR,
    Act.CORRUPT,
    needs=Needs.MODEL,
    why="Quantized types store 32 elements a block. With flash attention the engine refuses heads that are no multiple "
    "of it (src/llama-context.cpp:3858, 3869); without, it starts and computes NaN (the assertion in ggml_row_size is "
    "compiled out).",
    cost="Nonsense instead of answers, in silence.",
    example=Example(_MODEL + '[kv]\ntier = "q8_0"\n', ("a model with heads of 80",)),
    counter=Example(_MODEL + '[kv]\ntier = "f16"\n', ("a model with heads of 80",)),
)
def head_not_a_block(case: Case) -> Iterator[Found]:
    layers = case.model.layers
    for key, tier in tiers(case):
        for name, type, sizes in (
            ("K", tier.k, {layer.key_length for layer in layers}),
            ("V", tier.v, {layer.value_length for layer in layers}),
        ):
            bad = sorted(size for size in sizes if size % BLOCK)
            if quantized(type) and bad:
                yield Found(
                    key,
                    f"{name} is stored as {type} in blocks of {BLOCK}, but this model's heads have {bad[0]} elements",
                    'write tier = "f16"',
                )
                break


@rule(
    "KV303",
    "mla-needs-equal-types",
    Severity.ERROR,
    Act.REFUSE,
    needs=Needs.MODEL,
    why="Only K is stored and V is read out of it: `model does not support different K and V cache types` "
    "(src/llama-context.cpp:3838).",
    cost="The engine ends after loading.",
    example=Example(_MODEL + '[kv]\ntier = "q8_0:f16"\n', ("an MLA model",)),
    counter=Example(_MODEL + '[kv]\ntier = "q8_0"\n', ("an MLA model",)),
)
def mla_needs_equal_types(case: Case) -> Iterator[Found]:
    if not (case.model.is_mla or case.model.arch == "deepseek4"):
        return
    for key, tier in tiers(case):
        if tier.k != tier.v:
            yield Found(
                key,
                f"{case.model.arch} stores K alone and reads V out of it: {tier.k} and {tier.v} can't both be",
                f'write tier = "{tier.k}"',
            )


@rule(
    "KV304",
    "flash-forced-off",
    Severity.ERROR,
    Act.CHANGE,
    needs=Needs.MODEL,
    why="`flash_attn is not compatible with Grok - forcing off` (src/llama-context.cpp:3820).",
    cost="More memory for attention, and slower.",
    help='write flash_attention = "auto"',
    example=Example(_MODEL + '[compute]\nflash_attention = "on"\n', ("grok",)),
    counter=Example(_MODEL + '[compute]\nflash_attention = "auto"\n', ("grok",)),
)
def flash_forced_off(case: Case) -> Iterator[Found]:
    if case.model.arch == "grok" and case.profile.compute.flash_attention == "on":
        yield Found("compute.flash_attention", "grok runs without flash attention, whatever is asked")


@rule(
    "KV305",
    "tensor-split-needs-flash",
    Severity.ERROR,
    Act.REFUSE,
    why="`SPLIT_MODE_TENSOR requires flash_attn to be enabled` (src/llama-context.cpp:3829).",
    cost="The engine ends after loading.",
    help='write flash_attention = "auto"',
    example=Example(_MODEL + '[compute]\nsplit = "tensor"\nflash_attention = "off"\n', ("two CUDA GPUs",)),
    counter=Example(_MODEL + '[compute]\nsplit = "tensor"\n', ("two CUDA GPUs",)),
)
def tensor_split_needs_flash(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    if compute.split == "tensor" and compute.flash_attention == "off":
        yield Found("compute.flash_attention", 'split = "tensor" computes with flash attention only')


@rule(
    "KV306",
    "shift-kills-quantized-k",
    Severity.ERROR,
    Act.CRASH,
    needs=Needs.MODEL,
    why="Moving positions rotates K in place. Without patch 0005 the engine multiplies a quantized K by a Hadamard "
    "matrix that it has for heads of a multiple of 64 only: SIGSEGV at the first shift; with a partial rotation it "
    "aborts (src/llama-kv-cache.cpp, build_rope_shift).",
    cost="The server dies under load, when the first conversation is full.",
    help='take patch 0005 in (engine.patches = "default"), or write tier = "f16"',
    example=Example(
        _MODEL + 'shift = true\n[kv]\ntier = "q8_0"\n[engine]\npatches = "none"\n',
        ("a model with heads of 96", "an engine without our patches"),
    ),
    counter=Example(_MODEL + 'shift = true\n[kv]\ntier = "q8_0"\n', ("a model with heads of 96",)),
)
def shift_kills_quantized_k(case: Case) -> Iterator[Found]:
    moving = [
        key
        for key, on in (("context.shift", case.profile.context.shift), ("kv.reuse.chunk", case.profile.kv.reuse.chunk))
        if on
    ]
    if not moving or patched(case, "0005"):
        return
    layers = attention_layers(case.model)
    heads = {layer.key_length for layer in layers}
    odd = sorted(head for head in heads if head % ROTATED)
    partial = 0 < case.model.rope.dimensions < min(heads, default=0)
    unrotated = case.profile.env.get("LLAMA_ATTN_ROT_DISABLE", "0") not in ("", "0")
    for key, tier in tiers(case):
        if not quantized(tier.k):
            continue
        if odd:
            why = f"this model's heads have {odd[0]} elements, which is no multiple of {ROTATED}"
        elif len(heads) > 1:
            why = "this model's heads differ from layer to layer"
        elif partial:
            why = f"this model rotates {case.model.rope.dimensions} of {min(heads)} dimensions"
        elif unrotated:
            why = "LLAMA_ATTN_ROT_DISABLE is set"
        else:
            return
        yield Found(moving[0], f"the first move of positions kills this engine: {key} stores K as {tier.k}, and {why}")
        return


@rule(
    "KV307",
    "type-unknown-to-engine",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine takes the types that its own help lists and ends with `Unsupported cache type` otherwise "
    "(common/arg.cpp:322).",
    cost="It does not start.",
    example=Example(_MODEL + '[kv]\ntier = "turbo4:turbo3"\n', ("an engine without our patches",)),
    counter=Example(_MODEL + '[kv]\ntier = "q4_0"\n', ("an engine without our patches",)),
)
def type_unknown_to_engine(case: Case) -> Iterator[Found]:
    known = case.capability.cache_types
    if not known:
        return
    for key, tier in tiers(case):
        for type in dict.fromkeys((tier.k, tier.v)):
            if type not in known:
                patch = " (turbo types come with the patches 0073 and 0074)" if type.startswith("turbo") else ""
                yield Found(key, f"this engine cannot store {type}{patch}", f"it can store {', '.join(known)}")


@rule(
    "KV308",
    "no-gpu-kernel",
    Severity.WARNING,
    Act.CHANGE,
    why="A usual CUDA build has attention kernels for q4_0:q4_0, q8_0:q8_0, f16:f16 and bf16:bf16 alone "
    "(GGML_CUDA_FA_QUANTS); other pairs are turned to f16 for each step, or computed on the CPU.",
    cost="Several times slower, and extra memory.",
    help='write tier = "q8_0" or "q4_0"',
    example=Example(_MODEL + '[kv]\ntier = "q8_0:q4_0"\n[compute]\nbackend = "cuda"\n', ("a CUDA GPU",)),
    counter=Example(_MODEL + '[kv]\ntier = "q8_0"\n[compute]\nbackend = "cuda"\n', ("a CUDA GPU",)),
)
def no_gpu_kernel(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    if compute.gpu_layers == 0 or not any(device.id.startswith("CUDA") for device in devices(case)):
        return
    for key, tier in tiers(case):
        pair = (tier.k, tier.v)
        if pair not in _CUDA_PAIRS and not any(type.startswith("turbo") for type in pair):
            yield Found(key, f"{tier} has no attention kernel in a usual CUDA build")


@rule(
    "KV309",
    "padded-v",
    Severity.WARNING,
    Act.CHANGE,
    needs=Needs.MODEL,
    why="Without flash attention V is stored transposed, and where layers differ each is padded to the widest "
    "(src/llama-kv-cache.cpp:159).",
    cost="Memory.",
    help='write flash_attention = "auto"',
    example=Example(_MODEL + '[compute]\nflash_attention = "off"\n', ("a model whose layers differ",)),
    counter=Example(_MODEL, ("a model whose layers differ",)),
)
def padded_v(case: Case) -> Iterator[Found]:
    if case.profile.compute.flash_attention != "off" or case.model.is_mla:
        return
    widths = {layer.v_width for layer in attention_layers(case.model)}
    if len(widths) > 1:
        yield Found(
            "compute.flash_attention",
            f"V rows of {min(widths)} elements are padded to {max(widths)} without flash attention",
        )


@rule(
    "KV310",
    "layer-not-there",
    Severity.ERROR,
    Act.OURS,
    needs=Needs.MODEL,
    why="A layer that the model does not have is a slip, or meant for another model.",
    cost="The tier or the place that was meant for it goes nowhere.",
    help="layers count from 0; `kvlaunch plan` shows how many there are",
    example=Example(_MODEL + '[kv]\ntiers = [{ layers = "0,99", tier = "q8_0" }]\n'),
    counter=Example(_MODEL + '[kv]\ntiers = [{ layers = "0,29", tier = "q8_0" }]\n'),
)
def layer_not_there(case: Case) -> Iterator[Found]:
    count = len(case.model.layers)
    lists = [(f"kv.tiers.{i}.layers", entry.layers) for i, entry in enumerate(case.profile.kv.tiers)]
    for key, layers in [*lists, ("kv.host_layers", case.profile.kv.host_layers)]:
        beyond = [last for _, last in layers.ranges if last >= count]
        if beyond:
            yield Found(key, f"layer {beyond[0]} is named, but the model's layers are 0 to {count - 1}")


@rule(
    "KV311",
    "exact-beside-exact",
    Severity.WARNING,
    Act.IGNORE,
    why="Exact tokens are kept beside a quantized tier (patch 0077); f16 and bf16 have nothing to be exact about.",
    cost="The key does nothing.",
    help="leave exact away, or choose a quantized tier",
    example=Example(_MODEL + "[kv]\nexact = { first = 4, recent = 64 }\n"),
    counter=Example(_MODEL + '[kv]\ntier = "q4_0"\nexact = { first = 4, recent = 64 }\n'),
)
def exact_beside_exact(case: Case) -> Iterator[Found]:
    exact = case.profile.kv.exact
    if (exact.first or exact.recent) and not any(tier.quantized for _, tier in tiers(case)):
        key = "kv.exact.first" if exact.first else "kv.exact.recent"
        yield Found(key, f"exact tokens beside a tier of {case.profile.kv.tier} change nothing")


@rule(
    "KV312",
    "calibration-without-quantized-k",
    Severity.WARNING,
    Act.IGNORE,
    why="The sidecar holds K's mean and basis for quantizing it (patch 0078); an unquantized K is stored as it is.",
    cost="The key does nothing.",
    help="leave calibration away, or choose a quantized K",
    example=Example(_MODEL + '[kv]\ncalibration = "k.bin"\n'),
    counter=Example(_MODEL + '[kv]\ntier = "q4_0"\ncalibration = "k.bin"\n'),
)
def calibration_without_quantized_k(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    if kv.calibration is not None and not any(quantized(tier.k) for _, tier in tiers(case)):
        yield Found("kv.calibration", f"K is stored as {kv.tier.k}, which no calibration changes")


RULES = rules_of(globals())
