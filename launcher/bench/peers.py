"""How fast others bring the same engine back after kill -9: systemd with Restart=always, and supervisord.

Both get the bare engine with the same options; a client asks the public port until it is answered.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.bench.instance import Instance, free_port
from launcher.bench.systemd import Unavailable, booted
from launcher.supervise import proc
from launcher.supervise.spec import LaunchSpec

_LIMIT = 60.0
_PAUSE = 0.005
_SETTLE = 1.5
"""Longer than supervisord's startsecs: before, a death counts as a failed start there."""

Engine = Callable[[], int]
"""The pid of the engine that runs now."""


def repair_times(engine: Engine, port: int, times: int) -> list[float]:
    """Kill it, and the seconds until the port answers again; the fastest first."""
    taken = []
    _answered(port)
    for _ in range(times):
        time.sleep(_SETTLE)
        victim = engine()
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        while proc.is_alive(victim):
            time.sleep(0.001)
        _answered(port)
        taken.append(time.monotonic() - begin)
    return sorted(taken)


def kvlaunch(spec: LaunchSpec, times: int) -> list[float]:
    instance = Instance(spec)
    try:
        instance.ready()
        return repair_times(lambda: instance.engine, spec.port, times)
    finally:
        instance.close()


def systemd(spec: LaunchSpec, home: Path, times: int) -> list[float]:
    """Raises Unavailable."""
    port = free_port()
    with booted() as system, _outside_tmp(spec, home) as words:
        system.unit(
            "bare.service",
            f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nExecStart={' '.join(words)} --port {port}\n",
        )
        system.run("systemctl", "start", "bare.service")
        try:
            return repair_times(lambda: _serving(port), port, times)
        finally:
            system.run("systemctl", "stop", "bare.service", check=False)


def supervisord(spec: LaunchSpec, home: Path, times: int) -> list[float]:
    """Raises Unavailable."""
    program = shutil.which("supervisord")
    if program is None:
        raise Unavailable("supervisord is not installed")
    port = free_port()
    words = [spec.binary, *spec.argv, "--port", str(port)]
    settings = home / "supervisord.conf"
    settings.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile={home}/supervisord.log\npidfile={home}/supervisord.pid\n"
        f"[program:bare]\ncommand={' '.join(words)}\nautorestart=true\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
    )
    with subprocess.Popen([program, "-c", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        try:
            return repair_times(lambda: _serving(port), port, times)
        finally:
            it.terminate()


@contextlib.contextmanager
def _outside_tmp(spec: LaunchSpec, home: Path) -> Iterator[list[str]]:
    """The command with files that a private /tmp doesn't hide: copies in /dev/shm."""
    folder = Path("/dev/shm") / home.name
    folder.mkdir()
    try:
        words = []
        for word in (spec.binary, *spec.argv):
            if word.startswith("/") and Path(word).is_file():
                copy = folder / Path(word).name
                shutil.copy(word, copy)
                words.append(str(copy))
            else:
                words.append(word)
        yield words
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serving(port: int) -> int:
    """The engine with this port on its command line."""
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and proc.is_alive(int(entry)):
            with contextlib.suppress(OSError):
                if f"\0--port\0{port}\0".encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return int(entry)
    raise Unavailable(f"no engine for port {port}")


def _answered(port: int) -> None:
    end = time.monotonic() + _LIMIT
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(_PAUSE)
    raise Unavailable(f"port {port} did not answer within {_LIMIT:g} s")
