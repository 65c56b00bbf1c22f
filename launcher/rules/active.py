"""Accepted but inactive: for each technique and key option, where the running engine must show that it is on.

The engine takes many options and then does without them, with a warning at most (catalogue S1, S2, S4, X1, X2, C10).
`ready` asks these expectations of what the engine said: its log, `/props`, `/slots`. Nothing here talks to an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.engine.options import Value


@dataclass(frozen=True, slots=True)
class Seen:
    """What a running engine has said about itself. `log` are its lines since the start, at verbosity 4."""

    log: Sequence[str]
    props: Mapping[str, Any]
    slots: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must show.

    setting  our name of the option (launcher/engine/options.py); `key`: what the user wrote
    denied   a log line that says it was turned off
    shown    a log line that says it is on; its groups must be the planned figures, where it has any
    prop     a key that /props has when it is on

    Session affinity (0006) shows in /slots once a session has come, and the CPU kernel (0040) in speed alone: what
    shows nothing at the start has no expectation here.
    """

    setting: str
    key: str
    denied: str = ""
    shown: str = ""
    prop: str = ""


EXPECTATIONS: tuple[Expectation, ...] = (
    # tools/server/server-context.cpp:1309-1345, common/common.cpp:1415
    Expectation(
        "context_shift", "context.shift", denied=r"ctx_shift is not supported|KV cache shifting is not supported"
    ),
    Expectation("cache_reuse", "kv.reuse.chunk", denied=r"cache_reuse is not supported"),
    Expectation("swa_full", "kv.swa_full", denied=r"swa_full is not supported"),
    Expectation(
        "unified_per_slot",
        "context.per_slot",
        denied=r"exceeds the per-slot pool capacity|exceeds the training context",
    ),
    Expectation("context", "context.total", denied=r"exceeds the training context", shown=r"llama_context: n_ctx +="),
    Expectation("slots", "context.slots", shown=r"n_slots = (\d+)"),
    Expectation("unified", "context.unified", shown=r"kv_unified = '(true|false)'|kv_unified +=\s*(true|false)"),
    # src/llama-kv-cache.cpp:291: "K (q8_0): …, V (q4_0): …"
    Expectation("cache_type_k", "kv.tier", shown=r"K \((\w+)\):"),
    Expectation("cache_type_v", "kv.tier", shown=r"V \((\w+)\):"),
    Expectation(
        "flash_attention",
        "compute.flash_attention",
        denied=r"Flash Attention not supported, set to disabled|forcing off",
    ),
    Expectation("gpu_layers", "compute.gpu_layers", shown=r"offloaded (\d+)/\d+ layers"),
    Expectation(
        "spec_type",
        "model.draft",
        denied=r"failed to initialize speculative decoding|speculative decoding not supported by this context",
        shown=r"speculative decoding context initialized",
    ),
    Expectation("mmproj", "model.mmproj", shown=r"loaded multimodal model"),
    Expectation("cache_idle_slots", "kv.reuse.ram", denied=r"--cache-idle-slots requires --cache-ram"),
    Expectation("load", "compute.load", denied=r"failed to mlock|warning: failed to .?mlock"),
    # patch 0008
    Expectation("kv_telemetry", "kv", prop="kv"),
    # patch 0010
    Expectation(
        "rest_kv_eviction",
        "kv.eviction.policy",
        denied=r"--rest-kv-eviction:? (has no effect|.*discard the oldest tokens|.*runs out before any)",
    ),
)


def inactive(told: Mapping[str, Value], seen: Seen) -> Iterator[tuple[str, str]]:
    """(key, why) for everything that was told and that this engine shows not to do. Silence is no proof either way."""
    for expected in EXPECTATIONS:
        value = told.get(expected.setting)
        if value is None or value is False or (expected.setting == "cache_reuse" and not value):
            continue
        if expected.prop and seen.props and expected.prop not in seen.props:
            yield expected.key, f"/props has no {expected.prop}"
        if expected.denied and (line := _line(expected.denied, seen.log)):
            if expected.setting == "flash_attention" and value != "on":
                continue
            yield expected.key, line
        elif expected.shown and (figures := _figures(expected.shown, seen.log)):
            wanted = _spelled(value)
            if wanted is not None and wanted not in figures:
                yield expected.key, f"asked for {wanted}, the engine has {', '.join(sorted(figures))}"
    if "spec_type" in told and any(slot.get("speculative") is False for slot in seen.slots):
        yield "model.draft", "the slots run without speculation"


def _line(pattern: str, log: Sequence[str]) -> str:
    return next((line.strip() for line in log if re.search(pattern, line)), "")


def _figures(pattern: str, log: Sequence[str]) -> set[str]:
    """What the groups of the pattern hold, over all lines."""
    return {group for line in log for match in re.finditer(pattern, line) for group in match.groups() if group}


def _spelled(value: Value) -> str | None:
    """The figure as the log writes it; None for a word that stands for several (all, auto)."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value in ("all", "auto") else str(value)
