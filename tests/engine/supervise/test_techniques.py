"""Requested and active: each technique is asked of the real engine, with its option and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import Instance

Launch = Callable[..., Instance]

_OPTIONS = {
    "affinity": ("--session-affinity",),
    "telemetry": ("--kv-telemetry",),
    "eviction": ("--context-shift", "--rest-kv-eviction"),
}


@pytest.mark.parametrize("technique", _OPTIONS)
def test_what_is_asked_for_is_seen_to_be_on_or_missed(launch: Launch, engine_help: str, technique: str) -> None:
    options = _OPTIONS[technique]
    if options[-1] not in engine_help:
        pytest.skip(f"this engine has no {options[-1]}")
    plain = launch(name="plain")
    spec = plain.spec
    expected = replace(spec.expected, techniques={technique: True})
    plain.close()

    instance = launch(expected=expected, argv=(*spec.argv, *options))
    assert instance.ready()["active"] == {technique: True}
    instance.close()

    instance = launch(name="without", expected=expected)
    status = instance.until("degraded")
    assert status["active"] == {technique: False}
    assert status["reason"] == f"{technique}: asked for, but not active"


def test_slots_name_their_sessions_and_counters_move(launch: Launch, takes_sessions: bool) -> None:
    if not takes_sessions:
        pytest.skip("this engine has no --session-affinity (patch 0006)")
    plain = launch(name="plain")
    argv = (*plain.spec.argv, "--session-affinity", "--metrics")
    plain.close()
    instance = launch(argv=argv)
    instance.ready()
    before = instance.status["counters"]
    assert instance.complete(session_id="ada")[0] == 200
    status = instance.status
    while status["counters"] == before:  # at most a moment: answers to `status` are kept for a quarter of a second
        status = instance.status
    assert status["counters"]["predicted_tokens"] >= before["predicted_tokens"] + 4
    assert "ada" in [slot["session"] for slot in status["slots"]]


def test_adapters_are_scaled_anew_without_a_restart(launch: Launch, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.gguf"
    _write_adapter(adapter)
    plain = launch(name="plain")
    argv = plain.spec.argv
    plain.close()
    instance = launch(argv=(*argv, "--lora-scaled", f"{adapter}:1"))
    instance.ready()
    engine = instance.engine
    assert instance.http("GET", "/lora-adapters")[1][0]["scale"] == 1.0
    fresh = replace(instance.spec, argv=(*argv, "--lora-scaled", f"{adapter}:0.25"))
    answer = instance.client.ask({"do": "reload", "spec": fresh.as_json()})
    assert answer["reload"]["way"] == "at-once"
    assert instance.http("GET", "/lora-adapters")[1][0]["scale"] == 0.25
    assert instance.engine == engine


def _write_adapter(path: Path) -> None:
    """A LoRA of rank 1 on one matrix of SmolLM2-135M (hidden size 576)."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    for part, shape in (("a", (1, 576)), ("b", (576, 1))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", np.full(shape, 0.01, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
