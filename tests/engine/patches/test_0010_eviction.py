"""0010: a context shift discards what the keys tell apart least, and never what is protected."""

from __future__ import annotations

import random
import re
import statistics
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .engine import Server, words
from .tiny import write_tiny

NEEDLE = " The secret access code of the northern warehouse is 7394-KX-52."
FILLER = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
CONTEXT = 512


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("--rest-kv-eviction")


def tokenize(server: Server, text: str, special: bool = False) -> list[int]:
    return server.post("/tokenize", {"content": text, "add_special": special})[1]["tokens"]


def haystack(server: Server, at: float, total: int) -> list[int]:
    """The needle in repeated filler, `at` of the way down; ids, so that nothing is tokenized differently."""
    needle, filler = tokenize(server, NEEDLE), tokenize(server, FILLER)
    copies = (total - len(needle)) // len(filler)
    before = round(copies * at)
    return filler * before + needle + filler * (copies - before)


def slot_tokens(folder: Path, server: Server) -> list[int]:
    """What the slot holds: the ids at the head of its own save file."""
    status, answer = server.post("/slots/0?action=save", {"filename": "s.bin"})
    assert status == 200, answer
    raw = (folder / "s.bin").read_bytes()
    count = struct.unpack_from("<I", raw, 8)[0]  # magic, version, count
    packed = struct.unpack_from(f"<{count}i", raw, 12)
    assert packed[:2] == (-1, 1)  # the server's own mark and version, then the number of tokens
    return list(packed[3 : 3 + packed[2]])


def holds(tokens: list[int], part: list[int]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


@pytest.fixture
def shifting(start: Callable[..., Server], tmp_path: Path) -> Callable[..., Server]:
    def run(*args: object, **options: Any) -> Server:
        return start("-c", CONTEXT, "-np", 1, "--context-shift", "--slot-save-path", tmp_path, *args, **options)

    return run


KEPT = {
    "f16": (),
    "q8_0 K": ("-ctk", "q8_0", "-fa", "on"),
    "q4_0 both": ("-ctk", "q4_0", "-ctv", "q4_0", "-fa", "on"),
    "no flash attention": ("-fa", "off"),
    "no Hadamard": ("-ctk", "q8_0", "-fa", "on", "NO_ROTATION"),
}


@pytest.mark.parametrize("mode", ["window", "scattered"])
@pytest.mark.parametrize("cache", KEPT)
def test_an_early_needle_outlives_the_shift(
    shifting: Callable[..., Server], tmp_path: Path, cache: str, mode: str
) -> None:
    args = [arg for arg in KEPT[cache] if arg != "NO_ROTATION"]
    env = {"LLAMA_ATTN_ROT_DISABLE": "1"} if len(args) < len(KEPT[cache]) else {}
    server = shifting("--rest-kv-eviction", "--rest-kv-mode", mode, *args, env=env)
    needle = tokenize(server, NEEDLE)
    server.complete(haystack(server, 0.1, CONTEXT - 20), n=40, cache_prompt=True)
    assert "rest-kv: discarded 64 tokens" in server.text()
    held = slot_tokens(tmp_path, server)
    assert holds(held, needle)
    assert len(held) <= CONTEXT


def test_by_position_the_same_needle_is_lost(shifting: Callable[..., Server], tmp_path: Path) -> None:
    server = shifting()
    needle = tokenize(server, NEEDLE)
    server.complete(haystack(server, 0.1, CONTEXT - 20), n=40, n_discard=64, cache_prompt=True)
    assert not holds(slot_tokens(tmp_path, server), needle)


@pytest.mark.parametrize("mode", ["window", "scattered"])
def test_gemma_where_its_caches_are_of_one_size(
    shifting: Callable[..., Server], tmp_path: Path, gemma3_model: Path, mode: str
) -> None:
    server = shifting("--rest-kv-eviction", "--rest-kv-mode", mode, "--swa-full", model=gemma3_model)
    needle = tokenize(server, NEEDLE)
    server.complete(haystack(server, 0.1, CONTEXT - 20), n=60, cache_prompt=True)
    assert "rest-kv: discarded" in server.text()
    assert holds(slot_tokens(tmp_path, server), needle)


@pytest.mark.parametrize("mode", ["window", "scattered", "positional"])
def test_protected_ranges_stay_and_move(shifting: Callable[..., Server], tmp_path: Path, mode: str) -> None:
    """Plain filler is what every policy would discard first; three shifts, so the ranges have to move along."""
    server = shifting("--rest-kv-eviction")
    filler = tokenize(server, FILLER)
    marks = [tokenize(server, f" Remember the number {n}.") for n in (17, 23)]
    body = filler * 3 + marks[0] + filler * 6 + marks[1] + filler * 9
    body = body[: CONTEXT - 10]
    ranges = []
    for mark in marks:
        begin = next(i for i in range(len(body)) if body[i : i + len(mark)] == mark)
        ranges.append([begin, begin + len(mark)])
    server.complete(body, n=200, cache_prompt=True, kv_eviction=mode, kv_protect=ranges)
    assert server.text().count("rest-kv: discarded") >= 3
    held = slot_tokens(tmp_path, server)
    assert all(holds(held, mark) for mark in marks)


def test_a_request_can_ask_for_upstreams_way(shifting: Callable[..., Server], tmp_path: Path) -> None:
    server = shifting("--rest-kv-eviction")
    prompt = haystack(server, 0.1, CONTEXT - 20)
    server.complete(prompt, n=40, cache_prompt=True, kv_eviction="positional", n_keep=4)
    held = slot_tokens(tmp_path, server)
    assert held[:4] == prompt[:4] and held[4:100] == prompt[4 + 64 : 100 + 64]


def test_everything_protected_is_not_the_end(shifting: Callable[..., Server]) -> None:
    server = shifting("--rest-kv-eviction")
    prompt = haystack(server, 0.1, CONTEXT - 20)
    answer = server.complete(prompt, n=60, kv_protect=[[0, 100_000]])
    assert answer["tokens_predicted"] == 60
    assert "everything is protected" in server.text()


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_eviction": "oldest"},
        {"kv_eviction": 1},
        {"kv_protect": [[3, 2]]},
        {"kv_protect": [[-1, 2]]},
        {"kv_protect": [[1]]},
        {"kv_protect": "0-3"},
    ],
)
def test_bad_fields_are_refused(shifting: Callable[..., Server], fields: dict[str, Any]) -> None:
    server = shifting("--rest-kv-eviction")
    status, answer = server.post("/completion", {"prompt": "Hi", "n_predict": 1, **fields})
    assert status == 400
    assert next(iter(fields)) in answer["error"]["message"] or "eviction policy" in answer["error"]["message"]


