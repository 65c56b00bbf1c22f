"""0008: what the cache holds, where, and that a decode is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from .engine import Server, words

ON = ("--kv-telemetry", "--metrics")


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("--kv-telemetry")


def number(server: Server, name: str) -> float:
    return float(server.metrics()[f"llamacpp:{name}"])


def reaches(server: Server, name: str, wanted: float) -> bool:
    """Whether the number gets there: the answer to a request leaves before the look at the cells that follows it."""
    deadline = time.monotonic() + 5
    while number(server, name) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return number(server, name) == wanted


def test_props_tell_each_layer(start: Callable[..., Server]) -> None:
    kv = start(*ON, "-c", 1024, "-np", 2, "-ctk", "q8_0", "-ctv", "q4_0", "-fa", "on").get("/props")[1]["kv"]
    (part,) = kv["parts"]
    assert (kv["n_ctx"], kv["n_ctx_seq"], part["kind"], part["n_streams"], part["n_cells"]) == (
        1024,
        512,
        "full",
        2,
        1024,
    )
    assert [layer["il"] for layer in part["layers"]] == list(range(30))
    layer = part["layers"][0]
    assert (layer["type_k"], layer["type_v"], layer["device"], layer["host"]) == ("q8_0", "q4_0", "CPU", True)
    assert layer["size_k"] == 1024 * 192 // 32 * 34 and layer["size_v"] == 1024 * 192 // 32 * 18
    assert kv["bytes"] == {"CPU": 30 * (layer["size_k"] + layer["size_v"])}


def test_a_sliding_window_is_a_part_of_its_own(start: Callable[..., Server], gemma3_model: Any) -> None:
    kv = start(*ON, "-c", 4096, "-np", 1, model=gemma3_model).get("/props")[1]["kv"]
    assert {part["kind"]: (part["n_cells"], len(part["layers"])) for part in kv["parts"]} == {
        "full": (4096, 3),
        "swa": (1024, 15),
    }


def test_cells_used_and_shared(start: Callable[..., Server]) -> None:
    server = start(*ON, "-c", 2048, "-np", 4, "-kvu", "--no-cache-idle-slots")
    prompt = words(100)
    n = server.complete(prompt, n=4, cache_prompt=True)["tokens_evaluated"] + 3  # the last token is never decoded
    time.sleep(0.2)
    assert server.metrics()['llamacpp:kv_cells{kind="full"}'] == "2048"
    assert server.metrics()['llamacpp:kv_cells_used{kind="full"}'] == str(n)
    held = [slot["kv"] for slot in server.get("/slots")[1]]
    assert sorted(slot["n_cells"] for slot in held) == [0, 0, 0, n]
    assert all(slot["n_shared"] == 0 for slot in held)

    # two answers share their prompt's cells while they are written
    shared: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            shared.append(max(slot["kv"]["n_shared"] for slot in server.get("/slots")[1]))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    server.complete(words(100, seed=4), n=80, n_cmpl=2)
    done.set()
    watcher.join()
    assert max(shared) >= 90


def test_shifts_purges_and_the_ram_cache_are_counted(start: Callable[..., Server]) -> None:
    server = start(*ON, "-c", 256, "-np", 1, "--context-shift")
    server.complete(words(100), n=300)
    assert number(server, "kv_shift_total") >= 2
    assert number(server, "kv_shift_tokens_total") >= 200
    server.complete(words(100, seed=3), n=2)
    server.complete(words(100, seed=4), n=2)
    assert number(server, "prompt_cache_save_total") >= 2
    assert number(server, "prompt_cache_states") >= 1
    assert number(server, "prompt_cache_bytes") > 100_000


def test_a_purge_is_counted(start: Callable[..., Server]) -> None:
    server = start(*ON, "-c", 256, "-np", 2, "-kvu", "--cache-ram", 0)
    server.complete(words(150), n=2, id_slot=0)
    server.complete(words(150, seed=2), n=2, id_slot=1)
    assert reaches(server, "kv_purge_total", 1)
    assert number(server, "kv_purge_tokens_total") >= 150


def test_sessions_are_counted(start: Callable[..., Server], needs: Callable[[str], None]) -> None:
    needs("--session-affinity")
    server = start(*ON, "-c", 1024, "--session-affinity")
    for _ in range(2):
        for name in ("a", "b"):
            server.complete(words(40, seed=len(name)), n=2, session_id=name, cache_prompt=True)
    assert reaches(server, "session_hit_total", 2)
    assert number(server, "session_new_total") == 2
    assert number(server, "session_restore_total") >= 1
    assert number(server, "session_copy_total") >= 1


def test_a_long_decode_shows_that_it_is_alive(start: Callable[..., Server]) -> None:
    """One batch of 1024 tokens: upstream's counters stand still from its first micro-batch to its last."""
    server = start(*ON, "-c", 2048, "-np", 1, "-b", 1024, "-ub", 64)
    threading.Thread(
        target=lambda: server.post("/completion", {"prompt": words(900), "n_predict": 1}), daemon=True
    ).start()
    samples = []
    while not samples or samples[-1]["llamacpp:prompt_tokens_total"] == "0":
        samples.append(server.metrics())
        assert len(samples) < 3000
        time.sleep(0.02)
    during = [s for s in samples if s["llamacpp:prompt_tokens_total"] == "0"]
    batches = [int(s["llamacpp:ubatch_total"]) for s in during]
    assert batches == sorted(batches) and batches[-1] - batches[0] >= 10
    nodes = [int(s["llamacpp:graph_nodes_total"]) for s in during]
    assert len(set(nodes)) > 2 * len(set(batches)), "the node counter moves within a micro-batch"
    last = float(samples[-1]["llamacpp:ubatch_last_timestamp_seconds"])
    assert abs(time.time() - last) < 5


def test_digits_are_kept(start: Callable[..., Server]) -> None:
    server = start(*ON, "-c", 512, "-np", 1)
    deadline = time.monotonic() + 30
    while number(server, "graph_nodes_total") < 10**6 and time.monotonic() < deadline:
        server.complete("Once", n=100, cache_prompt=False)
    assert "e+" not in server.metrics()["llamacpp:graph_nodes_total"]
    assert number(server, "graph_nodes_total") % 1000 != 0 or number(server, "graph_nodes_total") % 100_000 != 0


def test_telemetry_costs_nothing_to_speak_of(start: Callable[..., Server]) -> None:
    """The 50 ms snapshots and the node counter, measured as a ratio of generation speeds, best of several."""
    on, off = start(*ON, "-c", 2048, "-np", 1), start("--metrics", "-c", 2048, "-np", 1)

    def speed(server: Server) -> float:
        return float(server.complete(words(50), n=60, cache_prompt=True)["timings"]["predicted_per_second"])

    pairs = [(speed(on), speed(off)) for _ in range(6)]
    assert max(a for a, _ in pairs) > 0.9 * max(b for _, b in pairs)


def test_off_adds_nothing(start: Callable[..., Server]) -> None:
    server = start("--metrics", "-c", 512, "-np", 1)
    assert "kv" not in server.get("/props")[1]
    assert "kv" not in server.get("/slots")[1][0]
    assert not [name for name in server.metrics() if "ubatch" in name or "kv_" in name or "session" in name]
