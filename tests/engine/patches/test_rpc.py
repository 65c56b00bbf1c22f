"""0006, 0008 and 0010 where the cache lies on another device: a ggml-rpc-server on the loopback.

The only second device that any box has. Keys are read, and states saved and restored, over its connection.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import Server, clean_environment, free_port, words
from .test_0006_affinity import SLACK, Session
from .test_0010_eviction import CONTEXT, NEEDLE, haystack, holds, slot_tokens, tokenize

LAYERS = 30


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    for option in ("--session-affinity", "--kv-telemetry", "--rest-kv-eviction"):
        needs(option)


@pytest.fixture(scope="module")
def device(server_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[object, ...]]:
    """The arguments that put all layers on it."""
    worker = server_binary.with_name("ggml-rpc-server")
    if not worker.exists():
        pytest.skip(f"no ggml-rpc-server beside {server_binary}")
    port = free_port()
    log = tmp_path_factory.mktemp("rpc") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [worker, "-H", "127.0.0.1", "-p", str(port), "-t", "1"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=clean_environment(),
        )
    try:
        time.sleep(0.5)
        assert process.poll() is None, log.read_text()
        yield "--rpc", f"127.0.0.1:{port}", "-ngl", 99
    finally:
        process.kill()
        process.wait(10)


def test_telemetry_names_the_device(start: Callable[..., Server], device: tuple[object, ...]) -> None:
    kv = start(*device, "--kv-telemetry", "-c", 512, "-np", 1).get("/props")[1]["kv"]
    (part,) = kv["parts"]
    assert {(layer["device"], layer["host"]) for layer in part["layers"]} == {("RPC0", False)}
    assert kv["bytes"] == {"RPC0": LAYERS * 512 * 192 * 2 * 2}


def test_telemetry_tells_host_layers_apart(start: Callable[..., Server], device: tuple[object, ...]) -> None:
    kv = start(*device[:2], "-ngl", 11, "--kv-telemetry", "-c", 512, "-np", 1).get("/props")[1]["kv"]
    assert set(kv["bytes"]) == {"CPU", "RPC0"}
    held = [layer["device"] for layer in kv["parts"][0]["layers"]]
    assert kv["bytes"]["RPC0"] == held.count("RPC0") * 512 * 192 * 2 * 2 > 0


@pytest.mark.parametrize("cache", [(), ("-ctk", "q8_0", "-fa", "on")], ids=["f16", "q8_0 K"])
@pytest.mark.parametrize("mode", ["window", "scattered"])
def test_an_early_needle_outlives_the_shift(
    start: Callable[..., Server], device: tuple[object, ...], tmp_path: Path, cache: tuple[object, ...], mode: str
) -> None:
    args = ("-c", CONTEXT, "-np", 1, "--context-shift", "--slot-save-path", tmp_path, *cache)
    server = start(*device, *args, "--rest-kv-eviction", "--rest-kv-mode", mode)
    needle = tokenize(server, NEEDLE)
    answer = server.complete(haystack(server, 0.1, CONTEXT - 20), n=40, cache_prompt=True)
    assert answer["tokens_predicted"] == 40
    assert "rest-kv: discarded 64 tokens" in server.text()
    assert holds(slot_tokens(tmp_path, server), needle)


def test_sessions_find_their_state_again(start: Callable[..., Server], device: tuple[object, ...]) -> None:
    """In the default mode each launch clears the other's slot: every turn brings a state back over the connection."""
    server = start(*device, "-c", 2048, "--session-affinity", "--kv-telemetry", "--metrics")
    sessions = [Session(server, name) for name in ("a", "b")]
    for session in sessions:
        session.turn()
    for _ in range(2):
        for session in sessions:
            new, computed = session.turn()
            assert computed <= new + SLACK
    assert float(server.metrics()["llamacpp:session_restore_total"]) >= 2
    # and the states are right: the same text as without any of it
    text = sessions[0].text + " " + words(20, seed=99)
    ours = server.complete(text, n=12, cache_prompt=True, session_id="a")["content"]
    server.stop()  # the worker serves one at a time
    assert ours == start(*device, "-c", 2048).complete(text, n=12)["content"]
