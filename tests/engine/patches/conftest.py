"""Fixtures for the tests of the patch series: one engine binary, small models, servers that end with their test.

The binary and the models come from tests/engine/conftest.py; a developer who works on one patch names them instead:
KVLAUNCH_TEST_SERVER (a patched llama-server), KVLAUNCH_TEST_REFERENCE (the unpatched one of the same pin) and
KVLAUNCH_TEST_MODELS (a folder with smollm2.gguf and gemma3.gguf).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import Engine, Server


def _named(request: pytest.FixtureRequest, variable: str, fixture: str, name: str = "") -> Path:
    if value := os.environ.get(variable):
        return Path(value, name) if name else Path(value)
    try:
        return Path(request.getfixturevalue(fixture))
    except pytest.FixtureLookupError:
        pytest.skip(f"neither {variable} nor the fixture {fixture} is there")


@pytest.fixture(scope="session")
def server_binary(request: pytest.FixtureRequest) -> Path:
    return _named(request, "KVLAUNCH_TEST_SERVER", "engine_server")


@pytest.fixture(scope="session")
def reference_binary(request: pytest.FixtureRequest) -> Path:
    return _named(request, "KVLAUNCH_TEST_REFERENCE", "reference_server")


@pytest.fixture(scope="session")
def smollm2_model(request: pytest.FixtureRequest) -> Path:
    return _named(request, "KVLAUNCH_TEST_MODELS", "smollm2", "smollm2.gguf")


@pytest.fixture(scope="session")
def gemma3_model(request: pytest.FixtureRequest) -> Path:
    return _named(request, "KVLAUNCH_TEST_MODELS", "gemma3", "gemma3.gguf")


@pytest.fixture(scope="session")
def engine_help(server_binary: Path) -> str:
    return subprocess.run([server_binary, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture(scope="session")
def needs(server_binary: Path, engine_help: str) -> Callable[[str], None]:
    """Skips a test whose patch the engine lacks: `needs("--listen-fd")`, `needs("0014")` where there is no option."""
    version = subprocess.run([server_binary, "--version"], capture_output=True, text=True, timeout=60)
    named = set(re.findall(r"\b0\d{3}\b", version.stdout + version.stderr))

    def check(what: str) -> None:
        if what.startswith("--"):
            if not re.search(re.escape(what) + r"\b", engine_help):
                pytest.skip(f"{server_binary} has no option {what}")
        elif named and what not in named:
            pytest.skip(f"{server_binary} was built without patch {what}")

    return check


@pytest.fixture
def start(server_binary: Path, smollm2_model: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers; `start(*args, model=…, binary=…)`. Whatever still runs at the end of the test is killed."""
    running: list[Server] = []

    def run(*args: object, model: Path | None = None, binary: Path | None = None, **options: object) -> Server:
        engine = Engine(binary or server_binary, tmp_path / f"server{len(running)}.log")
        server = engine.start(model or smollm2_model, *args, **options)  # type: ignore[arg-type]
        running.append(server)
        return server

    yield run
    for server in running:
        server.kill()
