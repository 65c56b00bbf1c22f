"""A resident supervisor around a real engine, in folders of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import Instance
from launcher.supervise.spec import Expected, LaunchSpec


@pytest.fixture(scope="session")
def engine_help(engine_server: Path) -> str:
    return subprocess.run([str(engine_server), "--help"], capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="session")
def takes_listeners(engine_help: str) -> bool:
    return "--listen-fd" in engine_help


@pytest.fixture(scope="session")
def takes_sessions(engine_help: str) -> bool:
    return "--session-affinity" in engine_help


@pytest.fixture
def launch(
    engine_server: Path, smollm2: Path, free_port: int, takes_listeners: bool
) -> Iterator[Callable[..., Instance]]:
    """Start an instance; keywords replace fields of its spec. All are gone after the test."""
    home = Path(tempfile.mkdtemp(prefix="kv-"))  # pytest's own folders make socket paths too long
    started: list[Instance] = []

    def start(*, env_of_supervisor: dict[str, str] | None = None, **changes: object) -> Instance:
        name = str(changes.pop("name", "t"))
        spec = LaunchSpec(
            name=name,
            binary=str(engine_server),
            argv=("-m", str(smollm2), "-c", "2048", "-np", "2", "-kvu", "--fit", "off", "--alias", "t", "-t", "1"),
            state_dir=str(home / "state" / name),
            log_dir=str(home / "logs" / name),
            socket=str(home / f"{name}.sock"),
            port=free_port,
            listen_fd=takes_listeners,
            expected=Expected(total=2048, per_slot=2048, slots=2, unified=True, alias="t"),
            model_bytes=smollm2.stat().st_size,
        )
        instance = Instance(replace(spec, **changes), env=env_of_supervisor)  # type: ignore[arg-type]
        started.append(instance)
        return instance

    yield start
    for instance in started:
        instance.close()
    shutil.rmtree(home, ignore_errors=True)
