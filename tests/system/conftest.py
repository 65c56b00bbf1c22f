"""A real systemd as PID 1 of namespaces of its own: units are started for real, and nothing outside notices.

Needs root and systemd's binary; skipped with a word where there is none.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import free_port
from launcher.bench.systemd import Systemd, Unavailable, booted
from launcher.supervise.client import Client
from launcher.supervise.spec import Expected, LaunchSpec

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "supervise.md"
_FAKE = _ROOT / "tests" / "fast" / "supervise" / "fake_engine.py"


@pytest.fixture(scope="session")
def systemd() -> Iterator[Systemd]:
    try:
        with booted() as system:
            yield system
    except Unavailable as reason:
        pytest.skip(str(reason))


def _unit(command: str, more: str) -> str:
    """The unit of the page, with another command. What stands later wins."""
    shown = re.search(r"```ini\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert shown is not None
    text, count = re.subn(r"ExecStart=.*", f"ExecStart={command}\nWorkingDirectory={_ROOT}", shown[1])
    assert count == 1
    return text.replace("\n[Install]", f"{more}\n[Install]")


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
            _unit(f"{sys.executable} -m launcher.supervise {file}", f"RestartSec=100ms\n{service}"),
        )

    @property
    def client(self) -> Client:
        return Client(Path(self.spec.socket), self.spec.name)

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
