"""`kvlaunch` as a person runs it: its own process and state; the store of engines and models is shared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.engine.store import Engine
from launcher.paths import Places


@dataclass
class Shell:
    """Runs commands with one environment; stops what they left running."""

    env: dict[str, str]
    folder: Path

    def run(self, *words: str, timeout: float = 120, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout, input=stdin, check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", *words],
            env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def profile(self, name: str, text: str) -> str:
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return str(path)


@pytest.fixture
def shell(tmp_path: Path, engine_places: Places, engine: Engine) -> Iterator[Shell]:
    del engine  # built before anything is timed or tried
    env = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "LLAMA_"))}
    repository = str(Path(__file__).resolve().parents[3])
    env["PYTHONPATH"] = repository
    for variable, place in (("XDG_DATA_HOME", engine_places.data), ("XDG_CACHE_HOME", engine_places.cache)):
        shared = tmp_path / variable.lower()
        shared.mkdir()
        (shared / "kvlaunch").symlink_to(place)
        env[variable] = str(shared)
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        own = tmp_path / variable[4:7].lower()
        own.mkdir(mode=0o700)
        env[variable] = str(own)
    folder = tmp_path / "w"
    folder.mkdir()
    made = Shell(env, folder)
    yield made
    for line in made.run("ps").stdout.splitlines()[1:]:
        made.run("down", line.split()[0], "--now")
