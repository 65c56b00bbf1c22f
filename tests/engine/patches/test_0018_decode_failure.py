"""0018: after a decode that found no memory, the server serves on, and no slot claims what was never computed.

The address space is closed below a running server (what it has stays, nothing new is given), so the next long prompt
fails within the decode; then it is opened again.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import Server, words

HEAD = words(100, seed=1)
LONG = f"{HEAD} {words(600, seed=2)}"  # more than an ubatch: cells are taken for the one that fails
SHORTER = " ".join(LONG.split()[:300])


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("0018")


def fail(server: Server, **fields: object) -> None:
    """A decode that finds no memory. What is asked for before it may have to be given: a little more each time."""
    body = {"prompt": LONG, "n_predict": 1, "cache_prompt": True, **fields}
    for spare in range(0, 4 << 20, 256 << 10):
        with starved(server, spare):
            status, answer = server.request("POST", "/completion", body, timeout=30)
        assert status != 200, f"{spare} bytes were enough"
        if "decode() failed: std::bad_alloc" in answer["error"]["message"]:
            return
    raise AssertionError(f"it always failed elsewhere, at last with {answer}")


@contextlib.contextmanager
def starved(server: Server, spare: int) -> Iterator[None]:
    """So many bytes can still be mapped."""
    pid = server.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("Hello.", LONG, id="the same prompt"),  # upstream: aborts
        pytest.param(HEAD, LONG, id="the same prompt, whose start was computed"),  # upstream: "Invalid input batch"
        pytest.param(HEAD, SHORTER, id="a part of it that was not"),  # upstream: an answer from empty cells
    ],
)
def test_the_next_request_is_answered_from_what_was_computed(
    start: Callable[..., Server], before: str, after: str
) -> None:
    server = start("-c", 2048, "-np", 1, "--cache-ram", 0, threads=2)
    server.complete(before, n=1, cache_prompt=True)
    fail(server)
    answer = server.complete(after, n=16, cache_prompt=True)
    anew = server.complete(after, n=16, cache_prompt=False)
    assert answer["timings"]["prompt_n"] == anew["timings"]["prompt_n"] == answer["tokens_evaluated"]
    assert answer["content"] == anew["content"]


def test_a_slot_without_a_request_keeps_what_it_holds(start: Callable[..., Server]) -> None:
    server = start("-c", 4096, "-np", 2, "--cache-ram", 0, threads=2)
    server.complete(HEAD, n=1, cache_prompt=True, id_slot=1)
    fail(server, id_slot=0)
    assert server.complete(HEAD, n=1, cache_prompt=True, id_slot=1)["timings"]["prompt_n"] == 1
