from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from launcher.engine.options import OPTIONS
from launcher.profile.faults import dotted, known_keys
from launcher.profile.schema import Profile
from launcher.rules.active import EXPECTATIONS, Seen, inactive

START = [
    "llama_context: n_ctx                 = 4096",
    "llama_kv_cache: size = 36.00 MiB (  4096 cells,  30 layers,  2/2 seqs), K (q8_0): 24.00 MiB, V (q4_0): 12.00 MiB",
    "srv    load_model: initializing, n_slots = 2, n_ctx_slot = 2048, kv_unified = 'false'",
]
TOLD: dict[str, Any] = {
    "context": 4096, "slots": 2, "unified": False, "cache_type_k": "q8_0", "cache_type_v": "q4_0",
    "flash_attention": "auto", "context_shift": True,
}  # fmt: skip


def keys(told: dict[str, Any], log: list[str], props: dict[str, Any] | None = None, slots: Any = ()) -> list[str]:
    return [key for key, why in inactive(told, Seen(log, props or {}, slots)) if why]


def test_an_engine_that_does_as_told_is_quiet() -> None:
    assert keys(TOLD, START) == []
    assert keys(TOLD, []) == [], "silence is no proof"


@pytest.mark.parametrize(
    ("told", "line", "key"),
    [
        ({}, "srv: ctx_shift is not supported by this context, it will be disabled", "context.shift"),
        ({"cache_reuse": 256}, "cache_reuse is not supported by multimodal, it will be disabled", "kv.reuse.chunk"),
        ({"swa_full": True}, "swa_full is not supported by this model, it will be disabled", "kv.swa_full"),
        (
            {"flash_attention": "on"},
            "llama_init_from_model: flash_attn is not compatible with Grok - forcing off",
            "compute.flash_attention",
        ),
        ({"spec_type": "draft-simple"}, "failed to initialize speculative decoding context: vocab", "model.draft"),
        (
            {"unified_per_slot": 9000},
            "--kv-unified-per-slot (9000) exceeds the per-slot pool capacity",
            "context.per_slot",
        ),
    ],
)
def test_a_line_that_takes_it_back(told: dict[str, Any], line: str, key: str) -> None:
    assert keys({**TOLD, **told}, [*START, line]) == [key]


def test_other_figures_than_planned() -> None:
    assert keys({**TOLD, "slots": 4}, START) == ["context.slots"]
    assert keys({**TOLD, "cache_type_k": "f16"}, START) == ["kv.tier"]
    assert keys({**TOLD, "unified": True}, START) == ["context.unified"]


def test_a_key_of_props_that_a_patch_brings() -> None:
    assert keys({"kv_telemetry": True}, [], {"total_slots": 1}) == ["kv"]
    assert keys({"kv_telemetry": True}, [], {"total_slots": 1, "kv": {}}) == []
    assert keys({"kv_telemetry": True}, [], {}) == [], "nobody asked /props yet"


def test_a_slot_without_speculation() -> None:
    assert keys({"spec_type": "draft-simple"}, [], {}, [{"speculative": False}]) == ["model.draft"]


def test_expectations_are_of_options_that_there_are() -> None:
    assert {one.setting for one in EXPECTATIONS} <= set(OPTIONS)
    assert {one.key for one in EXPECTATIONS} <= {dotted(key) for key in known_keys(Profile)}
    assert all(one.denied or one.shown or one.prop for one in EXPECTATIONS)


def test_the_supervisor_can_ask_without_paying_for_profiles() -> None:
    program = "import sys, launcher.rules.active; print([m for m in ('pydantic', 'rich', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
