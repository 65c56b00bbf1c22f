"""A second device (an RPC worker on the loopback): planned and there, planned and not there, lost while it serves."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import Instance, free_port

Launch = Callable[..., Instance]


@pytest.fixture
def worker(engine_server: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    program = engine_server.with_name("ggml-rpc-server")
    if not program.is_file():
        pytest.skip("no ggml-rpc-server beside this engine")
    port = free_port()
    with subprocess.Popen(
        [str(program), "-H", "127.0.0.1", "-p", str(port), "-t", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process, port
        process.kill()


def test_planned_and_there_then_lost(launch: Launch, worker: tuple[subprocess.Popen[bytes], int]) -> None:
    process, port = worker
    plain = launch(name="plain")
    spec = plain.spec
    plain.close()
    expected = replace(spec.expected, devices=("RPC0",))
    argv = (*spec.argv, "--rpc", f"127.0.0.1:{port}", "-ngl", "99")
    instance = launch(argv=argv, expected=expected)
    memory = {(line["item"], line["device"]): line["actual"] for line in instance.ready()["memory"]}
    assert memory[("kv", "RPC0")] > 0
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises((OSError, http.client.HTTPException)):
        instance.complete()
    status = instance.until("backoff", limit=20)
    assert status["last_exit"]["class"] in ("gpu-lost", "gpu-missing")
    ends = [event["class"] for event in instance.client.events() if event["event"] == "exit"]
    assert ends[0] == "gpu-lost"


def test_planned_and_not_there_is_never_ready(launch: Launch) -> None:
    """The engine itself says "offloaded 31/31 layers to GPU" here: only its buffers tell."""
    plain = launch(name="plain")
    expected = replace(plain.spec.expected, devices=("CUDA0",), gpu_layers=31)
    plain.close()
    instance = launch(expected=expected)
    status = instance.until("backoff")
    assert status["last_exit"]["class"] == "gpu-missing"
    assert "CUDA0 is planned" in status["reason"]
    assert "ready" not in [event.get("state") for event in instance.client.events()]
