"""GPUs on the bus: the slowest link up to the root, sleep, BARs, names."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.machine import pci
from launcher.machine.pci import AMD, INTEL, NVIDIA
from launcher.machine.tree import Tree
from launcher.machine.types import LinkState, Rebar

G1, G3, G4, G5 = "2.5 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
ROOT = "pci0000:00/0000:00:01.0"
MIB, GIB = 1 << 20, 1 << 30


def only(box: Any) -> pci.PciFunction:
    (function,) = pci.gpus(Tree(box.root))
    return function


def link(box: Any) -> Any:
    return pci.link(Tree(box.root), only(box))


def test_a_card_in_a_full_slot(box: Any) -> None:
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G5), width=(16, 16))
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G4, G4), width=(16, 16), driver="nvidia")
    found = link(box)
    assert (found.gen, found.gen_max, found.width, found.width_max) == (4, 4, 16, 16)
    assert found.state is LinkState.ACTIVE
    assert found.gbps_max == 31.51
    assert found.bottleneck == "0000:01:00.0"


def test_an_idle_link_is_no_finding(box: Any) -> None:
    box.bridge(ROOT, vendor=INTEL, speed=(G1, G4), width=(16, 16))
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G1, G4), width=(16, 16))
    found = link(box)
    assert (found.gen, found.gen_max, found.state) == (1, 4, LinkState.IDLE)
    assert found.gbps_max == 31.51  # what it can do, not what it does now


def test_an_older_slot_limits_what_the_card_can(box: Any) -> None:
    box.bridge(ROOT, vendor=INTEL, speed=(G3, G3), width=(8, 8))
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G3, G4), width=(8, 16))
    found = link(box)
    assert (found.gen_max, found.width_max, found.state) == (3, 8, LinkState.ACTIVE)
    assert (found.gen_card, found.width_card) == (4, 16)
    assert found.gbps_max == 7.88


def test_missing_lanes_are_a_finding(box: Any) -> None:
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G4), width=(4, 16))
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G4, G4), width=(4, 16))
    found = link(box)
    assert (found.width, found.width_max, found.state) == (4, 16, LinkState.NARROW)
    assert found.gbps_max == 7.88


def test_a_switch_above_limits(box: Any) -> None:
    """x16 gen 4 up to the switch's lower side, x8 gen 3 from the switch to the root."""
    up = f"{ROOT}/0000:01:00.0"
    down = f"{up}/0000:02:00.0"
    box.bridge(ROOT, vendor=INTEL, speed=(G3, G3), width=(8, 8))
    box.bridge(up, vendor=0x10B5, speed=(G3, G4), width=(8, 16))
    box.bridge(down, vendor=0x10B5, speed=(G4, G4), width=(16, 16))
    box.function(f"{down}/0000:03:00.0", vendor=NVIDIA, speed=(G4, G4), width=(16, 16))
    found = link(box)
    assert (found.gen_max, found.width_max, found.bottleneck) == (3, 8, "0000:01:00.0")
    assert (found.gen_card, found.width_card) == (4, 16)
    assert found.gbps_max == 7.88


def test_a_switch_s_two_sides_share_no_link(box: Any) -> None:
    """The lower side's figures are about the link below it; held against the upper side they would look narrow."""
    up = f"{ROOT}/0000:01:00.0"
    down = f"{up}/0000:02:00.0"
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G4), width=(16, 16))
    box.bridge(up, vendor=0x10B5, speed=(G4, G4), width=(16, 16))
    box.bridge(down, vendor=0x10B5, speed=(G4, G4), width=(8, 16))
    box.function(f"{down}/0000:03:00.0", vendor=NVIDIA, speed=(G4, G4), width=(8, 8))
    found = link(box)
    assert (found.state, found.width_max, found.bottleneck) == (LinkState.ACTIVE, 8, "0000:03:00.0")


def test_arc_s_own_switch_hides_a_made_up_link(box: Any) -> None:
    """An Arc card's GPU says gen 1 x1 behind the switch on the card; the card's edge is the switch."""
    up = f"{ROOT}/0000:01:00.0"
    down = f"{up}/0000:02:01.0"
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G5), width=(16, 16))
    box.bridge(up, vendor=INTEL, device=0x4FA0, speed=(G4, G4), width=(16, 16))
    box.bridge(down, vendor=INTEL, device=0x4FA4, speed=(G1, G1), width=(1, 1))
    box.function(f"{down}/0000:03:00.0", vendor=INTEL, device=0x56A0, speed=(G1, G1), width=(1, 1), driver="i915")
    found = link(box)
    assert (found.gen, found.gen_max, found.width, found.state) == (4, 4, 16, LinkState.ACTIVE)
    assert found.bottleneck == "0000:01:00.0"
    assert (found.gen_card, found.width_card) == (4, 16)


def test_amd_card_in_a_narrow_slot(box: Any) -> None:
    """The GPU itself says gen 4 x16 to the switch on its card, always; the slot has four lanes."""
    up = f"{ROOT}/0000:01:00.0"
    down = f"{up}/0000:02:00.0"
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G4), width=(4, 4))
    box.bridge(up, vendor=AMD, speed=(G4, G4), width=(4, 16))
    box.bridge(down, vendor=AMD, speed=(G4, G4), width=(16, 16))
    box.function(f"{down}/0000:03:00.0", vendor=AMD, speed=(G4, G4), width=(16, 16), driver="amdgpu")
    found = link(box)
    assert (found.gen_max, found.width_max, found.width, found.width_card) == (4, 4, 4, 16)
    assert found.gbps_max == 7.88


