"""With every option off, the patched engine computes the very graphs that the unpatched one does, node by node.

The scheduler tells them (GGML_SCHED_DEBUG=2): every node's operation, name, size, backend, sources and use count, each
time that a graph is made anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .engine import Server, words

CONFIGURATIONS: dict[str, tuple[object, ...]] = {
    "f16, shifts": ("-c", 256, "-np", 1, "--context-shift"),
    "two unified slots": ("-c", 512, "-np", 2, "-kvu"),
    "two split slots, q8_0:q4_0": ("-c", 512, "-np", 2, "-ctk", "q8_0", "-ctv", "q4_0", "-fa", "on"),
    "no flash attention": ("-c", 256, "-np", 1, "-fa", "off"),
}
# a node, or one of its sources: each an entry of the log, with those of other threads between them
_ENTRY = re.compile(r"node #[ \d]{3} \([ \w]{10}\): .{20} \(.{5}\) \[.{14}\] use=\d+,c=\d|.{20} \(.{5}\) \[.{14}\]")


def graphs(start: Callable[..., Server], binary: Path | None, model: Path, args: tuple[object, ...]) -> list[str]:
    """The nodes of all graphs of a prefill, some tokens and, where the context is full, shifts."""
    server = start(*args, "-lv", 5, model=model, binary=binary, env={"GGML_SCHED_DEBUG": "2"})
    server.complete(words(90), n=200 if "--context-shift" in args else 12, cache_prompt=True)
    server.complete(words(90) + " and more", n=4, cache_prompt=True, id_slot=0)
    time.sleep(0.2)  # the log has a thread of its own
    server.stop()
    return _ENTRY.findall(server.text())


def same(start: Callable[..., Server], reference: Path, model: Path, args: tuple[object, ...]) -> None:
    ours, theirs = graphs(start, None, model, args), graphs(start, reference, model, args)
    assert sum(entry.startswith("node #  0 ") for entry in theirs) >= 4, "too few graphs: nothing was compared"
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == other, f"entry {number}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_smollm2(start: Callable[..., Server], reference_binary: Path, smollm2_model: Path, configuration: str) -> None:
    same(start, reference_binary, smollm2_model, CONFIGURATIONS[configuration])


def test_gemma3_with_its_two_caches(start: Callable[..., Server], reference_binary: Path, gemma3_model: Path) -> None:
    same(start, reference_binary, gemma3_model, ("-c", 1024, "-np", 1))


def test_the_comparison_sees_a_difference(start: Callable[..., Server], smollm2_model: Path) -> None:
    """Flash attention is another graph: were the two equal, the tests above would say nothing."""
    one, other = (graphs(start, None, smollm2_model, ("-c", 256, "-np", 1, "-fa", fa)) for fa in ("on", "off"))
    assert one != other
