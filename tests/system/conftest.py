"""A real systemd as PID 1 of namespaces of its own: units are started for real, and nothing outside notices.

Needs root and systemd's binary; skipped with a word where there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import free_port
from launcher.supervise.spec import Expected, LaunchSpec

_SYSTEMD = next((path for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if Path(path).exists()), None)
# its tmpfiles service empties /tmp: private folders first
_BOOT = """
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var || exit 1
mkdir -p /run/lock /var/log /var/lib /var/tmp
exec "$0" --unit=basic.target --log-target=null --show-status=no
"""
_ROOT = Path(__file__).resolve().parents[2]
_FAKE = _ROOT / "tests" / "fast" / "supervise" / "fake_engine.py"


class Systemd:
    """Commands in its namespaces."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-m", "-p", "-u", "-i", "-C"]

    def run(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False, timeout=timeout)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
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


@pytest.fixture(scope="session")
def systemd() -> Iterator[Systemd]:
    if _SYSTEMD is None or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, systemd and unshare")
    namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc"]
    outer = subprocess.Popen(
        ["unshare", *namespaces, "--kill-child", "/bin/sh", "-c", _BOOT, _SYSTEMD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Systemd(_booted(outer))
    finally:
        outer.kill()
        outer.wait()


def _booted(outer: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if outer.poll() is not None:
            pytest.skip("namespaces are not to be had here")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if children:
            inner = Systemd(int(children[0]))
            if inner.run("systemctl", "is-system-running", check=False) in ("running", "degraded"):
                return int(children[0])
        time.sleep(0.1)
    pytest.skip("systemd does not come up here")


class Unit:
    """A supervisor around the fake engine, as a service."""

    def __init__(self, systemd: Systemd, home: Path, name: str) -> None:
        self.systemd = systemd
        self.home = home
        self.service = f"{name}.service"
        engine = home / "llama-server"
        engine.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{_FAKE}" "$@"\n')
        engine.chmod(0o755)
        self.spec = LaunchSpec(
            name=name,
            binary=str(engine),
            argv=("-c", "512", "--alias", name),
            state_dir=str(home / "state"),
            log_dir=str(home / "logs"),
            socket=str(home / f"{name}.sock"),
            port=free_port(),
            listen_fd=True,
            env={"FAKE_FOLDER": str(home)},
            expected=Expected(slots=1, per_slot=512, alias=name),
            stop_timeout=2.0,
        )

    def install(self, service: str = "", **changes: object) -> None:
        self.spec = replace(self.spec, **changes)  # type: ignore[arg-type]
        file = self.spec.write(self.home / "spec.json")
        self.systemd.unit(
            self.service,
            f"""[Service]
Type=notify
ExecStart={sys.executable} -m launcher.supervise {file}
WorkingDirectory={_ROOT}
Restart=on-failure
RestartSec=100ms
RestartPreventExitStatus=10 11 12 13 14 15 16
OOMPolicy=continue
{service}
""",
        )

    def engines(self) -> list[int]:
        """Living engines of this unit, wherever they are."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                except OSError:
                    continue
                if b"fake_engine.py" in words and self.spec.name.encode() in words and state not in "ZX":
                    found.append(int(entry.name))
        return found


@pytest.fixture
def unit(systemd: Systemd, request: pytest.FixtureRequest) -> Iterator[Unit]:
    # not below /tmp, which is private inside
    home = Path(tempfile.mkdtemp(prefix="kvs-", dir="/dev/shm"))
    here = Unit(systemd, home, f"kv{abs(hash(request.node.name)) % 10**6}")
    yield here
    systemd.run("systemctl", "stop", here.service, f"{here.spec.name}.socket", check=False)
    shutil.rmtree(home, ignore_errors=True)