def test_an_intel_gpu_below_intel_s_root_port_is_not_on_a_switch(box: Any) -> None:
    box.bridge(ROOT, vendor=INTEL, speed=(G3, G3), width=(4, 4))
    box.function(f"{ROOT}/0000:01:00.0", vendor=INTEL, device=0x4905, speed=(G3, G4), width=(4, 8))
    assert (link(box).gen_max, link(box).width_max) == (3, 4)


def test_a_made_up_root_port_is_not_believed(box: Any) -> None:
    box.bridge(ROOT, vendor=0x1B36, speed=(G1, G1), width=(1, 1))
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G5, G5), width=(16, 16))
    found = link(box)
    assert (found.gen_max, found.width_max) == (5, 16)
    assert found.gbps_max == 63.02


def test_a_passed_through_gpu_without_a_bridge(box: Any) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, speed=(G4, G4), width=(16, 16))
    assert link(box).gbps_max == 31.51


def test_an_integrated_gpu_has_no_link(box: Any) -> None:
    box.function("pci0000:00/0000:00:02.0", vendor=INTEL)
    assert link(box) is None


def test_a_sleeping_gpu_s_link_is_not_read(box: Any) -> None:
    """Reading the link files would wake it; here they would also give figures, so their absence shows."""
    box.bridge(ROOT, vendor=INTEL, speed=(G4, G4), width=(8, 8), status="suspended")
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=(G4, G4), width=(8, 16), status="suspended")
    assert link(box) == pci.PcieLink(state=LinkState.SUSPENDED)


@pytest.mark.parametrize(
    ("speed", "width"),
    [
        (("Unknown", "Unknown"), (0, 0)),
        (("Unknown speed", ""), (255, 255)),
        (("", ""), (63, 0)),
        (("9.9 GT/s", "-3"), (16, 16)),
    ],
)
def test_links_that_say_nothing(box: Any, speed: tuple[str, str], width: tuple[int, int]) -> None:
    box.bridge(ROOT, vendor=INTEL)
    box.function(f"{ROOT}/0000:01:00.0", vendor=NVIDIA, speed=speed, width=width)
    assert link(box) is None


def test_only_gpus_of_the_three_vendors(box: Any) -> None:
    box.function("pci0000:00/0000:00:03.0", vendor=0x1A03)  # a server's BMC
    box.function("pci0000:00/0000:00:04.0", vendor=NVIDIA, cls=0x040300)  # the card's sound
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, cls=0x068000)  # NVSwitch
    box.function("pci0000:00/0000:00:06.0", vendor=AMD, cls=0x120000)
    box.function("pci0000:00/0000:00:07.0", vendor=NVIDIA, cls=0x030200)
    assert [function.address for function in pci.gpus(Tree(box.root))] == ["0000:00:06.0", "0000:00:07.0"]


@pytest.mark.parametrize(
    ("bar", "total", "found"),
    [
        (256 * MIB, 24 * GIB, Rebar.OFF),
        (256 * MIB, None, Rebar.OFF),
        (32 * GIB, 24 * GIB, Rebar.ON),
        (16 * GIB, 24 * GIB, Rebar.PARTIAL),
        (16 * GIB, None, None),
        (None, 24 * GIB, None),
    ],
)
def test_rebar(bar: int | None, total: int | None, found: Rebar | None) -> None:
    assert pci.rebar(bar, total) is found


def test_the_window_is_the_largest_prefetchable_bar(box: Any) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, bars=(256 * MIB, 32 * MIB))
    assert only(box).bar == 256 * MIB


@pytest.mark.parametrize(
    "resource", ["", "x y z\n", "0x0 0x0 0x0\n", "0xffff 0x0 0x2200\n", "0x0 0xffffffffffffffff 0x2200"]
)
def test_resources_that_say_nothing(box: Any, resource: str) -> None:
    at = box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA)
    box.write(f"{at}/resource", resource)
    assert only(box).bar is None


IDS = """# a list
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1002 0e3b  one board
10de  NVIDIA Corporation
\t2204  GA102 [GeForce RTX 3090]
\t9999  Plain
8086  Intel Corporation
\t2204  Not that one
"""


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        (AMD, 0x744C, "AMD Radeon RX 7900 XT/7900 XTX"),
        (NVIDIA, 0x2204, "NVIDIA GeForce RTX 3090"),
        (NVIDIA, 0x9999, "NVIDIA Plain"),
        (NVIDIA, 0x744C, "NVIDIA GPU [10de:744c]"),
        (AMD, 0x2204, "AMD GPU [1002:2204]"),
    ],
)
def test_names(box: Any, vendor: int, device: int, name: str) -> None:
    box.write("/usr/share/misc/pci.ids", IDS)
    box.function("pci0000:00/0000:00:05.0", vendor=vendor, device=device)
    assert pci.name(Tree(box.root), only(box)) == name


def test_a_name_without_a_list(box: Any) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=INTEL, device=0x56A0)
    assert pci.name(Tree(box.root), only(box)) == "Intel GPU [8086:56a0]"
