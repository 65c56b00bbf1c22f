"""A resident supervisor as a child process, and what a person would look at: for benches, and for the tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.errors import KvlaunchError
from launcher.supervise import proc
from launcher.supervise.client import Client
from launcher.supervise.spec import LaunchSpec


class Instance:
    """One resident supervisor as a child of the test, and what a person would look at."""

    def __init__(self, spec: LaunchSpec, *, env: Mapping[str, str] | None = None) -> None:
        self.spec = spec
        self.client = Client(Path(spec.socket), spec.name)
        file = spec.write(Path(spec.state_dir).parent / f"{spec.name}.spec.json")
        self.output = Path(spec.log_dir).parent / f"{spec.name}.out"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher.supervise", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **(env or {})},
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
        raise AssertionError(f"not {wanted} within {limit} s, but {status}")

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


def gone(pid: int, limit: float = 2.0) -> bool:
    """Whether the process is dead (a zombie counts) within the limit."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if not proc.is_alive(pid):
            return True
        time.sleep(0.01)
    return False
