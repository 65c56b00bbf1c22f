"""0005: a context shift with a quantized K neither crashes nor goes wrong, whatever the shape of the heads."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .engine import Server
from .tiny import write_tiny

# name: arch, head size, rotated dimensions, type of K, whether upstream dies (and how)
SHAPES = {
    "head 96, no Hadamard": ("qwen2", 96, None, "SIGSEGV"),
    "head 32, no Hadamard": ("qwen2", 32, None, "SIGSEGV"),
    "head 128, 64 rotated": ("stablelm", 128, 64, "abort"),
    "head 96, 48 rotated": ("stablelm", 96, 48, "abort"),
    "head 64, whole": ("qwen2", 64, None, ""),
}
PROMPT = [3 + byte for byte in random.Random(1).randbytes(200)]


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("0005")


def top(answer: dict[str, object]) -> dict[int, float]:
    first = answer["completion_probabilities"][0]  # type: ignore[index]
    return {entry["id"]: entry["logprob"] for entry in first["top_logprobs"]}


def after_shift(server: Server) -> dict[int, float]:
    """The distribution after a shift by --cache-reuse: the middle of the prompt goes, what follows moves down."""
    server.complete(PROMPT, n=1, cache_prompt=True)
    moved = PROMPT[:40] + PROMPT[90:]
    answer = server.complete(moved, n=1, cache_prompt=True, n_cache_reuse=16, n_probs=20)
    assert answer["timings"]["cache_n"] >= len(moved) - 16, "the tail was computed anew, nothing was shifted"
    return top(answer)


def distance(a: dict[int, float], b: dict[int, float]) -> float:
    """Mean difference of the probabilities both name; what only one names counts with its own."""
    ids = set(a) | set(b)
    return sum(abs(math.exp(a.get(i, -99)) - math.exp(b.get(i, -99))) for i in ids) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shifted_quantized_k_means_the_same(start: Callable[..., Server], tmp_path: Path, shape: str) -> None:
    arch, head, rotated, _ = SHAPES[shape]
    model = write_tiny(tmp_path / "tiny.gguf", arch=arch, head=head, rotated=rotated)
    common = ("-c", 512, "-np", 1, "--cache-ram", 0)
    exact = after_shift(start(*common, model=model))
    shifted = after_shift(start(*common, "-ctk", "q8_0", "-fa", "on", model=model))
    # measured 0.002 to 0.011; another prompt's distribution is 0.06 to 0.19 away, and so is q4_0's own rounding
    assert distance(exact, shifted) < 0.03


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0", "iq4_nl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_generation_goes_on_through_context_shifts(
    start: Callable[..., Server], tmp_path: Path, shape: str, cache_type: str
) -> None:
    arch, head, rotated, _ = SHAPES[shape]
    model = write_tiny(tmp_path / "tiny.gguf", arch=arch, head=head, rotated=rotated)
    server = start("-c", 256, "-np", 1, "--context-shift", "-ctk", cache_type, "-fa", "on", model=model)
    answer = server.complete(PROMPT, n=300)
    assert answer["tokens_predicted"] == 300
    assert "context shift" in server.text()


def test_the_hadamard_matrix_can_be_off(start: Callable[..., Server]) -> None:
    server = start(
        "-c", 256, "-np", 1, "--context-shift", "-ctk", "q8_0", "-fa", "on", env={"LLAMA_ATTN_ROT_DISABLE": "1"}
    )
    assert server.complete("Once upon a time", n=300)["tokens_predicted"] == 300


@pytest.mark.parametrize("shape", [name for name, row in SHAPES.items() if row[3]])
def test_the_unpatched_engine_does_die(
    start: Callable[..., Server], reference_binary: Path, tmp_path: Path, shape: str
) -> None:
    """When this fails, upstream has mended it: the patch can go."""
    arch, head, rotated, _ = SHAPES[shape]
    model = write_tiny(tmp_path / "tiny.gguf", arch=arch, head=head, rotated=rotated)
    args = ("-c", 256, "-np", 1, "--context-shift", "-ctk", "q8_0", "-fa", "on")
    server = start(*args, model=model, binary=reference_binary)
    with pytest.raises(OSError):  # the connection just ends
        server.complete(PROMPT, n=300)
    assert server.wait() < 0
