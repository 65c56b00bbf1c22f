"""Start, stop, status, and what holds the engine to its supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launcher.bench.instance import Instance, gone
from launcher.supervise import proc
from launcher.supervise.spec import Expected

Launch = Callable[..., Instance]


def test_ready_means_ready(launch: Launch) -> None:
    instance = launch()
    status = instance.ready()
    assert status["reason"] is None
    assert [slot["size"] for slot in status["slots"]] == [2048, 2048]
    kv = next(line for line in status["memory"] if line["item"] == "kv")
    assert kv["actual"] == 45 << 20  # 30 layers × 2048 cells × 2 × 192 × 2 bytes
    code, answer = instance.complete()
    assert code == 200
    assert answer["tokens_predicted"] == 4
    states = [event["state"] for event in instance.client.events() if event["event"] == "state"]
    assert states == ["starting", "loading", "ready"]


def test_short_of_the_plan_is_degraded_with_the_list(launch: Launch) -> None:
    status = launch(expected=Expected(slots=4, per_slot=2048, alias="other")).until("degraded")
    assert status["reason"] == "slots: planned 4, the engine has 2; alias: planned other, the engine has t"


def test_strict_makes_that_a_failure(launch: Launch) -> None:
    instance = launch(expected=Expected(slots=4), strict=True)
    assert instance.ended() == 13
    assert "slots: planned 4, the engine has 2" in instance.output.read_text()


def test_down_ends_the_engine_and_then_itself(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    engine = instance.engine
    instance.client.stop()
    assert not proc.is_alive(engine)
    assert instance.ended(5) == 0
    assert not Path(instance.spec.socket).exists()
    status = json.loads((Path(instance.spec.state_dir) / "status.json").read_text())
    assert status["state"] == "stopped"


def test_kill_9_of_the_supervisor_leaves_no_engine(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    engine = instance.engine
    os.kill(instance.pid, signal.SIGKILL)
    instance.process.wait()
    assert gone(engine, 2.0)


def test_kill_9_of_supervisor_and_a_wrapped_engine(launch: Launch, engine_server: Path, tmp_path: Path) -> None:
    """No death signal reaches a grandchild: the keeper does. And a stop lets the real one end by itself."""
    wrapper = tmp_path / "wrapped"
    wrapper.write_text(f'#!/bin/sh\n"{engine_server}" "$@"\necho over\n')
    wrapper.chmod(0o755)
    instance = launch(binary=str(wrapper))
    instance.ready()
    children = proc.descendants(instance.pid)
    (leader,) = [pid for pid in children if f"{wrapper}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    family = proc.descendants(leader)
    assert family == [leader, instance.engine]  # status names the real one
    os.kill(instance.pid, signal.SIGKILL)
    instance.process.wait()
    assert all(gone(pid) for pid in family)


def test_a_stop_while_it_loads(launch: Launch) -> None:
    instance = launch()
    instance.until("starting", "loading", "ready")
    instance.client.stop()
    assert instance.ended(5) == 0


def test_a_second_of_the_same_name_says_where_the_first_came_from(launch: Launch) -> None:
    first = launch(profile="/p/first.toml")
    first.ready()
    second = launch(profile="/p/second.toml")
    assert second.ended(10) == 15
    assert "running already, from /p/first.toml" in second.output.read_text()
    assert first.status["state"] == "ready"


def test_a_taken_port_names_its_owner(launch: Launch, free_port: int) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", free_port))
        holder.listen()
        instance = launch()
        assert instance.ended(10) == 16
        assert f"port {free_port} on 127.0.0.1 is taken by pid {os.getpid()}" in instance.output.read_text()


def test_port_0_is_kept_across_restarts(launch: Launch) -> None:
    instance = launch(port=0)
    url = instance.ready()["url"]
    engine = instance.engine
    instance.client.restart()
    assert instance.ready(but_not=engine)["url"] == url
    assert instance.complete()[0] == 200


def test_the_engine_inherits_no_options_of_its_own(launch: Launch) -> None:
    instance = launch(
        env_of_supervisor={"LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_N_PREDICT": "", "AIP_MODE": "PREDICTION"},
        env={"KVL_TEST": "1"},
    )
    instance.ready()
    environ = Path(f"/proc/{instance.engine}/environ").read_text()
    assert "LLAMA_" not in environ
    assert "AIP_" not in environ
    assert "KVL_TEST=1" in environ


def test_secrets_go_by_file(launch: Launch, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsesame\n")
    plain = launch(name="plain")
    argv = (*plain.spec.argv, "--api-key-file", str(keys))
    plain.close()
    instance = launch(api_key_file=str(keys), argv=argv)
    instance.ready()
    assert instance.complete()[0] == 401
    command = Path(f"/proc/{instance.engine}/cmdline").read_bytes()
    assert b"sesame" not in command
    assert "sesame" not in (Path(instance.spec.log_dir) / "log.jsonl").read_text()


def test_status_answers_while_the_engine_is_stopped(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    engine = instance.engine
    os.kill(engine, signal.SIGSTOP)
    try:
        times = []
        for _ in range(5):
            begin = time.monotonic()
            instance.status  # noqa: B018
            times.append(time.monotonic() - begin)
        assert sorted(times)[2] <= 0.2
        status = instance.until("degraded", limit=4)
        assert "SIGSTOP" in status["reason"]
    finally:
        os.kill(engine, signal.SIGCONT)
    assert instance.until("ready", limit=6)["engine_pid"] == engine


def test_the_control_socket_comes_back(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    Path(instance.spec.socket).unlink()
    end = time.monotonic() + 10
    while not Path(instance.spec.socket).exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert instance.status["state"] == "ready"


def test_logs_and_events_are_followed(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    seen: list[str] = []
    follower = threading.Thread(
        target=lambda: seen.extend(
            event["state"] for event in instance.client.events(follow=True, since=10**9) if event["event"] == "state"
        )
    )
    follower.start()
    lines = list(instance.client.logs(lines=50))
    assert any("model loaded" in line["text"] for line in lines)
    time.sleep(0.2)
    instance.client.stop()
    follower.join(5)
    assert not follower.is_alive()
    assert seen[-2:] == ["draining", "stopped"]


def test_two_interrupts(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    engine = instance.engine
    os.kill(engine, signal.SIGSTOP)  # so that the first one doesn't end it
    os.kill(instance.pid, signal.SIGINT)
    instance.until("draining")
    os.kill(instance.pid, signal.SIGINT)
    assert instance.ended(5) == 130
    assert gone(engine)


def test_a_stop_waits_for_what_is_being_saved(launch: Launch, tmp_path: Path) -> None:
    """A stand-in writes for 2.5 s after TERM with a stop limit of 1 s: it ends by itself. One that idles is killed."""
    for name, work in (
        ("saves", "dd if=/dev/zero of=state bs=4M count=1 oflag=append conv=notrunc,fsync"),
        ("idles", ":"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        engine = folder / "engine"
        engine.write_text(
            f"#!/bin/sh\ncd {folder}\nsave() {{ for i in $(seq 25); do {work} 2>/dev/null; sleep 0.1; done; "
            "echo whole > saved; exit 0; }\ntrap save TERM\nwhile :; do sleep 0.05; done\n"
        )
        engine.chmod(0o755)
        instance = launch(name=name, binary=str(engine), stop_timeout=1.0)
        instance.until("loading")
        time.sleep(0.3)
        os.kill(instance.pid, signal.SIGTERM)
        assert instance.ended(15) == 0
        assert (folder / "saved").exists() is (name == "saves"), name
