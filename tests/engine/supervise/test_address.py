"""The listener that the supervisor holds (patch 0016): no client is refused, whatever happens to the engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.clients import Clients
from launcher.bench.instance import Instance

Launch = Callable[..., Instance]


@pytest.fixture(autouse=True)
def _needs_the_patch(takes_listeners: bool) -> Iterator[None]:
    if not takes_listeners:
        pytest.skip("this engine has no --listen-fd (patch 0016)")
    yield


def test_new_connections_wait_while_an_engine_restarts(launch: Launch, free_port: int) -> None:
    instance = launch(backoff=(0.0,), tally_limit=100)
    instance.ready()
    clients = Clients(free_port)
    for _ in range(3):
        engine = instance.engine
        os.kill(engine, signal.SIGKILL)
        instance.ready(but_not=engine)
        time.sleep(0.3)
    clients.finish()
    # a request that the engine had taken when it was killed is lost with it: reset, never refused
    assert clients.refused == 0, clients.failed
    assert clients.failed.total() <= 3 * 8
    assert clients.answered > 50


def test_a_hand_over_loses_nothing(launch: Launch, free_port: int) -> None:
    instance = launch()
    instance.ready()
    clients = Clients(free_port)
    for size in (4096, 2048, 4096):
        _reload(instance, size)
        time.sleep(0.3)
    clients.finish()
    assert not clients.failed
    assert clients.answered > 50
    assert instance.status["state"] == "ready"
    assert instance.status["slots"][0]["size"] == 4096
    assert instance.status["restarts"] == 0


def _reload(instance: Instance, size: int) -> None:
    spec = instance.spec
    expected = replace(spec.expected, total=size, per_slot=size)
    argv = tuple(
        str(size) if before == "-c" else word for before, word in zip(("", *spec.argv), spec.argv, strict=False)
    )
    fresh = replace(spec, argv=argv, expected=expected)
    engine = instance.engine
    since = instance.client.ask({"do": "reload", "spec": fresh.as_json(), "beside": True})
    assert since["reload"]["way"] == "hand-over", since
    instance.ready(but_not=engine)


def test_a_reload_that_fails_leaves_the_old_engine(launch: Launch) -> None:
    instance = launch()
    instance.ready()
    engine = instance.engine
    fresh = replace(instance.spec, argv=(*instance.spec.argv, "--nonsense"))
    answer = instance.client.ask({"do": "reload", "spec": fresh.as_json(), "beside": True})
    seen = next(
        event
        for event in instance.client.events(follow=True, since=answer["seq"] - 1)
        if event["event"] == "reload" and event["stage"] != "begin"
    )
    assert (seen["stage"], seen["reason"]) == ("failed", "error: invalid argument: --nonsense")
    assert instance.engine == engine
    assert instance.complete()[0] == 200


def test_idle_stop_and_the_connection_that_wakes(launch: Launch) -> None:
    instance = launch(idle_stop=2.0)
    instance.ready()
    engine = instance.engine
    status = instance.until("stopped", limit=20)
    assert status["engine_pid"] is None
    assert status["reason"] == "idle: the next connection starts it"
    assert instance.complete()[0] == 200
    assert instance.ready(but_not=engine)["restarts"] == 0


def test_503_while_a_long_pause_lasts(launch: Launch) -> None:
    instance = launch(backoff=(30.0,))
    instance.ready()
    os.kill(instance.engine, signal.SIGKILL)
    instance.until("backoff")
    time.sleep(0.2)
    code, answer = instance.http("GET", "/v1/models")
    assert code == 503
    assert "crash" in answer["error"]["message"]
    instance.client.restart()
    instance.ready()
    assert instance.complete()[0] == 200


def test_a_unix_socket_as_the_public_address(launch: Launch) -> None:
    instance = launch(name="u")
    path = str(Path(instance.spec.socket).with_name("public.sock"))
    instance.close()
    instance = launch(name="v", host=path)
    assert instance.ready()["url"] == f"unix:{path}"
    engine = instance.engine
    os.kill(engine, signal.SIGKILL)
    instance.ready(but_not=engine)
    assert os.stat(path).st_mode & 0o077 == 0  # noqa: PTH116
