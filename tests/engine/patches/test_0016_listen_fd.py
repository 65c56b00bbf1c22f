"""0016: an engine on the supervisor's socket. Nobody is refused while engines crash, load and hand over."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import Server

ARGS = ("-c", 1024, "-np", 4, "-kvu")


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("--listen-fd")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        bound.listen(1024)
        bound.set_inheritable(True)
        yield bound


Launch = Callable[..., Server]


@pytest.fixture
def launch(start: Callable[..., Server], listener: socket.socket) -> Launch:
    def run(*args: object, wait: bool = True) -> Server:
        server = start(
            *ARGS,
            "--listen-fd",
            listener.fileno(),
            *args,
            port=listener.getsockname()[1],
            pass_fds=(listener.fileno(),),
            wait=False,
        )
        if wait:  # connections queue up until the model answers: one request is the readiness probe
            assert server.get("/health")[0] == 200
        return server

    return run


class Clients:
    """Eight threads that connect anew for each request, and what became of them."""

    def __init__(self, port: int, path: str = "/props") -> None:
        self.port, self.path = port, path
        self.outcomes: Counter[str] = Counter()
        self.longest = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(8)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.request("GET", self.path)
                outcome = str(connection.getresponse().read() and 200)
            except ConnectionRefusedError:
                outcome = "refused"
            except (ConnectionResetError, BrokenPipeError, http.client.HTTPException):
                outcome = "reset"
            except TimeoutError:
                outcome = "timeout"
            finally:
                connection.close()
            with self._lock:
                self.outcomes[outcome] += 1
                self.longest = max(self.longest, time.monotonic() - begin)
            time.sleep(0.01)

    def end(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        return self.outcomes


def test_connections_wait_for_the_model(launch: Launch, listener: socket.socket, tmp_path: Path) -> None:
    control = tmp_path / "c.sock"
    with socket.create_connection(listener.getsockname()) as early:  # nobody serves yet: it queues
        early.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        launch("--host", control, wait=False)
        early.settimeout(60)
        answer = early.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200"), answer  # and never a 503 "Loading model"


def test_a_unix_socket_beside_it_serves_health_while_loading(launch: Launch, tmp_path: Path) -> None:
    control = tmp_path / "c.sock"
    server = launch("--host", control, wait=False)
    seen = []
    deadline = time.monotonic() + 60
    while (not seen or seen[-1] != 200) and time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(control))
                probe.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                seen.append(int(probe.recv(64).split()[1]))
            except (OSError, IndexError):
                pass
        time.sleep(0.002)
    assert seen[-1] == 200
    assert 503 in seen, "the load was never seen from the unix socket"
    assert server.get("/health")[0] == 200


def test_crashes_refuse_nobody(launch: Launch, listener: socket.socket) -> None:
    server = launch()
    clients = Clients(listener.getsockname()[1])
    for _ in range(5):
        time.sleep(0.3)
        server.kill()
        server = launch(wait=False)
    time.sleep(1)
    outcomes = clients.end()
    assert outcomes["refused"] == 0 and outcomes["timeout"] == 0, outcomes
    # what a dying engine had already taken is lost: at most what its 8 clients had open, each time
    assert outcomes["reset"] <= 5 * 8, outcomes
    assert outcomes["200"] > 100, outcomes


def test_hand_overs_lose_nobody(launch: Launch, listener: socket.socket, tmp_path: Path) -> None:
    server = launch()
    clients = Clients(listener.getsockname()[1])
    for i in range(5):
        control = tmp_path / f"{i}.sock"
        following = launch("--host", control, wait=False)
        while b" 200 " not in ask(control):
            time.sleep(0.01)
        server.signal(signal.SIGUSR1)
        assert server.wait() == 0
        server = following
    outcomes = clients.end()
    assert set(outcomes) == {"200"}, outcomes
    assert clients.longest < 2


def ask(control: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(control))
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return probe.recv(64)
        except OSError:
            return b""


def test_a_drain_finishes_streams_and_takes_no_more(launch: Launch, listener: socket.socket) -> None:
    server = launch()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": "Once upon a time", "n_predict": 150, "ignore_eos": True, "stream": True, "temperature": 0}
    connection.request("POST", "/completion", json.dumps(body))
    stream = connection.getresponse()
    first = stream.read1()
    server.signal(signal.SIGUSR1)
    time.sleep(0.3)
    with socket.create_connection(listener.getsockname()) as late:
        late.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = stream.read()  # to the end: an incomplete stream raises
        assert server.wait() == 0
        launch(wait=False)
        late.settimeout(60)
        assert late.recv(64).startswith(b"HTTP/1.1 200")  # the next engine has answered
    events = [json.loads(line[6:]) for line in (first + rest).decode().splitlines() if line.startswith("data: {")]
    assert events[-1]["stop"] is True and events[-1]["tokens_predicted"] == 150


def test_a_kept_alive_client_is_sent_on(launch: Launch) -> None:
    server = launch()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/props")
    connection.getresponse().read()
    begin = time.monotonic()
    server.signal(signal.SIGUSR1)
    time.sleep(0.2)
    connection.request("GET", "/props")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200 and answer.getheader("Connection") == "close"
    assert server.wait() == 0
    assert time.monotonic() - begin < 3


def test_an_idle_kept_alive_client_does_not_hold_a_drain_up(launch: Launch) -> None:
    server = launch()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/props")
    connection.getresponse().read()
    begin = time.monotonic()
    server.signal(signal.SIGUSR1)
    assert server.wait() == 0
    assert time.monotonic() - begin < 2


def test_term_ends_a_drain(launch: Launch) -> None:
    server = launch("--context-shift", "-c", 512, "-np", 1)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/completion", json.dumps({"prompt": "Once", "n_predict": 100_000, "ignore_eos": True}))
    time.sleep(0.5)
    server.signal(signal.SIGUSR1)
    time.sleep(0.5)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 0.5


def test_the_socket_outlives_a_stop(launch: Launch, listener: socket.socket) -> None:
    assert launch().stop() == 0
    with socket.create_connection(listener.getsockname(), timeout=5):
        pass  # still listening: the stop has closed the engine's descriptor only
    assert launch().get("/health")[0] == 200


def test_what_is_no_listener_is_refused_by_name(start: Callable[..., Server], tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as plain, socket.socket() as unbound:
        for descriptor, words in ((plain.fileno(), "is not a socket"), (unbound.fileno(), "is not a listening")):
            server = start("--listen-fd", descriptor, wait=False, pass_fds=(descriptor,))
            assert server.wait() == 1
            assert words in server.text()
    for value in ("x", "2", "7x", ""):
        server = start("--listen-fd", value, wait=False)
        assert server.wait() == 1
        assert "listen-fd" in server.text()