def test_without_the_option_the_fields_are_ignored(shifting: Callable[..., Server]) -> None:
    server = shifting()
    assert server.complete("Hi", n=1, kv_eviction="oldest", kv_protect="x")["tokens_predicted"] == 1


def test_slots_of_one_pool(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(
        "-c", 2 * CONTEXT, "-np", 2, "-kvu", "--kv-unified-per-slot", CONTEXT,
        "--context-shift", "--rest-kv-eviction", "--rest-kv-mode", "scattered", "--slot-save-path", tmp_path,
    )  # fmt: skip
    needle = tokenize(server, NEEDLE)
    other = server.complete(words(100), n=8, id_slot=1, cache_prompt=True)["content"]
    server.complete(haystack(server, 0.1, CONTEXT - 20), n=80, id_slot=0, cache_prompt=True)
    assert holds(slot_tokens(tmp_path, server), needle)
    assert server.complete(words(100), n=8, id_slot=1, cache_prompt=True)["content"] == other


def test_what_cannot_work_is_said_at_the_start(start: Callable[..., Server], gemma3_model: Path) -> None:
    pool = start("-c", 1024, "-np", 2, "-kvu", "--context-shift", "--rest-kv-eviction")
    assert "set --kv-unified-per-slot" in pool.text()
    no_shift = start("-c", 1024, "-np", 1, "--rest-kv-eviction")
    assert "no effect without --context-shift" in no_shift.text()
    window = start("-c", 4096, "-np", 1, "--context-shift", "--rest-kv-eviction", model=gemma3_model)
    assert "no effect without --context-shift, or where the context cannot be shifted" in window.text()


def test_a_layer_without_keys_falls_back_by_name(shifting: Callable[..., Server]) -> None:
    server = shifting("--rest-kv-eviction", "--rest-kv-layer", 99)
    server.complete(haystack(server, 0.1, CONTEXT - 20), n=40)
    assert "the layer has no keys in the cache, discarding the oldest tokens" in server.text()


def test_the_newest_tokens_stay(shifting: Callable[..., Server], tmp_path: Path) -> None:
    server = shifting("--rest-kv-eviction", "--rest-kv-mode", "scattered", "--rest-kv-recent", 300)
    prompt = haystack(server, 0.1, CONTEXT - 4)
    server.complete(prompt, n=12, cache_prompt=True)
    held = slot_tokens(tmp_path, server)
    newest = prompt[-290:]
    assert holds(held, newest)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("mode", ["window", "scattered"])
def test_a_choice_among_8k_tokens_is_quick(
    start: Callable[..., Server], tmp_path: Path, mode: str, cache_type: str
) -> None:
    """Keys of the size of SmolLM2's (3 heads of 64), in a model that gets there in seconds."""
    model = write_tiny(tmp_path / "tiny.gguf", head=64, heads=3, heads_kv=3, context=8192)
    args = ("-c", 8192, "-np", 1, "--context-shift", "--rest-kv-eviction", "--rest-kv-mode", mode)
    server = start(*args, "-ctk", cache_type, "-fa", "on", model=model, threads=2)
    prompt = [3 + byte % 128 for byte in random.Random(1).randbytes(8192 - 6)]
    server.complete(prompt, n=70, n_discard=16)
    times = [float(chosen) for chosen in re.findall(r"chosen in ([0-9.]+) ms, moved in", server.text())]
    assert len(times) >= 3
    assert statistics.median(times) < 5
