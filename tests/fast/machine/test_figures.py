"""The cache that keeps figures for as long as they hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import KvlaunchError
from launcher.machine.bandwidth import Bandwidth, Conditions, Copy
from launcher.machine.figures import Identity, keep, recall, with_measured
from launcher.machine.types import Cpu, Device, DeviceKind, Machine, Memory, PcieLink, Rebar

MIB = 1 << 20
CONDITIONS = Conditions("2026-06-04T10:00:00+00:00", "cuda-driver", "nvidia 580", "6.1", "gen 3 x8", 0.1, 16)
COPIES = tuple(
    Copy(size * MIB, "h2d", host, rate, rate, 9)
    for size, host, rate in ((1, "pinned", 6.397), (64, "pinned", 6.669), (1, "pageable", 5.5), (64, "pageable", 6.537))
)
MEASURED = Bandwidth("CUDA0", "RTX 3090", CONDITIONS, COPIES, 9.5)
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
