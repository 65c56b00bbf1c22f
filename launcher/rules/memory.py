"""KV2xx: whether it fits, and memory that is asked for and can't be had."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.model.layers import Memory
from launcher.plan.kv import HOST
from launcher.plan.verdict import Fit
from launcher.rules.case import Case
from launcher.rules.facts import windowed
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of
from launcher.units import MIB, format_bytes

_MODEL = '[model]\npath = "model.gguf"\n[context]\nper_slot = 4096\n'


@rule(
    "KV201",
    "does-not-fit",
    Severity.ERROR,
    Act.CRASH,
    needs=Needs.MODEL,
    why="The plan counts weights, cache, compute buffers and what else this engine allocates, against what this box "
    "and its limits have free; the engine itself finds out while loading, or is killed by the kernel later.",
    cost="Minutes of loading, then an end without a message, or other programs that are killed in its place.",
    help="see `kvlaunch plan`: fewer slots, a smaller context or tier; `kvlaunch plan --max-context` finds the largest",
    example=Example(_MODEL.replace("4096", "8192") + "slots = 64\n", ("a box with 2 GiB",)),
    counter=Example(_MODEL, ("a box with 2 GiB",)),
)
def does_not_fit(case: Case) -> Iterator[Found]:
    for device in case.planned.devices:
        if device.fit is Fit.NO:
            # what may be dropped or only grows is no part of this sum, so it is not in the sentence either
            need, free = format_bytes(device.start - device.reclaimable), format_bytes(device.free or 0)
            missing = format_bytes(device.short)
            yield Found(
                _turned(case, device.key),
                f"the start needs {need} on {device.device}, and {free} are free: {missing} too much",
                device.advice,
            )


@rule(
    "KV202",
    "fits-tightly",
    Severity.WARNING,
    Act.OURS,
    needs=Needs.MODEL,
    why="Little is left beside the plan: another program, a longer prompt or a driver's own reserve can take it.",
    cost="It may be killed at run time.",
    help="see `kvlaunch plan`, or name in supervise.fallback what may be given up",
    example=Example(_MODEL, ("a plan that is tight",)),
    counter=Example(_MODEL),
)
def fits_tightly(case: Case) -> Iterator[Found]:
    for device in case.planned.devices:
        if device.fit is Fit.TIGHT:
            need, free = format_bytes(device.need), format_bytes(device.free or 0)
            yield Found(_turned(case, device.key), f"{need} of {free} on {device.device}: that is tight", device.advice)


@rule(
    "KV203",
    "cannot-lock",
    Severity.WARNING,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Locking beyond the limit (ulimit -l) fails with a warning in the log, and the engine goes on unlocked "
    "(src/llama-mmap.cpp, llama_mlock).",
    cost="The weights can be swapped out, though they were to be locked.",
    example=Example(_MODEL + '[compute]\nload = "mlock"\n', ("a box that locks 8 MiB",)),
    counter=Example(_MODEL + '[compute]\nload = "mmap"\n', ("a box that locks 8 MiB",)),
)
def cannot_lock(case: Case) -> Iterator[Found]:
    lockable = case.machine.memory.lockable
    if "mlock" in case.profile.compute.load and lockable is not None and lockable < case.model.tensor_bytes:
        size = format_bytes(case.model.tensor_bytes)
        yield Found(
            "compute.load",
            f"the weights are {size}, but this process may lock {format_bytes(lockable)}",
            'raise the limit (ulimit -l, LimitMEMLOCK=), or write load = "mmap"',
        )


@rule(
    "KV204",
    "prompt-cache-beyond-ram",
    Severity.WARNING,
    Act.CRASH,
    needs=Needs.MODEL,
    why="The prompt cache grows to kv.reuse.ram as conversations come and go; the engine never asks what is free "
    "(tools/server/server-task.cpp, server_prompt_cache).",
    cost="The kernel kills the engine hours after the start.",
    example=Example(_MODEL + '[kv]\nreuse = { ram = "64GiB" }\n'),
    counter=Example(_MODEL + '[kv]\nreuse = { ram = "1GiB" }\n'),
)
def prompt_cache_beyond_ram(case: Case) -> Iterator[Found]:
    memory = case.machine.memory
    available = memory.available if memory.limit is None else min(memory.limit, memory.available or memory.limit)
    if available is None or not case.is_set("kv.reuse.ram"):
        return
    left = available - case.model.tensor_bytes - case.planned.kv_bytes
    if case.profile.kv.reuse.ram > max(left, 0):
        yield Found(
            "kv.reuse.ram",
            f"the prompt cache may grow to {format_bytes(case.profile.kv.reuse.ram)}, but beside the model "
            f"{format_bytes(max(left, 0))} are free",
            f'write ram = "{max(left // 2 // MIB, 0)}MiB"',
        )


@rule(
    "KV205",
    "swa-full-without-windows",
    Severity.WARNING,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="`swa_full is not supported by this model, it will be disabled` (tools/server/server-context.cpp:1333).",
    cost="The key does nothing.",
    help="leave swa_full away",
    example=Example(_MODEL + "[kv]\nswa_full = true\n"),
    counter=Example(_MODEL + "[kv]\nswa_full = true\n", ("a model with sliding windows",)),
)
def swa_full_without_windows(case: Case) -> Iterator[Found]:
    if not case.profile.kv.swa_full:
        return
    if not windowed(case.model):
        yield Found("kv.swa_full", "this model has no sliding windows")
    elif case.model.memory is Memory.DSV4:
        # src/llama-model.cpp:2998: its windows lie beside compressed rows, which can't be kept whole
        yield Found("kv.swa_full", f"the windows of {case.model.arch} can't keep the whole context")


@rule(
    "KV206",
    "limit-below-plan",
    Severity.ERROR,
    Act.CRASH,
    needs=Needs.MODEL,
    why="In a cgroup of its own the engine is killed at supervise.memory_limit; what the plan counts for the host, "
    "less what the kernel may drop, is more than that.",
    cost="It is killed while it loads, each time.",
    example=Example(_MODEL + '[supervise]\nmemory_limit = "1MiB"\n'),
    counter=Example(_MODEL + '[supervise]\nmemory_limit = "64GiB"\n'),
)
def limit_below_plan(case: Case) -> Iterator[Found]:
    limit = case.profile.supervise.memory_limit
    if isinstance(limit, str):
        return
    for device in case.planned.devices:
        need = device.start - device.reclaimable
        if device.device == HOST and need > limit:
            yield Found(
                "supervise.memory_limit",
                f"the start needs {format_bytes(need)} on the host, and {format_bytes(limit)} are allowed",
                f'write memory_limit = "{need // MIB + 1}MiB" or more',
            )


def _turned(case: Case, key: str) -> str:
    """The key that the plan would change; else the one that a person turns first."""
    written = ("context.total", "context.per_slot", "context.slots", "kv.tier")
    return key or next((name for name in written if case.is_set(name)), "context")


RULES = rules_of(globals())
