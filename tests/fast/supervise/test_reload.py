from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.supervise.reload import judge
from launcher.supervise.replan import CannotReplan, replan
from launcher.supervise.spec import LaunchSpec

OLD = LaunchSpec("a", "/e", ("-m", "/m.gguf", "-c", "2048", "-ngl", "-1"), "/s", "/l", "/k", listen_fd=True)
LARGER = replace(OLD, argv=("-m", "/m.gguf", "-c", "4096", "-ngl", "-1", "-fa", "on"))


def test_nothing_changes() -> None:
    assert judge(OLD, replace(OLD, detached=True, socket="/other"), serving=True, beside=True).way == "nothing"


def test_the_supervisors_own_settings_interrupt_nothing() -> None:
    how = judge(OLD, replace(OLD, stop_timeout=30.0, restart="always"), serving=True, beside=False)
    assert how.way == "at-once"
    assert how.changes == ("stop_timeout: 10.0 -> 30.0", "restart: 'on-failure' -> 'always'")


def test_both_fit_beside_each_other() -> None:
    how = judge(OLD, LARGER, serving=True, beside=True)
    assert how.way == "hand-over"
    assert how.changes == ("-c: 2048 -> 4096", "-fa: not set -> on")


def test_they_do_not_fit() -> None:
    how = judge(OLD, LARGER, serving=True, beside=False)
    assert (how.way, "new connections wait" in how.interrupts) == ("restart", True)


def test_another_port_or_an_engine_without_the_patch_cannot_be_handed_over() -> None:
    for fresh in (replace(LARGER, port=9), replace(LARGER, listen_fd=False), replace(LARGER, host="::1")):
        how = judge(OLD, fresh, serving=True, beside=True)
        assert (how.way, "refused" in how.interrupts) == ("restart", True)


def test_what_follows_from_a_change_is_no_line_of_its_own() -> None:
    expected = replace(OLD.expected, per_slot=4096)
    assert judge(OLD, replace(LARGER, expected=expected), serving=True, beside=True).changes == (
        "-c: 2048 -> 4096",
        "-fa: not set -> on",
    )
    assert judge(OLD, replace(OLD, expected=expected), serving=True, beside=True).changes == (
        "what it must report to be ready",
    )


def test_a_new_plan_is_made_where_the_paths_of_sets_start_from(tmp_path: Path) -> None:
    spec = replace(OLD, replan=("sh", "-c", "pwd >&2; exit 1"), directory=str(tmp_path))
    with pytest.raises(CannotReplan, match=str(tmp_path)):
        asyncio.run(replan(spec, ()))


def test_scales_of_adapters_are_the_engines_to_change_while_it_runs() -> None:
    old = replace(OLD, argv=(*OLD.argv, "--lora-scaled", "/a:b.gguf:1,/c.gguf:0.5"))
    how = judge(
        old, replace(old, argv=(*OLD.argv, "--lora-scaled", "/a:b.gguf:0,/c.gguf:2")), serving=True, beside=False
    )
    assert (how.way, how.scales) == ("at-once", (0.0, 2.0))
    for argv in (
        (*OLD.argv, "--lora-scaled", "/other.gguf:1,/c.gguf:0.5"),
        (*LARGER.argv, "--lora-scaled", "/a:b.gguf:0,/c.gguf:2"),
        OLD.argv,
    ):
        assert judge(old, replace(old, argv=argv), serving=True, beside=False).way == "restart"
