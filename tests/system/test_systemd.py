"""The supervisor as a service of a real systemd: what READY, exit codes, the watchdog and socket units promise."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.bench.instance import gone, wait_for

if TYPE_CHECKING:
    from conftest import Unit


def _get(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/props")
    return connection.getresponse().status


def test_a_start_returns_when_it_is_ready(unit: Unit) -> None:
    unit.install()
    unit.systemd.run("systemctl", "start", unit.service)
    assert unit.systemd.show(unit.service, "ActiveState", "StatusText") == ["active", "ready: checked"]
    assert _get(unit.spec.port) == 200
    unit.systemd.run("systemctl", "stop", unit.service)
    assert unit.systemd.show(unit.service, "Result") == ["success"]
    assert unit.engines() == []


def test_no_limit_of_the_units_kills_a_slow_load(unit: Unit) -> None:
    (unit.home / "slow").touch()
    unit.install("TimeoutStartSec=2")
    unit.systemd.run("systemctl", "start", "--no-block", unit.service)
    time.sleep(6)
    assert unit.systemd.show(unit.service, "ActiveState", "NRestarts") == ["activating", "0"]
    (unit.home / "slow").unlink()
    unit.systemd.until(unit.service, "ActiveState", "active")


def test_what_cannot_work_is_not_restarted(unit: Unit) -> None:
    (unit.home / "at-start").write_text("1\nerror: invalid argument: --x\n")
    unit.install()
    unit.systemd.run("systemctl", "start", unit.service, check=False)
    unit.systemd.until(unit.service, "ActiveState", "failed")
    assert unit.systemd.show(unit.service, "ExecMainStatus", "NRestarts") == ["13", "0"]


def test_a_killed_supervisor_comes_back_and_leaves_nothing(unit: Unit) -> None:
    unit.install()
    unit.systemd.run("systemctl", "start", unit.service)
    (engine,) = unit.engines()
    unit.systemd.run("systemctl", "kill", "--kill-whom=main", "-s", "KILL", unit.service)
    assert gone(engine, 2.0)
    unit.systemd.until(unit.service, "NRestarts", "1")
    unit.systemd.until(unit.service, "ActiveState", "active")
    assert len(unit.engines()) == 1
    assert _get(unit.spec.port) == 200


def test_a_crash_of_the_engine_is_ours_to_mend(unit: Unit) -> None:
    unit.install()
    unit.systemd.run("systemctl", "start", unit.service)
    (engine,) = unit.engines()
    os.kill(engine, signal.SIGKILL)
    assert _get(unit.spec.port) == 200
    assert unit.systemd.show(unit.service, "NRestarts", "ActiveState") == ["0", "active"]


def test_the_watchdog_ends_a_supervisor_that_stands_still(unit: Unit) -> None:
    unit.install("WatchdogSec=2")
    unit.systemd.run("systemctl", "start", unit.service)
    (engine,) = unit.engines()
    unit.systemd.run("systemctl", "kill", "--kill-whom=main", "-s", "STOP", unit.service)
    unit.systemd.until(unit.service, "NRestarts", "1", limit=30)
    assert gone(engine)
    unit.systemd.until(unit.service, "ActiveState", "active")


def test_a_socket_unit_holds_the_port(unit: Unit) -> None:
    """The first connection starts the service and is answered by its engine; the port is systemd's all the time."""
    unit.install()
    unit.systemd.unit(f"{unit.spec.name}.socket", f"[Socket]\nListenStream=127.0.0.1:{unit.spec.port}\n")
    unit.systemd.run("systemctl", "start", f"{unit.spec.name}.socket")
    assert unit.engines() == []
    assert _get(unit.spec.port) == 200
    unit.systemd.until(unit.service, "ActiveState", "active")
    unit.systemd.run("systemctl", "restart", unit.service)
    assert _get(unit.spec.port) == 200
    assert Path(unit.spec.state_dir, "status.json").exists()


def _group(pid: int) -> str:
    """Its memory cgroup."""
    rows = (row.split(":", 2) for row in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    found = {controllers: path for _, controllers, path in rows}
    return found.get("memory", found.get("", ""))


def test_the_engine_alone_is_killed_at_the_profiles_memory_limit(unit: Unit) -> None:
    unit.install(memory_limit=96 << 20)
    unit.systemd.run("systemctl", "start", unit.service)
    before = unit.systemd.show(unit.service, "MainPID", "NRestarts", "ActiveState")
    (engine,) = unit.engines()
    assert _group(engine).endswith("/engine-1")
    assert unit.client.status()["state"] == "ready"

    (unit.home / "eat").touch()
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        _get(unit.spec.port)  # in the middle of which it ends
    assert _get(unit.spec.port) == 200  # by the next one
    wait_for(lambda: unit.client.status()["state"] == "ready")
    assert unit.client.status()["last_exit"]["class"] == "host-oom"
    assert unit.systemd.show(unit.service, "MainPID", "NRestarts", "ActiveState") == before
    (second,) = unit.engines()
    assert _group(second).endswith("/engine-2")


def test_a_limit_that_cannot_be_kept_is_said(unit: Unit) -> None:
    """Somebody else lives in the unit's cgroup: none can be made below."""
    unit.install("ExecStartPre=/bin/sh -c 'setsid sleep 60 &'", memory_limit=96 << 20)
    unit.systemd.run("systemctl", "start", unit.service)
    status = unit.client.status()
    assert status["state"] == "degraded"
    assert status["reason"].startswith("supervise.memory_limit: no cgroup can be made here")
    unit.systemd.run("systemctl", "kill", "--kill-whom=all", "-s", "KILL", unit.service)
