from __future__ import annotations

import io

import pytest

from launcher.supervise.view import View


def shown(*events: dict[str, object], records: tuple[dict[str, object], ...] = ()) -> list[str]:
    out = io.StringIO()
    view = View("agents", "coder", out)
    for event in events:
        view.event(event)
    for record in records:
        view.record(record)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def state(now: str, was: str, **more: object) -> dict[str, object]:
    return {"event": "state", "state": now, "was": was, "url": "http://127.0.0.1:8080", "cause": "", **more}


def test_the_way_up_ends_with_what_to_paste() -> None:
    lines = shown(
        {"event": "spawn", "pid": 1, "model_bytes": 98362432},
        {"event": "progress", "fraction": 0.5, "bytes": 49181216},  # no bar without a terminal
        state("ready", "loading"),
    )
    assert lines[0].startswith("load      agents  93.8 MiB")
    assert lines[1] == "ready     http://127.0.0.1:8080"
    assert lines[2].strip() == (
        "curl http://127.0.0.1:8080/v1/chat/completions -d "
        '\'{"model": "coder", "messages": [{"role": "user", "content": "Hello!"}]}\''
    )


def test_trouble_is_told_with_its_class_and_what_comes_next() -> None:
    lines = shown(
        {"event": "exit", "class": "crash", "signal": 11, "code": None, "line": None},
        state("backoff", "ready", reason="crash: killed by SIGSEGV", next_try="2026-01-01T00:00:05Z"),
        state("failed", "loading", reason="bad-option: error: invalid argument: --x (…)"),
    )
    assert lines == [
        "ended     crash: signal 11",
        "backoff   crash: killed by SIGSEGV; next try 2026-01-01T00:00:05Z",
        "failed    bad-option: error: invalid argument: --x (…)",
    ]


def test_a_person_sees_warnings_but_not_those_that_mean_nothing_here() -> None:
    def line(level: str, text: str) -> dict[str, object]:
        return {"source": "engine", "level": level, "text": text}

    records = (
        line("info", "chatter"),
        line("warn", "security: no API key is set and CORS allows all origins"),
        line("error", "it is broken\nwith a tail"),
    )
    assert shown(state("ready", "degraded"), records=records)[-1] == "error     it is broken"
    assert not any("security" in text for text in shown(state("ready", "degraded"), records=records))
    public = state("ready", "degraded", url="http://192.0.2.1:8080")
    assert any("security" in text for text in shown(public, records=records))


@pytest.mark.parametrize(("columns", "width"), [(200, 78), (80, 78), (60, 59)])
def test_a_stage_line_does_not_wrap(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.supervise.view.columns", lambda _: columns)
    (line,) = shown({"event": "spawn", "pid": 1, "model_bytes": 98362432}, state("degraded", "loading", reason="slow"))[
        :1
    ]
    assert len(line) == width and line.endswith(" s")


def test_a_terminal_that_was_closed_ends_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    view = View("agents", "coder", Closed())
    view.event(state("ready", "loading"))
    view.event(state("draining", "ready", reason="SIGHUP"))


def test_what_is_asked_for_and_cannot_be_is_told() -> None:
    problem = "no metrics page on 127.0.0.1:9: port 9 on 127.0.0.1 is taken by pid 1 (x)"
    assert shown({"event": "problem", "reason": problem}) == [f"warn      {problem}"]
