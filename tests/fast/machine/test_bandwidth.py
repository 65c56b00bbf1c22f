"""What measured copies say, and the cache that keeps them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import KvlaunchError
from launcher.machine.bandwidth import (
    Bandwidth,
    Conditions,
    Copy,
    Identity,
    judge,
    keep,
    recall,
    with_measured,
)
from launcher.machine.types import Cpu, Device, DeviceKind, Machine, Memory, PcieLink, Rebar

MIB = 1 << 20
CONDITIONS = Conditions("2026-06-04T10:00:00+00:00", "cuda-driver", "nvidia 580", "6.1", "gen 3 x8", 0.1, 16)
# the seed's table (RTX 3090 at PCIe 3.0 x8): size: pinned up, down, pageable up, down
SEED = {1: (6.397, 6.361, 5.545, 4.437), 16: (6.656, 6.590, 6.400, 6.334), 64: (6.669, 6.593, 6.537, 6.468)}


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
MEASURED = Bandwidth("CUDA0", "RTX 3090", CONDITIONS, copies(SEED), 9.5)


def test_the_seed_s_card() -> None:
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


def test_the_plateau_is_pinned_where_it_can_be() -> None:
    assert MEASURED.plateau == 6.669
    assert replace(MEASURED, copies=()).plateau is None


def test_small_copies_that_a_cache_flatters_are_no_plateau() -> None:
    assert replace(MEASURED, copies=copies({1: (9.0,) * 4, 64: (6.0,) * 4})).plateau == 6.0


def test_everything_survives_the_cache(tmp_path: Path) -> None:
    path = keep(tmp_path / "new" / "bandwidth", Identity.of(CARD), MEASURED)
    assert recall(path.parent, Identity.of(CARD)) == MEASURED
    assert path.parent.stat().st_mode & 0o077 == 0
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no half-written file is left


@pytest.mark.parametrize(
    "other",
    [
        replace(CARD, driver="nvidia 590"),
        replace(CARD, name="RTX 4090"),
        replace(CARD, uuid="GPU-2"),
        replace(CARD, pcie=replace(LINK, width_max=16)),
        replace(CARD, pcie=replace(LINK, bottleneck="0000:00:01.0")),
    ],
)
def test_other_conditions_need_another_measurement(tmp_path: Path, other: Device) -> None:
    keep(tmp_path, Identity.of(CARD), MEASURED)
    assert recall(tmp_path, Identity.of(other)) is None


@pytest.mark.parametrize("link", [replace(LINK, gen=1), PcieLink(), None])
def test_an_idle_or_sleeping_link_forgets_nothing(tmp_path: Path, link: PcieLink | None) -> None:
    keep(tmp_path, Identity.of(CARD), MEASURED)
    assert recall(tmp_path, Identity.of(replace(CARD, pcie=link))) == MEASURED


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"identity": 3}', "[" * 100_000, "\0"])
def test_a_broken_cache_is_no_cache(tmp_path: Path, content: str) -> None:
    path = keep(tmp_path, Identity.of(CARD), MEASURED)
    path.write_text(content)
    assert recall(tmp_path, Identity.of(CARD)) is None


def test_a_cache_of_a_newer_kind_is_left_alone(tmp_path: Path) -> None:
    path = keep(tmp_path, Identity.of(CARD), MEASURED)
    data: Any = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"schema": 2}))
    assert recall(tmp_path, Identity.of(CARD)) is None


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvlaunchError, match="cannot keep the measurement"):
        keep(tmp_path / "file" / "below", Identity.of(CARD), MEASURED)


def test_the_machine_takes_the_figures(tmp_path: Path) -> None:
    rpc = Device(id="RPC0", name="10.0.0.2:50052", kind=DeviceKind.REMOTE)
    machine = Machine(devices=(CARD, rpc), memory=Memory(total=1), cpu=Cpu(model="EPYC", threads=4))
    assert with_measured(machine, tmp_path) == machine
    keep(tmp_path, Identity.of(CARD), MEASURED)
    keep(tmp_path, Identity.of_host(machine), Bandwidth("host", "EPYC", CONDITIONS, read_gbps=34.0))
    known = with_measured(machine, tmp_path)
    assert known.devices[0].pcie is not None
    assert known.devices[0].pcie.gbps == known.devices[0].copy_gbps == 6.669
    assert known.devices[0].copy_latency_us == 9.5
    assert known.devices[1] == rpc
    assert known.memory.gbps == 34.0
    other = replace(machine, cpu=Cpu(model="EPYC", threads=2))
    assert with_measured(other, tmp_path).memory.gbps is None
