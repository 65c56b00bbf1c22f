"""KV1xx: how much a conversation can hold, how many there are, and what happens when one is full."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.plan.context import pad
from launcher.rules.case import Case
from launcher.rules.facts import shift_stops
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n'
_WINDOWS = ("a model with sliding windows",)
_MOST_SLOTS = 256  # LLAMA_MAX_SEQ, src/llama-cparams.h


@rule(
    "KV101",
    "beyond-training",
    Severity.ERROR,
    Act.CHANGE,
    needs=Needs.MODEL,
    why="A slot is capped at the length that the model was trained for, whatever -c says, and the cells beyond it are "
    "allocated all the same (tools/server/server-context.cpp:4377). YaRN raises the limit, linear scaling does not "
    "(src/llama-context.cpp:3893).",
    cost="Memory for cells that no conversation can use, and answers that end earlier than promised.",
    example=Example(_MODEL + '[context]\nper_slot = "16k"\n'),
    counter=Example(_MODEL + '[context]\nper_slot = "8k"\n'),
)
def beyond_training(case: Case) -> Iterator[Found]:
    context, split = case.profile.context, case.planned.split
    if split.train is None or context.per_slot is None or context.per_slot <= split.train:
        return
    factor = -(-context.per_slot // split.train)
    yield Found(
        "context.per_slot",
        f"{context.per_slot} tokens are promised to a conversation, but the model was trained for {split.train} "
        "and the engine gives no slot more",
        f"write per_slot = {split.train}"
        + (f', or stretch its positions: rope = {{ scaling = "yarn", factor = {factor}.0 }}' if factor <= 8 else ""),
    )


@rule(
    "KV102",
    "cells-nobody-can-use",
    Severity.WARNING,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Each slot is capped at the training length, but the whole of -c is allocated: 444 MiB for -c 20000 on a model "
    "trained for 8192, 60 % of them dead (tools/server/server-context.cpp:4377).",
    cost="Memory that nothing can ever use.",
    example=Example(_MODEL + '[context]\ntotal = "64k"\nslots = 2\nunified = true\n'),
    counter=Example(_MODEL + '[context]\ntotal = "16k"\nslots = 2\nunified = true\n'),
)
def cells_nobody_can_use(case: Case) -> Iterator[Found]:
    split = case.planned.split
    usable = split.per_slot * split.slots
    # what rounding leaves over is nobody's mistake
    if case.profile.context.total is None or split.total <= pad(usable) or split.total - usable < 256 * split.slots:
        return
    if split.train is not None and split.per_slot >= split.train:
        yield Found(
            "context.total",
            f"{split.total} cells are allocated, but {split.slots} slots of {split.per_slot} tokens can use {usable}",
            f"write total = {usable}",
        )


@rule(
    "KV103",
    "slots-split-context",
    Severity.ERROR,
    Act.CHANGE,
    why="As soon as the number of slots is given, the engine turns the unified cache off and divides the context among "
    "them (tools/server/server.cpp:168, src/llama-context.cpp:294): everybody holds less than was meant.",
    cost="With four slots, a quarter of the context for each conversation.",
    example=Example(_MODEL + '[context]\ntotal = "8k"\nslots = 4\n'),
    counter=Example(_MODEL + '[context]\ntotal = "8k"\nslots = 4\nunified = true\n'),
)
def slots_split_context(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.slots > 1 and context.total is not None and context.unified is None:
        each = pad(pad(context.total) // context.slots)
        yield Found(
            "context.slots",
            f"{context.slots} slots share {context.total} tokens: one pool of {context.total}, or {each} for each?",
            "write unified = true for one pool, or unified = false for a fixed share each",
        )


@rule(
    "KV104",
    "plan-decides-split",
    Severity.NOTE,
    Act.OURS,
    why="What one conversation can hold is given, so it is the same either way; whether they share one pool is left to "
    "the plan, and that is worth a line in its output.",
    cost="Nothing.",
    help="write unified = true or unified = false to have it stay as it is",
    example=Example(_MODEL + '[context]\nper_slot = "4k"\nslots = 2\n'),
    counter=Example(_MODEL + '[context]\nper_slot = "4k"\nslots = 2\nunified = false\n'),
)
def plan_decides_split(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.slots > 1 and context.total is None and context.unified is None and context.per_slot is not None:
        what = "a share for each" if case.plan is None or not case.plan.split.unified else "one pool"
        yield Found("context.slots", f"whether the {context.slots} slots share one pool is not written: {what}")


@rule(
    "KV105",
    "shares-too-small",
    Severity.ERROR,
    Act.CHANGE,
    why="A slot of a divided context holds pad256(total / slots) (src/llama-context.cpp:297), one of a pool at most "
    "the whole pool.",
    cost="Conversations that end earlier than promised.",
    example=Example(_MODEL + '[context]\nper_slot = "4k"\ntotal = "8k"\nslots = 4\nunified = false\n'),
    counter=Example(_MODEL + '[context]\nper_slot = "4k"\ntotal = "16k"\nslots = 4\nunified = false\n'),
)
def shares_too_small(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.per_slot is None or context.total is None:
        return
    unified = context.unified if context.unified is not None else context.slots > 1
    each = pad(context.total) if unified else pad(pad(context.total) // context.slots)
    if each < context.per_slot:
        yield Found(
            "context.total",
            f"{context.per_slot} tokens are promised to a conversation, but {context.total} leave {each} for one",
            f"write total = {context.per_slot * (1 if unified else context.slots)}",
        )


@rule(
    "KV106",
    "pool-overcommitted",
    Severity.WARNING,
    Act.OURS,
    why="When a pool is full and no slot is idle, the engine fails ALL active requests and drops their cache "
    "(tools/server/server-context.cpp:4019).",
    cost="Under load, every conversation fails at once.",
    example=Example(_MODEL + '[context]\nper_slot = "8k"\ntotal = "16k"\nslots = 4\nunified = true\n'),
    counter=Example(_MODEL + '[context]\nper_slot = "4k"\ntotal = "16k"\nslots = 4\nunified = true\n'),
)
def pool_overcommitted(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.per_slot is None or context.total is None or context.unified is False or context.slots == 1:
        return
    wanted = context.per_slot * context.slots
    if wanted > pad(context.total) and context.per_slot <= pad(context.total):
        yield Found(
            "context.total",
            f"{context.slots} slots may ask for {wanted} tokens of a pool of {context.total}",
            f"write total = {wanted}, or per_slot = {context.total // context.slots}",
        )


@rule(
    "KV107",
    "rounded-up",
    Severity.WARNING,
    Act.CHANGE,
    why="Each share is rounded up to 256 cells and the whole is their sum; the engine's log says `rounding down` "
    "(src/llama-context.cpp:297-307): -c 512 -np 8 allocates 2048.",
    cost="Up to 255 cells more for each slot than was asked for.",
    example=Example(_MODEL + "[context]\ntotal = 512\nslots = 8\nunified = false\n"),
    counter=Example(_MODEL + "[context]\ntotal = 2048\nslots = 8\nunified = false\n"),
)
def rounded_up(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.total is None or context.unified is not False:
        return
    total = pad(pad(context.total) // context.slots) * context.slots
    if total > pad(context.total):
        yield Found(
            "context.total",
            f"{context.total} tokens in {context.slots} shares become {total}: {total // context.slots} for each",
            f"write total = {total}",
        )


@rule(
    "KV109",
    "too-many-slots",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine ends with `n_seq_max must be <= 256` (src/llama-context.cpp:104).",
    cost="It does not start.",
    example=Example(_MODEL + "[context]\nper_slot = 256\nslots = 300\n"),
    counter=Example(_MODEL + "[context]\nper_slot = 256\nslots = 256\n"),
)
def too_many_slots(case: Case) -> Iterator[Found]:
    slots = case.profile.context.slots
    if slots > _MOST_SLOTS:
        yield Found("context.slots", f"{slots} slots are more than the engine has", f"write slots = {_MOST_SLOTS}")


@rule(
    "KV110",
    "batch-below-slots",
    Severity.ERROR,
    Act.CRASH,
    why="Every slot may put one token into a batch; with fewer places than slots the engine aborts: "
    "GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max) (src/llama-context.cpp:2275). While it loads it decodes two "
    "tokens at once to try the cache, and aborts where the batch has room for one (common/common.cpp:1564).",
    cost="SIGABRT at start.",
    example=Example(_MODEL + "[context]\nper_slot = 256\nslots = 64\n[compute]\nbatch = 32\n"),
    counter=Example(_MODEL + "[context]\nper_slot = 256\nslots = 64\n[compute]\nbatch = 64\n"),
)
def batch_below_slots(case: Case) -> Iterator[Found]:
    slots, batch = case.profile.context.slots, case.profile.compute.batch
    if batch < slots <= _MOST_SLOTS:
        message = f"a batch of {batch} has no place for each of {slots} slots"
        yield Found("compute.batch", message, f"write batch = {slots}")
    elif batch < 2:
        yield Found(
            "compute.batch", "a batch of 1 has no place for the two tokens of the engine's own test", "batch = 2"
        )


@rule(
    "KV111",
    "batch-cut",
    Severity.WARNING,
    Act.CHANGE,
    needs=Needs.MODEL,
    why="A batch is cut to the context, and a ubatch to the batch, without a word (src/llama-context.cpp:248-250).",
    cost="The figure that was written is not the one that runs.",
    example=Example(_MODEL + '[context]\nper_slot = "1k"\n[compute]\nbatch = 4096\n'),
    counter=Example(_MODEL + '[context]\nper_slot = "8k"\n[compute]\nbatch = 4096\n'),
)
def batch_cut(case: Case) -> Iterator[Found]:
    compute, split = case.profile.compute, case.planned.split
    batch = compute.batch
    if case.model.causal and split.emitted < batch:
        batch = type(batch)(split.emitted)
        if case.is_set("compute.batch"):
            yield Found(
                "compute.batch",
                f"a batch of {compute.batch} is cut to the context of {split.emitted}",
                f"write batch = {split.emitted}",
            )
    if compute.ubatch > batch and case.is_set("compute.ubatch"):
        yield Found(
            "compute.ubatch",
            f"a ubatch of {compute.ubatch} is cut to the batch of {batch}",
            f"write ubatch = {batch}",
        )


@rule(
    "KV112",
    "keep-without-shift",
    Severity.WARNING,
    Act.IGNORE,
    why="Only a context shift reads --keep (tools/server/server-context.cpp, n_keep).",
    cost="Nothing is discarded, so nothing is kept either: the key does nothing.",
    help="write shift = true, or leave keep away",
    example=Example(_MODEL + "[context]\nper_slot = 1024\nkeep = 64\n"),
    counter=Example(_MODEL + "[context]\nper_slot = 1024\nkeep = 64\nshift = true\n"),
)
def keep_without_shift(case: Case) -> Iterator[Found]:
    context = case.profile.context
    if context.keep and not context.shift:
        yield Found("context.keep", f"keep = {context.keep} is read by a shift only, and shift is false")


@rule(
    "KV113",
    "cannot-shift",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="The engine says `KV cache shifting is not supported for this context` and turns it off "
    "(common/common.cpp:1415, tools/server/server-context.cpp:1321; get_can_shift of each cache).",
    cost="A full slot ends its answer, though it was to discard old tokens and go on.",
    help="write shift = false",
    example=Example(_MODEL + "[context]\nper_slot = 8192\nshift = true\n", _WINDOWS),
    counter=Example(_MODEL + "[context]\nper_slot = 8192\nshift = true\n[kv]\nswa_full = true\n", _WINDOWS),
)
def cannot_shift(case: Case) -> Iterator[Found]:
    if case.profile.context.shift and (why := shift_stops(case)):
        windows = "cells" in why
        yield Found(
            "context.shift",
            f"this context cannot be shifted: {why}",
            "write swa_full = true (it costs memory: see `kvlaunch plan`), or shift = false" if windows else "",
        )


@rule(
    "KV114",
    "cannot-reuse-chunks",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Reusing a chunk moves its positions; where the context can't, the engine turns it off "
    "(tools/server/server-context.cpp:1326).",
    cost="Prompts that changed at the front are computed anew in full.",
    help="write reuse = { chunk = 0 }",
    example=Example(_MODEL + "[context]\nper_slot = 8192\n[kv]\nreuse = { chunk = 256 }\n", _WINDOWS),
    counter=Example(_MODEL + "[context]\nper_slot = 8192\n[kv]\nreuse = { chunk = 256 }\n"),
)
def cannot_reuse_chunks(case: Case) -> Iterator[Found]:
    if case.profile.kv.reuse.chunk and (why := shift_stops(case)):
        yield Found("kv.reuse.chunk", f"this context cannot move chunks: {why}")


@rule(
    "KV115",
    "rope-factor-idle",
    Severity.WARNING,
    Act.IGNORE,
    why='With --rope-scaling none the factor is set back to 1 (src/llama-context.cpp: "never scale if scaling type is '
    'none").',
    cost="The model is not stretched.",
    help='write scaling = "yarn" or "linear", or leave the factor away',
    example=Example(_MODEL + '[context]\nper_slot = 4096\nrope = { scaling = "none", factor = 2.0 }\n'),
    counter=Example(_MODEL + '[context]\nper_slot = 4096\nrope = { scaling = "yarn", factor = 2.0 }\n'),
)
def rope_factor_idle(case: Case) -> Iterator[Found]:
    rope = case.profile.context.rope
    if rope is not None and rope.scaling == "none" and rope.factor not in (None, 1.0):
        yield Found("context.rope.factor", f'factor = {rope.factor:g} does nothing with scaling = "none"')


@rule(
    "KV116",
    "keep-fills-slot",
    Severity.ERROR,
    Act.CHANGE,
    needs=Needs.MODEL,
    why="A shift discards half of what is not kept; with nothing left to discard the engine cuts keep to the slot "
    "(tools/server/server-context.cpp, n_keep and n_discard).",
    cost="Every token shifts again, or the answer ends.",
    example=Example(_MODEL + "[context]\nper_slot = 1024\nshift = true\nkeep = 1024\n"),
    counter=Example(_MODEL + "[context]\nper_slot = 1024\nshift = true\nkeep = 256\n"),
)
def keep_fills_slot(case: Case) -> Iterator[Found]:
    context, size = case.profile.context, case.planned.split.per_slot
    if context.shift and context.keep >= size - 4:
        yield Found(
            "context.keep",
            f"keep = {context.keep} leaves nothing to discard in a slot of {size} tokens",
            f"write keep = {size // 4}",
        )


RULES = rules_of(globals())
