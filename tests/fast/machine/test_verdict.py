"""What measured copies say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.machine.bandwidth import Bandwidth, Conditions, Copy
from launcher.machine.types import Device, DeviceKind, PcieLink, Rebar
from launcher.machine.verdict import judge

MIB = 1 << 20
CONDITIONS = Conditions("2026-06-04T10:00:00+00:00", "cuda-driver", "nvidia 580", "6.1", "gen 3 x8", 0.1, 16)
# an RTX 3090 at PCIe 3.0 x8, by size: pinned up, down, pageable up, down
SEEN = {1: (6.397, 6.361, 5.545, 4.437), 16: (6.656, 6.590, 6.400, 6.334), 64: (6.669, 6.593, 6.537, 6.468)}


def copies(table: dict[int, tuple[float, ...]]) -> tuple[Copy, ...]:
    cells = (("h2d", "pinned"), ("d2h", "pinned"), ("h2d", "pageable"), ("d2h", "pageable"))
    return tuple(
        Copy(size * MIB, direction, host, rate, rate, 9)
        for size, rates in table.items()
        for (direction, host), rate in zip(cells, rates, strict=True)
    )


LINK = PcieLink(gen=3, gen_max=3, width=8, width_max=8, gbps_max=7.88, bottleneck="0000:01:00.0")
CARD = Device(
    id="CUDA0",
    name="RTX 3090",
    kind=DeviceKind.DISCRETE,
    uuid="GPU-1",
    address="0000:01:00.0",
    driver="nvidia 580",
    pcie=LINK,
    rebar=Rebar.ON,
)
MEASURED = Bandwidth("CUDA0", "RTX 3090", CONDITIONS, copies(SEEN), 9.5)


def test_a_full_link() -> None:
    """Its 1 MiB ratio (1.15, 1.43) was called degraded ReBAR; ReBAR was on, and the link full."""
    verdict = judge(MEASURED, CARD)
    assert verdict.gain["h2d", 1 * MIB] == 1.154
    assert verdict.gain["d2h", 1 * MIB] == 1.434
    assert verdict.gain["h2d", 64 * MIB] == 1.02
    assert verdict.link_share == 0.846
    rebar, link, gain = verdict.sentences
    assert rebar.startswith("ReBAR is on")
    assert "85% of what the link (gen 3 x8) carries, so the link is full" in link
    assert "1.43× as fast at 1.0 MiB and no faster at 64.0 MiB" in gain


@pytest.mark.parametrize(
    ("rebar", "words"), [(Rebar.OFF, "ReBAR is off"), (Rebar.PARTIAL, "ReBAR is partial"), (Rebar.ON, "ReBAR is on")]
)
def test_rebar_comes_from_the_bar_not_from_the_ratio(rebar: Rebar, words: str) -> None:
    assert judge(MEASURED, replace(CARD, rebar=rebar)).sentences[0].startswith(words)


def test_no_rebar_no_sentence() -> None:
    assert not any("ReBAR" in sentence for sentence in judge(MEASURED, replace(CARD, rebar=None)).sentences)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({1: (2.0, 2.0, 2.0, 2.0), 64: (2.0, 2.0, 2.0, 2.0)}, "only 25% of what the link"),
        ({1: (2.0, 2.0, 2.0, 2.0), 64: (2.0, 2.0, 2.0, 2.0)}, "gains nothing at any size"),
        ({1: (6.0, 6.0, 3.0, 3.0), 64: (6.5, 6.5, 3.2, 3.2)}, "2.03× as fast even at 64.0 MiB"),
        ({1: (9.0, 9.0, 9.0, 9.0), 64: (9.0, 9.0, 9.0, 9.0)}, "what was read about the link is wrong"),
    ],
)
def test_other_findings(table: dict[int, tuple[float, ...]], words: str) -> None:
    verdict = judge(replace(MEASURED, copies=copies(table)), CARD)
    assert any(words in sentence for sentence in verdict.sentences), verdict.sentences


def test_a_bridge_that_limits_is_named() -> None:
    verdict = judge(MEASURED, replace(CARD, pcie=replace(LINK, bottleneck="0000:00:01.0")))
    assert "at 0000:00:01.0" in verdict.sentences[1]


def test_an_rpc_device_has_pageable_figures_only() -> None:
    rpc = Device(id="RPC0", name="10.0.0.2:50052", kind=DeviceKind.REMOTE)
    figures = tuple(copy for copy in MEASURED.copies if copy.host == "pageable")
    verdict = judge(replace(MEASURED, copies=figures), rpc)
    assert (verdict.gain, verdict.link_share) == ({}, None)
    assert verdict.sentences == ("6.54 GB/s host to device.",)
