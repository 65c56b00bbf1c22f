"""Reads that never fail: absent, forbidden, garbage and endless files are None."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.tree import Tree, index_list, whole


def test_reads(box: Any) -> None:
    box.write("/a/number", "42\n")
    box.write("/a/hex", "0x10de\n")
    box.write("/a/lines", "\n \nfirst\nsecond\n")
    box.write("/proc/meminfo", "MemTotal:  10 kB\nHugePages_Total:   3\nanon 5\nbad: x\n")
    tree = Tree(box.root)
    assert tree.number("/a/number") == 42
    assert tree.number("/a/hex") == 0x10DE
    assert tree.line("/a/lines") == "first"
    assert tree.pairs("/proc/meminfo") == {"MemTotal": 10240, "HugePages_Total": 3, "anon": 5}
    assert tree.names("/a") == ["hex", "lines", "number"]


def test_what_is_not_there(box: Any) -> None:
    tree = Tree(box.root)
    assert (tree.text("/x"), tree.data("/x"), tree.line("/x"), tree.number("/x")) == (None,) * 4
    assert (tree.pairs("/x"), tree.names("/x"), tree.resolve("/x"), tree.exists("/x")) == ({}, [], None, False)
    assert tree.text("/nul\0byte") is None
    assert tree.names("/nul\0byte") == []


def test_a_directory_and_a_fifo_where_a_file_should_be(box: Any) -> None:
    (box.root / "d").mkdir()
    os.mkfifo(box.root / "fifo")
    tree = Tree(box.root)
    assert tree.text("/d") is None
    assert tree.text("/fifo") in (None, "")  # nobody writes: it must not wait
    assert tree.line("/fifo") is None


def test_an_endless_file_ends(box: Any) -> None:
    (box.root / "zero").symlink_to("/dev/zero")
    data = Tree(box.root).data("/zero")
    assert data is not None
    assert len(data) == 1 << 22


def test_links_stay_in_the_tree(box: Any) -> None:
    box.write("/real/file", "x")
    box.link("/in", "/real/file")
    (box.root / "out").symlink_to("/etc")
    (box.root / "loop").symlink_to("loop")
    tree = Tree(box.root)
    assert tree.resolve("/in") == "/real/file"
    assert tree.resolve("/out") is None
    assert tree.resolve("/loop") is None


def test_the_live_tree_is_the_box_itself() -> None:
    assert Tree().live
    assert Tree(Path("/")).resolve("/proc") == "/proc"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9223372036854771712", None),
        (" 12 kB ", 12288),
        ("1125899906842624", 1 << 50),
        ("1125899906842625", None),
        ("1125899906842624 kB", None),
        ("0xffffffffffffffff", None),
        ("99999999999999999999", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("max", None),
        ("١٢", None),
        (None, None),
    ],
)
def test_whole(text: str | None, value: int | None) -> None:
    assert whole(text) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        ("", set()),
        (None, set()),
        ("3-1", set()),
        ("0-99999999", set()),
        ("0-999999", set()),
        ("x,2,-5", {2}),
    ],
)
def test_index_list(text: str | None, found: set[int]) -> None:
    assert index_list(text) == found


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    value = whole(text)
    assert value is None or value >= 0
    assert all(index >= 0 for index in index_list(text))
