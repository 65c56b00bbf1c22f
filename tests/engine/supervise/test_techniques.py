"""Requested and active: each technique is asked of the real engine, with its option and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
