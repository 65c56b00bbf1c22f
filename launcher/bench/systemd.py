"""A real systemd as PID 1 of namespaces of its own: units are started for real, and nothing outside notices."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_SYSTEMD = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if Path(path).exists()), None)
# its tmpfiles service empties /tmp: private folders first
_BOOT = """
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var || exit 1
mkdir -p /run/lock /var/log /var/lib /var/tmp
exec "$0" --unit=basic.target --log-target=null --show-status=no
"""


class Unavailable(Exception):
    """Why there is no systemd to be had here."""


class Systemd:
    """Commands in its namespaces."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-m", "-p", "-u", "-i", "-C"]

    def run(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False, timeout=timeout)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def unit(self, name: str, text: str) -> None:
        """Put a unit file in place."""
        self.run(
            "/bin/sh", "-c", f"mkdir -p /run/systemd/system; cat > /run/systemd/system/{name} <<'END'\n{text}\nEND"
        )
        self.run("systemctl", "daemon-reload")

    def show(self, unit: str, *properties: str) -> list[str]:
        return [self.run("systemctl", "show", unit, "-p", name, "--value") for name in properties]

    def until(self, unit: str, name: str, value: str, limit: float = 20) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.show(unit, name) == [value]:
                return
            time.sleep(0.05)
        raise AssertionError(f"{unit}: {name} is {self.show(unit, name)}, not {value}")


@contextlib.contextmanager
def booted() -> Iterator[Systemd]:
    """For as long as the block lasts. Raises Unavailable."""
    if _SYSTEMD is None or os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Unavailable("needs root, systemd and unshare")
    namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc"]
    outer = subprocess.Popen(
        ["unshare", *namespaces, "--kill-child", "/bin/sh", "-c", _BOOT, _SYSTEMD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _up(outer)
    finally:
        outer.kill()
        outer.wait()


def _up(outer: subprocess.Popen[bytes]) -> Systemd:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if outer.poll() is not None:
            raise Unavailable("namespaces are not to be had here")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if children:
            inner = Systemd(int(children[0]))
            if inner.run("systemctl", "is-system-running", check=False) in ("running", "degraded"):
                return inner
        time.sleep(0.1)
    raise Unavailable("systemd does not come up here")
