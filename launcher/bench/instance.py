"""A resident supervisor as a child process, and what a person would look at: for benches, and for the tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.errors import KvlaunchError
from launcher.supervise import proc
from launcher.supervise.client import Client
from launcher.supervise.spec import Expected, LaunchSpec


def bench_spec(server: Path, model: Path, home: Path, *, name: str = "bench", **changes: Any) -> LaunchSpec:
    """A launch of a small model in folders of its own, on a free port that is kept."""
    helps = subprocess.run([str(server), "--help"], capture_output=True, text=True, check=False).stdout
    spec = LaunchSpec(
        name=name,
        binary=str(server),
        argv=("-m", str(model), "-c", "2048", "-np", "2", "-kvu", "--fit", "off", "--alias", name, "-t", "1"),
        state_dir=str(home / "state" / name),
        log_dir=str(home / "logs" / name),
        socket=str(home / f"{name}.sock"),
        port=free_port(),
        listen_fd="--listen-fd" in helps,
        expected=Expected(total=2048, per_slot=2048, slots=2, unified=True, alias=name),
        model_bytes=model.stat().st_size,
    )
    return replace(spec, **changes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def bare_start(spec: LaunchSpec, times: int = 3) -> float:
    """Seconds from the spawn of the engine alone, with the same options, to its first 200 (the median)."""
    port = free_port()
    argv = [spec.binary, *spec.argv, "--host", "127.0.0.1", "--port", str(port)]
    taken = []
    for _ in range(times):
        begin = time.monotonic()
        engine = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not _healthy(port):
                time.sleep(0.005)
            taken.append(time.monotonic() - begin)
        finally:
            engine.kill()
            engine.wait()
    return sorted(taken)[times // 2]


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Instance:
    """One resident supervisor as a child of the test, and what a person would look at."""

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("launcher.supervise",),
        cgroup: Path | None = None,
    ) -> None:
        """`cgroup`: one that it is to live in alone, as if a unit had handed it over."""
        self.spec = spec
        self.client = Client(Path(spec.socket), spec.name)
        file = spec.write(Path(spec.state_dir).parent / f"{spec.name}.spec.json")
        self.output = Path(spec.log_dir).parent / f"{spec.name}.out"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **(env or {})},
                preexec_fn=None if cgroup is None else lambda: _enter(cgroup),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> dict[str, Any]:
        return self.client.status()

    @property
    def engine(self) -> int:
        pid = self.status["engine_pid"]
        assert isinstance(pid, int)
        return pid

    def until(self, *wanted: str, limit: float = 60.0, but_not: int | None = None) -> dict[str, Any]:
        """Wait for one of these states (of another engine than `but_not`)."""
        end = time.monotonic() + limit
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            with contextlib.suppress(KvlaunchError):
                status = self.client.status()
                if status["state"] in wanted and (but_not is None or status["engine_pid"] != but_not):
                    return status
            assert self.process.poll() is None, f"it ended: {self.output.read_text()[-2000:]}"
            time.sleep(0.01)
        seen = f"{status.get('state')} ({status.get('reason')})"
        raise AssertionError(f"not {' or '.join(wanted)} within {limit:g} s, but {seen}")

    def ready(self, *, but_not: int | None = None) -> dict[str, Any]:
        return self.until("ready", but_not=but_not)

    def ended(self, limit: float = 30.0) -> int:
        return self.process.wait(limit)

    def http(self, method: str, path: str, body: object = None, limit: float = 60.0) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.status["url"].rsplit(":", 1)[1], timeout=limit)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, json.loads(data)

    def complete(self, **more: object) -> tuple[int, Any]:
        return self.http("POST", "/completion", {"prompt": "Once upon a time", "n_predict": 4, **more})

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def wait_for(holds: Callable[[], bool], limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, f"not within {limit:g} s"
        time.sleep(0.02)


def _enter(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("0")


def gone(pid: int, limit: float = 2.0) -> bool:
    """Whether the process is dead (a zombie counts) within the limit."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if not proc.is_alive(pid):
            return True
        time.sleep(0.01)
    return False
