"""KV4xx: where the cache lives, and the techniques that work on it together or not."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.model.layers import Memory
from launcher.rules.case import Case
from launcher.rules.facts import attention_layers, flash, has_device, recurs, shift_stops, windowed
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n[context]\nper_slot = 4096\n'
_GPU = ("a CUDA GPU",)
_WINDOWS = ("a model with sliding windows",)


@rule(
    "KV401",
    "keydiff-without-shift",
    Severity.ERROR,
    Act.IGNORE,
    why="Retention-aware eviction chooses what a shift discards (patch 0010); without a shift nothing is ever "
    "discarded and a full slot ends its answer.",
    cost="The technique never runs.",
    help="write shift = true under [context]",
    example=Example(_MODEL + '[kv]\neviction = { policy = "keydiff" }\n'),
    counter=Example(_MODEL + 'shift = true\n[kv]\neviction = { policy = "keydiff" }\n'),
)
def keydiff_without_shift(case: Case) -> Iterator[Found]:
    if case.profile.kv.eviction.policy == "keydiff" and not case.profile.context.shift:
        yield Found("kv.eviction.policy", "keydiff chooses what a shift discards, and shift is false")


@rule(
    "KV402",
    "eviction-settings-idle",
    Severity.WARNING,
    Act.IGNORE,
    why="recent, layer and mode are read by the keydiff policy alone (patch 0010).",
    cost="The keys do nothing.",
    help='write policy = "keydiff", or leave them away',
    example=Example(_MODEL + "shift = true\n[kv]\neviction = { recent = 512 }\n"),
    counter=Example(_MODEL + 'shift = true\n[kv]\neviction = { policy = "keydiff", recent = 512 }\n'),
)
def eviction_settings_idle(case: Case) -> Iterator[Found]:
    if case.profile.kv.eviction.policy == "keydiff":
        return
    for name in ("recent", "layer", "mode"):
        if case.is_set(f"kv.eviction.{name}"):
            yield Found(f"kv.eviction.{name}", f'{name} is read with policy = "keydiff" only')


@rule(
    "KV403",
    "pool-without-unified",
    Severity.ERROR,
    Act.IGNORE,
    why="A prefix is shared by giving its cells to several sequences; a divided cache has a stream for each slot, and "
    "a copy between streams is a copy (src/llama-kv-cache.cpp:488; patch 0072 turns itself off).",
    cost="Every slot holds its own copy of the prefix.",
    help="write unified = true",
    example=Example(_MODEL + "slots = 4\nunified = false\n[kv]\npool = { shared_prefix = true }\n"),
    counter=Example(_MODEL + "slots = 4\nunified = true\n[kv]\npool = { shared_prefix = true }\n"),
)
def pool_without_unified(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if case.profile.kv.pool.shared_prefix and context.unified is False and context.slots > 1:
        yield Found("kv.pool.shared_prefix", "a shared prefix needs one pool, and unified is false")


@rule(
    "KV404",
    "pool-cannot-share",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Windowed layers recycle only cells that one sequence holds (src/llama-kv-cache.cpp:1062), a recurrent state "
    "can't be shared, and images or drafts keep state of their own: patch 0072 turns itself off with a warning.",
    cost="Every slot holds its own copy of the prefix.",
    example=Example(_MODEL + "slots = 2\nunified = true\n[kv]\npool = { shared_prefix = true }\n", _WINDOWS),
    counter=Example(
        _MODEL + "slots = 2\nunified = true\n[kv]\nswa_full = true\npool = { shared_prefix = true }\n", _WINDOWS
    ),
)
def pool_cannot_share(case: Case) -> Iterator[Found]:
    kv, model = case.profile.kv, case.profile.model
    if not kv.pool.shared_prefix:
        return
    if windowed(case.model) and not kv.swa_full:
        yield Found(
            "kv.pool.shared_prefix",
            "windowed layers can't share a prefix",
            "write swa_full = true (it costs memory), or shared_prefix = false",
        )
    elif recurs(case.model):
        yield Found(
            "kv.pool.shared_prefix",
            f"{case.model.arch} keeps a state that can't be shared",
            "write shared_prefix = false",
        )
    elif model.mmproj is not None or model.draft is not None:
        other = "model.mmproj" if model.mmproj is not None else "model.draft"
        yield Found("kv.pool.shared_prefix", f"a shared prefix and {other} don't go together", "leave one of them away")


@rule(
    "KV405",
    "pool-for-one",
    Severity.WARNING,
    Act.IGNORE,
    why="A prefix is shared between slots, and there is one.",
    cost="The technique never runs.",
    help="write slots = 2 or more, or shared_prefix = false",
    example=Example(_MODEL + "[kv]\npool = { shared_prefix = true }\n"),
    counter=Example(_MODEL + "slots = 2\nunified = true\n[kv]\npool = { shared_prefix = true }\n"),
)
def pool_for_one(case: Case) -> Iterator[Found]:
    if case.profile.kv.pool.shared_prefix and case.profile.context.slots == 1:
        yield Found("kv.pool.shared_prefix", "there is one slot: nobody to share a prefix with")


@rule(
    "KV406",
    "settings-of-what-is-off",
    Severity.WARNING,
    Act.IGNORE,
    why="The settings of a technique are read when it is on.",
    cost="The keys do nothing.",
    example=Example(_MODEL + "[kv]\npersist = { budget = '1GiB' }\n"),
    counter=Example(_MODEL + "[kv]\npersist = { enabled = true, budget = '1GiB' }\n"),
)
def settings_of_what_is_off(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    for on, switch, keys in (
        (kv.pool.shared_prefix, "shared_prefix = true", ("kv.pool.min_tokens", "kv.pool.pinned")),
        (kv.persist.enabled, "enabled = true", ("kv.persist.budget", "kv.persist.idle")),
        (kv.residency in ("heads", "auto"), 'residency = "heads"', ("kv.heads.gpu_fraction",)),
        (kv.residency == "layers", 'residency = "layers"', ("kv.host_layers",)),
        (kv.residency not in ("off", "cpu"), 'residency = "auto"', ("kv.budget",)),
    ):
        for key in keys:
            if not on and case.is_set(key):
                yield Found(key, f"{key} is read with {switch} only", f"write {switch}, or leave it away")


@rule(
    "KV407",
    "residency-needs-flash",
    Severity.ERROR,
    Act.REFUSE,
    why="window and stream join partial attentions by the sums that flash attention keeps (patch 0075).",
    cost="The engine does not start.",
    help='write flash_attention = "auto"',
    example=Example(_MODEL + '[kv]\nresidency = "stream"\n[compute]\nflash_attention = "off"\n', _GPU),
    counter=Example(_MODEL + '[kv]\nresidency = "stream"\n', _GPU),
)
def residency_needs_flash(case: Case) -> Iterator[Found]:
    residency = case.profile.kv.residency
    if residency in ("window", "stream") and flash(case) == "off":
        yield Found("kv.residency", f'residency = "{residency}" needs flash attention, and it is off')


@rule(
    "KV408",
    "residency-without-device",
    Severity.ERROR,
    Act.IGNORE,
    why="Residency says what lies on a device and what on the host; with no device all of it lies on the host.",
    cost="The technique does nothing, and the plan that counted on it is wrong.",
    help='write residency = "auto", or "cpu"',
    example=Example(_MODEL + '[kv]\nresidency = "heads"\n'),
    counter=Example(_MODEL + '[kv]\nresidency = "heads"\n', _GPU),
)
def residency_without_device(case: Case) -> Iterator[Found]:
    residency = case.profile.kv.residency
    if residency in ("gpu", "heads", "layers", "window", "stream") and not has_device(case):
        yield Found("kv.residency", f'residency = "{residency}" needs a device beside the CPU, and there is none')


@rule(
    "KV409",
    "layers-not-named",
    Severity.ERROR,
    Act.CHANGE,
    why='residency = "layers" puts the layers of host_layers on the host; an empty list puts none there.',
    cost="The whole cache stays on the device.",
    help='write host_layers = "0-9"',
    example=Example(_MODEL + '[kv]\nresidency = "layers"\n', _GPU),
    counter=Example(_MODEL + '[kv]\nresidency = "layers"\nhost_layers = "0-9"\n', _GPU),
)
def layers_not_named(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    if kv.residency == "layers" and not kv.host_layers:
        yield Found("kv.residency", 'residency = "layers" names no layer in host_layers')


@rule(
    "KV410",
    "neo-without-split",
    Severity.ERROR,
    Act.IGNORE,
    why="NEO computes the host's part of the attention while the device computes its own (patches 0030, 0031): with "
    "all of the cache in one place there are no two parts.",
    cost="The technique never runs.",
    example=Example(_MODEL + '[kv]\nneo = "on"\nresidency = "off"\n', _GPU),
    counter=Example(_MODEL + '[kv]\nneo = "on"\nresidency = "heads"\n', _GPU),
)
def neo_without_split(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    if kv.neo != "on":
        return
    if not has_device(case):
        yield Found("kv.neo", "NEO needs a device beside the CPU, and there is none", 'write neo = "auto"')
    elif kv.residency in ("off", "gpu", "cpu"):
        yield Found(
            "kv.neo",
            f'NEO needs a cache in two places, and residency = "{kv.residency}" keeps it in one',
            'write residency = "heads", "layers" or "window"',
        )


@rule(
    "KV411",
    "persist-needs-checkpoints",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="A windowed layer holds the newest tokens only: a restored conversation is computed anew in full unless a "
    "checkpoint lies before the change (tools/server/server-context.cpp:3579, `forcing full prompt re-processing`).",
    cost="Sessions are saved, restored, and then not used.",
    help="write reuse = { checkpoints = 32 }",
    example=Example(_MODEL + "[kv]\npersist = { enabled = true }\nreuse = { checkpoints = 0 }\n", _WINDOWS),
    counter=Example(_MODEL + "[kv]\npersist = { enabled = true }\n", _WINDOWS),
)
def persist_needs_checkpoints(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    goes_back = (windowed(case.model) and not kv.swa_full) or recurs(case.model)
    if kv.persist.enabled and goes_back and kv.reuse.checkpoints == 0:
        yield Found(
            "kv.reuse.checkpoints", f"persist on {case.model.arch} needs checkpoints, and there are none to be kept"
        )


@rule(
    "KV412",
    "persist-needs-prompt-cache",
    Severity.ERROR,
    Act.REFUSE,
    why="Saved conversations are loaded into the prompt cache (patch 0076), and ram = 0 turns that off.",
    cost="Nothing is restored.",
    help='write reuse = { ram = "2GiB" }',
    example=Example(_MODEL + "[kv]\npersist = { enabled = true }\nreuse = { ram = '0B' }\n"),
    counter=Example(_MODEL + "[kv]\npersist = { enabled = true }\n"),
)
def persist_needs_prompt_cache(case: Case) -> Iterator[Found]:
    kv = case.profile.kv
    if kv.persist.enabled and kv.reuse.ram == 0:
        yield Found("kv.reuse.ram", "persist restores through the prompt cache, and ram is 0")


@rule(
    "KV413",
    "persist-with-draft",
    Severity.ERROR,
    Act.REFUSE,
    why="The draft keeps a cache of its own that is not saved (patch 0076 refuses a speculative context).",
    cost="Nothing is saved.",
    help="leave [model.draft] or persist away",
    example=Example(
        '[model]\npath = "model.gguf"\n[model.draft]\npath = "draft.gguf"\n[kv]\npersist = { enabled = true }\n'
    ),
    counter=Example(_MODEL + "[kv]\npersist = { enabled = true }\n"),
)
def persist_with_draft(case: Case) -> Iterator[Found]:
    draft = case.profile.model.draft
    if case.profile.kv.persist.enabled and draft is not None and draft.type != "ngram":
        yield Found("kv.persist.enabled", "sessions with a draft model can't be saved")


@rule(
    "KV414",
    "grouped-without-flash",
    Severity.ERROR,
    Act.IGNORE,
    why="The grouped kernel is a flash attention kernel (patch 0040); without flash attention it is never called.",
    cost="Decoding on the CPU stays as slow as upstream's.",
    help='write flash_attention = "auto"',
    example=Example(_MODEL + '[compute]\ncpu_attention = "grouped"\nflash_attention = "off"\n'),
    counter=Example(_MODEL + '[compute]\ncpu_attention = "grouped"\n'),
)
def grouped_without_flash(case: Case) -> Iterator[Found]:
    if case.profile.compute.cpu_attention == "grouped" and flash(case) == "off":
        yield Found("compute.cpu_attention", "the grouped kernel is a flash attention kernel, and that is off")


@rule(
    "KV415",
    "no-cache-to-work-on",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="A purely recurrent model keeps a state of fixed size and has no cache of K and V.",
    cost="The technique does nothing.",
    help="leave it away for this model",
    example=Example(_MODEL + '[kv]\nresidency = "heads"\n', ("a recurrent model", "a CUDA GPU")),
    counter=Example(_MODEL + '[kv]\nresidency = "auto"\n', ("a recurrent model", "a CUDA GPU")),
)
def no_cache_to_work_on(case: Case) -> Iterator[Found]:
    if case.model.memory not in (Memory.RECURRENT, Memory.NONE):
        return
    kv = case.profile.kv
    for key, on in (
        ("kv.residency", kv.residency not in ("auto", "off", "cpu")),
        ("kv.neo", kv.neo == "on"),
        ("kv.scout.blocks", kv.scout.blocks > 0),
        ("kv.exact", bool(kv.exact.first or kv.exact.recent)),
        ("kv.tier", case.is_set("kv.tier") and kv.tier.quantized),
        ("kv.tiers", bool(kv.tiers)),
        ("kv.eviction.policy", kv.eviction.policy == "keydiff"),
    ):
        if on:
            yield Found(key, f"{case.model.arch} has no cache of K and V: {key} has nothing to work on")


@rule(
    "KV416",
    "keydiff-cannot-compare",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Keys are compared within one layer of the full-attention cache; compressed keys (MLA) and other kinds of "
    "memory can't be, and the engine then discards the oldest tokens (patch 0010, llama_memory_seq_key_scores).",
    cost="The oldest tokens are discarded, whatever they say.",
    example=Example(
        _MODEL + 'shift = true\n[kv]\nswa_full = true\neviction = { policy = "keydiff", layer = 0 }\n', _WINDOWS
    ),
    counter=Example(
        _MODEL + 'shift = true\n[kv]\nswa_full = true\neviction = { policy = "keydiff", layer = 5 }\n', _WINDOWS
    ),
)
def keydiff_cannot_compare(case: Case) -> Iterator[Found]:
    eviction, shape = case.profile.kv.eviction, case.model
    if eviction.policy != "keydiff" or not case.profile.context.shift or shift_stops(case):
        return
    if shape.is_mla:
        yield Found("kv.eviction.policy", "the keys of this model are compressed (MLA)", 'write policy = "positional"')
    elif shape.memory not in (Memory.KV, Memory.ISWA, Memory.HYBRID):
        yield Found("kv.eviction.policy", f"{shape.arch} has no keys to compare", 'write policy = "positional"')
    elif eviction.layer >= 0:
        two_caches = shape.memory is Memory.ISWA
        good = [layer.index for layer in attention_layers(shape) if not (two_caches and layer.swa)]
        if eviction.layer not in good:
            yield Found(
                "kv.eviction.layer",
                f"layer {eviction.layer} has no keys in the cache that is shifted",
                f"write layer = {good[len(good) // 2]}, or -1" if good else "write layer = -1",
            )


RULES = rules_of(globals())
