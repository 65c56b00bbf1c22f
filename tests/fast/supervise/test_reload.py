from __future__ import annotations

from dataclasses import replace

from launcher.supervise.reload import judge
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
