"""Figures as values."""

from __future__ import annotations

import json
from dataclasses import replace

from launcher.machine.bandwidth import Bandwidth, Conditions, Copy
from launcher.machine.decode import Reader

MIB = 1 << 20
CONDITIONS = Conditions("2026-06-04T10:00:00+00:00", "cuda-driver", "nvidia 580", "6.1", "gen 3 x8", 0.1, 16)
COPIES = tuple(
    Copy(size * MIB, "h2d", host, rate, rate, 9)
    for size, host, rate in ((1, "pinned", 6.397), (64, "pinned", 6.669), (1, "pageable", 5.5), (64, "pageable", 6.537))
)
MEASURED = Bandwidth("CUDA0", "RTX 3090", CONDITIONS, COPIES, 9.5)


def test_the_plateau_is_pinned_where_it_can_be() -> None:
    assert MEASURED.plateau == 6.669
    assert replace(MEASURED, copies=()).plateau is None


def test_small_copies_that_a_cache_flatters_are_no_plateau() -> None:
    flattered = (Copy(1 * MIB, "h2d", "pinned", 9.0, 9.0, 5), Copy(64 * MIB, "h2d", "pinned", 6.0, 6.0, 5))
    assert replace(MEASURED, copies=flattered).plateau == 6.0


def test_a_device_without_pinned_memory_has_a_plateau_too() -> None:
    pageable = tuple(copy for copy in COPIES if copy.host == "pageable")
    assert replace(MEASURED, copies=pageable).plateau == 6.537


def test_everything_survives_json() -> None:
    data = json.loads(json.dumps(MEASURED.as_json()))
    assert Bandwidth.read(Reader.top(data, "test")) == MEASURED
