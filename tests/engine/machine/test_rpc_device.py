"""A real rpc worker as the second device: listed by the engine, merged, measured, kept."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engine.store import Engine
from launcher.errors import EngineRefused
from launcher.machine.engine_copies import PROGRAM, measure
from launcher.machine.engine_devices import merge, parse_devices
from launcher.machine.engine_process import check_worker, list_devices
from launcher.machine.measuring import Program
from launcher.machine.measuring import measure as measure_machine
from launcher.machine.probe import probe
from launcher.machine.types import DeviceKind

MIB = 1 << 20


@pytest.fixture
def worker(engine: Engine, free_port: int) -> Iterator[str]:
    """`host:port` of a worker that answers."""
    endpoint = f"127.0.0.1:{free_port}"
    command = [str(engine.rpc_server), "-H", "127.0.0.1", "-p", str(free_port), "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                try:
                    check_worker(endpoint)
                    break
                except EngineRefused:
                    time.sleep(0.1)
            yield endpoint
        finally:
            process.kill()


def test_the_engine_lists_the_worker(engine: Engine, worker: str) -> None:
    machine = merge(probe(), parse_devices(list_devices(engine.server, rpc=[worker])))
    rpc = machine.device("RPC0")
    assert rpc is not None
    assert (rpc.name, rpc.kind, rpc.usable) == (worker, DeviceKind.REMOTE, True)
    assert rpc.memory_total == pytest.approx(machine.memory.total, abs=MIB)  # the list rounds down to MiB


def test_without_workers_the_engine_lists_no_rpc(engine: Engine) -> None:
    assert not [d for d in parse_devices(list_devices(engine.server)) if d.backend == "RPC"]


def test_copies_to_the_worker(engine: Engine, worker: str) -> None:
    (rpc,), host = measure(engine.binaries / PROGRAM, rpc=[worker], seconds=0.1)
    assert (rpc.device, rpc.description, rpc.error) == ("RPC0", worker, None)
    # the worker offers no pinned memory
    cells = {(copy.size // MIB, copy.direction, copy.host) for copy in rpc.copies}
    assert cells == {(size, way, "pageable") for size in (1, 16, 64) for way in ("h2d", "d2h")}
    assert all(0.01 < copy.gbps <= copy.best < 1000 and copy.runs >= 3 for copy in rpc.copies)
    assert rpc.latency_us is not None
    assert 1 < rpc.latency_us < 1e5
    assert host is not None
    assert host.gbps > 0.5


def test_an_rpc_link_is_slower_than_memory(engine: Engine, worker: str) -> None:
    """What a plan decides by: bytes through the socket cost more than bytes from RAM."""
    (rpc,), host = measure(engine.binaries / PROGRAM, rpc=[worker], sizes=[16 * MIB], seconds=0.1)
    assert host is not None
    assert max(copy.best for copy in rpc.copies) < host.gbps * 2


def test_measured_once_known_ever_after(engine: Engine, worker: str, tmp_path: Path) -> None:
    machine = merge(probe(), parse_devices(list_devices(engine.server, rpc=[worker])))
    program = Program(engine.binaries / PROGRAM, engine.key)
    measured = measure_machine(machine, tmp_path, program=program, rpc=[worker], seconds=0.05)
    rpc = measured.machine.device("RPC0")
    assert rpc is not None
    assert rpc.copy_gbps is not None
    assert rpc.copy_latency_us is not None
    assert measured.machine.memory.gbps is not None
    assert measured.notes == ()
    methods = {figures.conditions.method for figures, _ in measured.results}
    assert methods == {f"engine {engine.key}", f"engine {engine.key}, {os.cpu_count()} threads"}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_worker_that_is_gone(engine: Engine, free_port: int) -> None:
    with pytest.raises(EngineRefused, match="no rpc worker answers"):
        list_devices(engine.server, rpc=[f"127.0.0.1:{free_port}"])


def test_somebody_else_on_the_port(engine: Engine) -> None:
    """A listener that is no worker: the engine aborts or hangs up; the fault is told, in bounded time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Exception, match="llama-server") as caught:
            list_devices(engine.server, rpc=[endpoint], timeout=3.0)
    assert caught.value.__class__.__module__ == "launcher.errors"


@pytest.mark.parametrize(
    "args", [["--sizes", "0"], ["--sizes", "1,,2"], ["--seconds", "x"], ["--device", "NOPE"], ["--odd", "1"], ["--rpc"]]
)
def test_the_program_refuses_what_it_does_not_know(engine: Engine, args: list[str]) -> None:
    done = subprocess.run([str(engine.binaries / PROGRAM), *args], capture_output=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.strip()
