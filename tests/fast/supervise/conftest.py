"""A supervisor around the fake engine, inside this process's event loop or as a process of its own."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import Instance, free_port
from launcher.supervise.spec import Expected, LaunchSpec


class Stage:
    """The folder that bends the fake engine, and the instances started on it."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kvf-"))
        self.engine = self.home / "llama-server"
        fake = Path(__file__).with_name("fake_engine.py")
        self.engine.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{fake}" "$@"\n')
        self.engine.chmod(0o755)
        self.started: list[Instance] = []

    def bend(self, what: str, text: str = "") -> None:
        (self.home / what).write_text(text)

    def straighten(self, what: str) -> None:
        (self.home / what).unlink()

    def spec(self, **changes: object) -> LaunchSpec:
        spec = LaunchSpec(
            name="f",
            binary=str(self.engine),
            argv=("-c", "512", "--alias", "f"),
            state_dir=str(self.home / "state"),
            log_dir=str(self.home / "logs"),
            socket=str(self.home / "f.sock"),
            port=free_port(),
            listen_fd=True,
            env={"FAKE_FOLDER": str(self.home)},
            expected=Expected(slots=1, per_slot=512, alias="f"),
            stop_timeout=2.0,
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    def launch(self, **changes: object) -> Instance:
        instance = Instance(self.spec(**changes))
        self.started.append(instance)
        return instance


@pytest.fixture
def stage() -> Iterator[Stage]:
    here = Stage()
    yield here
    for instance in here.started:
        instance.close()
    shutil.rmtree(here.home, ignore_errors=True)


Launch = Callable[..., Instance]
