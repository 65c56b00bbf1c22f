"""0014: the engine ends at once when it is told to, whatever its clients do."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from .engine import Server, words

LIMIT = 0.5  # seconds from SIGTERM to the exit


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("0014")


class Client(threading.Thread):
    """One POST on a thread of its own; keeps what came back."""

    def __init__(self, server: Server, **body: Any) -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.body = {"n_predict": 100_000, "ignore_eos": True, "temperature": 0, **body}
        self.status = 0
        self.raw = ""
        self.start()

    def run(self) -> None:
        self.connection.request("POST", "/completion", json.dumps(self.body))
        answer = self.connection.getresponse()
        self.status = answer.status
        chunks = []
        try:
            while piece := answer.read1():
                chunks.append(piece)
        except (http.client.HTTPException, OSError):
            pass
        self.raw = b"".join(chunks).decode()


def busy(server: Server) -> None:
    deadline = time.monotonic() + 20
    while not any(slot["is_processing"] for slot in server.get("/slots")[1]):
        assert time.monotonic() < deadline, "the request never reached a slot"
        time.sleep(0.02)


def stop_timed(server: Server) -> float:
    begin = time.monotonic()
    assert server.stop() == 0
    return time.monotonic() - begin


def test_a_generating_request_gets_an_error(start: Callable[..., Server]) -> None:
    server = start("-c", 1024, "-np", 1, "--context-shift")
    client = Client(server, prompt="Once upon a time")
    busy(server)
    assert stop_timed(server) < LIMIT
    client.join(5)
    assert client.status == 503
    assert "shutting down" in json.loads(client.raw)["error"]["message"]


def test_a_deferred_request_gets_an_error_too(start: Callable[..., Server]) -> None:
    server = start("-c", 1024, "-np", 1, "--context-shift")
    clients = [Client(server, prompt=f"Story {i}") for i in range(3)]
    busy(server)
    assert stop_timed(server) < LIMIT
    for client in clients:
        client.join(5)
    assert [client.status for client in clients] == [503] * 3


def test_a_stream_ends_with_an_error_event(start: Callable[..., Server]) -> None:
    server = start("-c", 1024, "-np", 1, "--context-shift")
    client = Client(server, prompt="Once upon a time", stream=True)
    busy(server)
    time.sleep(0.3)
    assert stop_timed(server) < LIMIT
    client.join(5)
    assert client.status == 200
    assert '"error"' in client.raw and "shutting down" in client.raw


def test_a_long_prompt_is_not_waited_for(start: Callable[..., Server]) -> None:
    server = start("-c", 8192, "-np", 1, "-b", 4096, "-ub", 512)
    client = Client(server, prompt=words(4000))
    busy(server)
    time.sleep(0.5)
    assert stop_timed(server) < LIMIT
    client.join(5)
    assert client.status == 503


def test_half_a_request_does_not_hold_the_exit_up(start: Callable[..., Server]) -> None:
    server = start("-c", 512, "-np", 1)
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.2)
        assert stop_timed(server) < LIMIT


def test_without_requests_the_exit_is_as_before(start: Callable[..., Server]) -> None:
    server = start("-c", 512, "-np", 1)
    server.complete("Hello", n=4)
    assert stop_timed(server) < LIMIT
