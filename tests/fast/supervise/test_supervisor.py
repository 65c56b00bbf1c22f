"""The whole resident process around an engine that misbehaves as no real one can be made to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.bench.instance import Instance, free_port, gone, wait_for
from launcher.supervise import ports, proc
from launcher.supervise.spec import Expected, LaunchSpec

if TYPE_CHECKING:
    from conftest import Stage


def test_up_and_down(stage: Stage) -> None:
    instance = stage.launch()
    status = instance.ready()
    assert status["memory"] == [
        {"item": "weights", "device": "host", "planned": None, "actual": 1 << 20},
        {"item": "kv", "device": "host", "planned": None, "actual": 2 << 20},
    ]
    assert instance.http("GET", "/props")[0] == 200
    instance.client.stop()
    assert instance.ended() == 0


def test_a_hung_queue_whose_health_says_ok(stage: Stage) -> None:
    instance = stage.launch(hang_timeout=1.0)
    instance.ready()
    engine = instance.engine
    stage.bend("hang")
    assert "does not answer" in instance.until("degraded", limit=4)["reason"]
    begin = time.monotonic()
    instance.status  # noqa: B018
    assert time.monotonic() - begin < 0.2
    while instance.status["state"] == "degraded":
        time.sleep(0.05)
    stage.straighten("hang")
    status = instance.ready(but_not=engine)
    assert status["last_exit"]["class"] == "hung"


def test_a_slot_at_work_in_which_nothing_moves(stage: Stage) -> None:
    instance = stage.launch(hang_timeout=1.5)
    instance.ready()
    engine = instance.engine
    stage.bend("busy")
    instance.until("draining", "starting", "loading", limit=12)
    stage.straighten("busy")
    status = instance.ready(but_not=engine)
    assert status["last_exit"]["class"] == "hung"
    assert "nothing has moved" in status["last_exit"]["line"]


def test_a_batch_as_long_as_those_before_is_no_hang(stage: Stage) -> None:
    """The limit grows with what was seen: 3.5 s at first, then ten times the two seconds that it once stood still."""
    instance = stage.launch(hang_timeout=3.5, hang_factor=10.0)
    instance.ready()
    engine = instance.engine
    for n in range(3):
        stage.bend("busy", str(n))
        time.sleep(2)
    time.sleep(6)
    assert (instance.status["state"], instance.engine) == ("ready", engine)


def test_a_pause_of_everything_is_no_hang(stage: Stage) -> None:
    """What `docker pause` does: at the first look after it the engine has not moved for longer than the limit."""
    instance = stage.launch(hang_timeout=4.0)
    instance.ready()
    engine = instance.engine
    stage.bend("busy")
    time.sleep(1.2)
    for pid in (instance.pid, engine):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6)
    for pid in (instance.pid, engine):
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.5)
    stage.straighten("busy")
    assert (instance.status["state"], instance.engine) == ("ready", engine)


def test_no_token_is_not_ready(stage: Stage) -> None:
    stage.bend("no-token")
    status = stage.launch().until("degraded")
    assert status["reason"] == "no token was generated: /completion answered without one"


def test_the_first_error_line_is_the_reason(stage: Stage) -> None:
    stage.bend("at-start", "1\nerror: invalid argument: --x\nusage:\n")
    instance = stage.launch()
    assert instance.ended() == 13
    assert "bad-option: error: invalid argument: --x" in instance.output.read_text()
    record = json.loads((stage.home / "state" / "last-exit.json").read_text())
    assert record["class"] == "bad-option"
    assert any("usage:" in line["text"] for line in record["log"])


def test_an_address_that_is_not_ours(stage: Stage) -> None:
    """With a listener of ours, and with an engine that binds by itself."""
    for held in (True, False):
        instance = stage.launch(host="192.0.2.1", listen_fd=held)
        assert instance.ended() == 10
        assert "address-unusable: 192.0.2.1 is not an address of this machine" in instance.output.read_text()


def test_an_unknown_failure_is_tried_three_times(stage: Stage) -> None:
    stage.bend("at-start", "3\nsomething odd\n")
    instance = stage.launch(backoff=(0.0, 0.05))
    assert instance.ended() == 14
    assert instance.output.read_text().count("planning -> starting") == 1
    assert instance.output.read_text().count("backoff -> starting") == 2
    assert "3 starts in a row failed" in instance.output.read_text()


def test_memory_walks_the_fallback_list_by_planning_anew(stage: Stage) -> None:
    """The replan command is a stand-in: it notes what it is to give up, and mends the engine at the second step."""
    stage.bend("at-start", "1\nggml_aligned_malloc: insufficient memory (attempted to allocate 1.00 MB)\n")
    planner = stage.home / "planner"
    fresh = stage.spec(expected=Expected(slots=1, per_slot=256, alias="f"), argv=("-c", "256", "--alias", "f"))
    planner.write_text(
        f"#!{sys.executable} -S\nimport pathlib, sys\nhome = pathlib.Path({str(stage.home)!r})\n"
        "with (home / 'asked').open('a') as file:\n    print(*sys.argv[1:], file=file)\n"
        "if 'context' in sys.argv:\n    (home / 'at-start').unlink(missing_ok=True)\n"
        f"print({json.dumps(json.dumps(fresh.as_json()))})\n"
    )
    planner.chmod(0o755)
    instance = stage.launch(replan=(str(planner), "plan"), fallback=("tier", "context"), backoff=(0.0, 0.05))
    status = instance.until("ready", limit=20)
    assert status["given_up"] == ["tier", "context"]
    assert status["slots"][0]["size"] == 256
    asked = (stage.home / "asked").read_text().splitlines()
    assert asked == ["plan --give-up tier", "plan --give-up tier --give-up context"]


def test_what_was_given_up_comes_back_when_it_fits_and_not_before(stage: Stage) -> None:
    """The stand-in refuses to plan with all of it until a file says that there is room."""
    whole = stage.spec()
    less = stage.spec(expected=Expected(slots=1, per_slot=256, alias="f"), argv=("-c", "256", "--alias", "f"))
    planner = stage.home / "planner"
    planner.write_text(
        f"#!{sys.executable} -S\nimport pathlib, sys\nhome = pathlib.Path({str(stage.home)!r})\n"
        "if 'context' in sys.argv:\n    (home / 'at-start').unlink(missing_ok=True)\n"
        f"    print({json.dumps(json.dumps(less.as_json()))})\n"
        f"elif (home / 'room').exists():\n    print({json.dumps(json.dumps(whole.as_json()))})\n"
        "else:\n    sys.exit('it does not fit')\n"
    )
    planner.chmod(0o755)
    stage.bend("at-start", "1\ninsufficient memory\n")
    instance = stage.launch(replan=(str(planner),), fallback=("context",), backoff=(0.0, 0.05), port=whole.port)
    assert instance.until("ready", limit=20)["given_up"] == ["context"]
    engine = instance.engine
    instance.client.restart()
    status = instance.ready(but_not=engine)
    assert (status["given_up"], status["slots"][0]["size"]) == (["context"], 256)
    stage.bend("room")
    engine = instance.engine
    instance.client.restart()
    status = instance.ready(but_not=engine)
    assert (status["given_up"], status["slots"][0]["size"]) == ([], 512)


def test_a_crash_of_all_leaves_a_leftover_that_the_next_one_ends(stage: Stage) -> None:
    instance = stage.launch()
    instance.ready()
    engine = instance.engine
    family = proc.descendants(instance.pid)
    os.kill(engine, signal.SIGSTOP)  # a stopped engine survives neither tie, but it shows that the next start waits
    for pid in family:
        if pid != engine:
            os.kill(pid, signal.SIGKILL)
    instance.process.wait()
    assert gone(engine)
    again = stage.launch()
    again.ready()


def test_the_state_folder_is_removed_under_it(stage: Stage) -> None:
    """With it went the socket of our probes: they go to the public address, and nothing is taken for hung."""
    instance = stage.launch(hang_timeout=1.0)
    instance.ready()
    engine = instance.engine
    shutil.rmtree(stage.home / "state")
    time.sleep(3)
    status = instance.status
    assert (status["state"], status["engine_pid"]) == ("ready", engine)
    os.kill(engine, signal.SIGKILL)
    instance.ready(but_not=engine)
    assert json.loads((stage.home / "state" / "status.json").read_text())["restarts"] == 1


def test_events_reach_a_command(stage: Stage) -> None:
    sink = stage.home / "events"
    instance = stage.launch(on_event=("/bin/sh", "-c", f"cat >> {sink}"))
    instance.ready()
    instance.client.stop()
    instance.ended()
    events = [json.loads(line) for line in sink.read_text().splitlines()]
    states = {event["state"] for event in events if event["event"] == "state"}
    assert {"starting", "ready", "draining", "stopped"} <= states
    assert all(event["schema"] == 1 and event["name"] == "f" for event in events)


def test_systemd_is_told(stage: Stage) -> None:
    address = stage.home / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(address))
        ear.settimeout(10)
        instance = Instance(stage.spec(), env={"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "400000"})
        stage.started.append(instance)
        heard = ""
        while "READY=1" not in heard or "WATCHDOG=1" not in heard:
            heard += ear.recv(4096).decode() + "\n"
        assert "STATUS=loading" in heard
        assert heard.index("STATUS=loading") < heard.index("READY=1")
        instance.client.stop()
        while "STOPPING=1" not in heard:
            heard += ear.recv(4096).decode() + "\n"


def test_a_metrics_page_and_where_a_reload_moves_it(stage: Stage) -> None:
    port = free_port()
    instance = stage.launch(metrics=f"127.0.0.1:{port}")
    instance.ready()
    engine = instance.engine
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        assert 'kvlaunch_state{name="f",state="ready"} 1' in _page(client)

    page = stage.home / "page.sock"
    assert _reload(instance, replace(instance.spec, metrics=str(page))) == "at-once"
    wait_for(page.exists)
    assert page.stat().st_mode & 0o077 == 0
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(page))
        assert "kvlaunch_starts_total" in _page(client)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert instance.engine == engine

    with ports.bind("127.0.0.1", port):
        assert _reload(instance, replace(instance.spec, metrics=f"127.0.0.1:{port}")) == "at-once"
        said = f"no metrics page on 127.0.0.1:{port}: port {port} on 127.0.0.1 is taken by pid {os.getpid()}"
        wait_for(lambda: any(said in str(event.get("reason")) for event in instance.client.events()))
    assert instance.status["state"] == "ready"


def _page(client: socket.socket) -> str:
    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    with client.makefile("rb") as answer:
        return answer.read().decode()


def test_other_timeouts_and_commands_hold_at_once(stage: Stage) -> None:
    """The running engine is judged by the new limit, and events go to the new command."""
    sink = stage.home / "events"
    instance = stage.launch()
    instance.ready()
    engine = instance.engine
    fresh = replace(instance.spec, hang_timeout=1.5, on_event=("/bin/sh", "-c", f"cat >> {sink}"))
    assert _reload(instance, fresh) == "at-once"
    stage.bend("busy")
    wait_for(lambda: instance.status["engine_pid"] != engine, limit=12)
    stage.straighten("busy")
    assert instance.ready()["last_exit"]["class"] == "hung"
    wait_for(lambda: '"hung"' in sink.read_text())


def _reload(instance: Instance, fresh: LaunchSpec, *, beside: bool = False, dry_run: bool = False) -> str:
    answer = instance.client.ask({"do": "reload", "spec": fresh.as_json(), "beside": beside, "dry_run": dry_run})
    way = answer["reload"]["way"]
    assert isinstance(way, str)
    return way


def test_reload_takes_the_way_that_interrupts_least(stage: Stage) -> None:
    instance = stage.launch()
    instance.ready()
    engine, spec = instance.engine, instance.spec
    larger = replace(spec, argv=("-c", "1024", "--alias", "f"), expected=Expected(slots=1, per_slot=1024, alias="f"))

    assert _reload(instance, larger, dry_run=True) == "restart"
    assert _reload(instance, replace(spec, stop_timeout=3.0)) == "at-once"
    assert instance.engine == engine

    assert _reload(instance, larger, beside=True) == "hand-over"
    status = instance.ready(but_not=engine)
    assert (status["slots"][0]["size"], status["restarts"]) == (1024, 0)
    assert gone(engine)
    assert instance.http("GET", "/props")[0] == 200

    engine = instance.engine
    assert _reload(instance, spec) == "restart"
    assert instance.ready(but_not=engine)["slots"][0]["size"] == 512
    assert instance.status["url"].endswith(f":{spec.port}")

    engine = instance.engine
    moved = replace(spec, port=free_port())
    assert _reload(instance, moved, beside=True) == "restart"
    assert instance.ready(but_not=engine)["url"].endswith(f":{moved.port}")
    assert instance.http("GET", "/props")[0] == 200


def test_a_candidate_that_is_not_what_was_planned_is_sent_away_when_strict(stage: Stage) -> None:
    instance = stage.launch(strict=True)
    instance.ready()
    engine = instance.engine
    fresh = replace(instance.spec, argv=("-c", "256", "--alias", "f"))  # but 512 are still expected
    assert _reload(instance, fresh, beside=True) == "hand-over"
    end = time.monotonic() + 10
    while not any(event.get("stage") == "failed" for event in instance.client.events()) and time.monotonic() < end:
        time.sleep(0.05)
    (failed,) = [event for event in instance.client.events() if event.get("stage") == "failed"]
    assert failed["reason"] == "context per slot: planned 512, the engine has 256"
    assert instance.engine == engine
    assert instance.status["state"] == "ready"


def test_the_engine_dies_while_another_loads(stage: Stage) -> None:
    """The candidate is sent away, and the policy starts the engine that was: no two, no none."""
    instance = stage.launch()
    instance.ready()
    engine = instance.engine
    stage.bend("hang")  # so that the candidate is not ready at once
    assert _reload(instance, replace(instance.spec, argv=("-c", "1024", "--alias", "f")), beside=True) == "hand-over"
    time.sleep(0.3)
    os.kill(engine, signal.SIGKILL)
    time.sleep(0.3)
    stage.straighten("hang")
    status = instance.ready(but_not=engine)
    assert status["slots"][0]["size"] == 512
    time.sleep(0.3)
    assert len([pid for pid in proc.descendants(instance.pid) if "fake_engine" in _words(pid)]) == 1


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
