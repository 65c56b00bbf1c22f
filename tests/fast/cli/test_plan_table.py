"""The bars of `plan`: as wide as they say, whatever they are asked to show."""

from __future__ import annotations

import pytest

from launcher.cli.plan_table import _BAR, _bar
from launcher.plan.ledger import LedgerLine, Source
from launcher.units import GIB, MIB


def lines(*sizes: int) -> list[LedgerLine]:
    items = ("weights", "kv", "prompt-cache")
    return [LedgerLine(item, "host", size, Source.FORMULA, 0, "", "") for item, size in zip(items, sizes, strict=False)]


@pytest.mark.parametrize("free", [0, 1, 100 * MIB, 4 * GIB, 1 << 50])
def test_a_bar_is_as_wide_as_any_other(free: int) -> None:
    parts = lines(GIB, 10 * MIB, 2 * GIB)
    bar = _bar(parts, free, sum(line.bytes for line in parts))
    assert len(bar) == _BAR + 2


def test_where_what_is_free_ends_is_marked() -> None:
    bar = _bar(lines(2 * GIB), GIB, 2 * GIB)
    assert bar.index("┃") == 1 + _BAR // 2
    assert "┃" not in _bar(lines(GIB), 2 * GIB, GIB)
