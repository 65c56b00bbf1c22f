"""With every option off, the patched engine is the unpatched one: tokens, JSON, metrics, probabilities, slot files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .engine import Server, words

CONFIGURATIONS = {
    "default": ("-c", 1024),
    "unified": ("-c", 1024, "-np", 2, "-kvu"),
    "split": ("-c", 1024, "-np", 2),
    "context shift": ("-c", 256, "-np", 1, "--context-shift"),
    "cache reuse": ("-c", 512, "-np", 1, "--cache-reuse", 16),
    "q8_0:q4_0": ("-c", 1024, "-np", 1, "-ctk", "q8_0", "-ctv", "q4_0", "-fa", "on"),
    "no flash attention": ("-c", 512, "-np", 1, "-fa", "off"),
}

# what differs between two runs of one binary
VOLATILE = re.compile(r"_(ms|second|seconds)$")
TIMES = {"id", "id_task", "created", "build_info", "system_fingerprint", "t_ms", "filename", "media_marker"}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in TIMES and not VOLATILE.search(k)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def script(server: Server, folder: Path, shifts: bool) -> list[Any]:
    """Requests of every kind, some with fields that only our options read."""
    seen: list[Any] = []

    def note(what: str, answer: Any) -> None:
        seen.append((what, plain(answer)))

    ours = {"session_id": "a", "metadata": {"user_id": "u"}, "kv_protect": [[0, 4]], "kv_eviction": "window"}
    greedy = {"temperature": 0, "seed": 1, "cache_prompt": True}
    for i, extra in enumerate(({}, ours, {"n_probs": 5}, {"id_slot": 0})):
        note(f"completion {i}", server.complete(words(60) + words(10 * i, seed=i), n=12, **{**greedy, **extra}))
    note("long", server.complete(words(100, seed=8), n=160 if shifts else 20, **greedy))
    note("sampled", server.complete(words(30), n=20, seed=7, temperature=0.8, cache_prompt=False))
    chat = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 12, **greedy}
    note("chat", server.post("/v1/chat/completions", {**chat, **ours}, {"X-Session-Id": "a"}))
    note("anthropic", server.post("/v1/messages", {**chat, "metadata": {"user_id": "u"}}))
    note("several", server.post("/completion", {"prompt": words(20), "n_predict": 6, "n_cmpl": 2, **greedy}))
    note("array", server.post("/completion", {"prompt": [words(9), words(9, seed=2)], "n_predict": 4, **greedy}))
    note("tokenize", server.post("/tokenize", {"content": words(20)}))
    note("slots", server.get("/slots"))
    note("props", server.get("/props"))
    note("metrics", sorted(name for name in server.metrics()))
    counters = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total", "n_decode_total")
    note("counters", {name: server.metrics()[f"llamacpp:{name}"] for name in counters})
    note("save", server.post("/slots/0?action=save", {"filename": "s.bin"}))
    note("file", hashlib.sha256((folder / "s.bin").read_bytes()).hexdigest())
    note("restore", server.post("/slots/0?action=restore", {"filename": "s.bin"}))
    note("erase", server.post("/slots/0?action=erase", {}))
    return seen


def same(start: Callable[..., Server], reference: Path, folder: Path, args: tuple[object, ...], **options: Any) -> None:
    (folder / "k").mkdir(exist_ok=True)
    full = (*args, "--metrics", "--slot-save-path", folder / "k")
    results = []
    for binary in (None, reference):
        server = start(*full, binary=binary, **options)
        results.append(script(server, folder / "k", "--context-shift" in args))
        server.stop()
    for ours, theirs in zip(*results, strict=True):
        assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_smollm2(start: Callable[..., Server], reference_binary: Path, tmp_path: Path, configuration: str) -> None:
    same(start, reference_binary, tmp_path, CONFIGURATIONS[configuration])


@pytest.mark.parametrize("configuration", ["default", "split", "q8_0:q4_0"])
def test_gemma3(
    start: Callable[..., Server], reference_binary: Path, gemma3_model: Path, tmp_path: Path, configuration: str
) -> None:
    same(start, reference_binary, tmp_path, CONFIGURATIONS[configuration], model=gemma3_model)


def test_help_only_grows(server_binary: Path, reference_binary: Path) -> None:
    import subprocess

    def options(binary: Path) -> set[str]:
        text = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]+", text))

    assert options(reference_binary) <= options(server_binary)
