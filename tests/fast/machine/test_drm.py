"""AMD and Intel GPUs from the files of their drivers."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.machine import drm, pci
from launcher.machine.pci import AMD, INTEL
from launcher.machine.tree import Tree
from launcher.machine.types import Device, DeviceKind, Memory, Rebar

MIB, GIB = 1 << 20, 1 << 30
HOST = Memory(total=64 * GIB, available=40 * GIB)
CARD_TABLE = b"\x80\x00\x01\x03" + bytes(124)
APU_TABLE = b"\x80\x00\x02\x02" + bytes(124)
ARC = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0"


def read(box: Any) -> tuple[Device, ...]:
    tree = Tree(box.root)
    return drm.read_devices(tree, pci.gpus(tree), HOST)


def amd(box: Any, *, table: bytes | None = CARD_TABLE, vram: int = 24 * GIB, used: int = 1 * GIB, **facts: Any) -> str:
    at: str = box.function("pci0000:00/0000:00:01.0/0000:03:00.0", vendor=AMD, device=0x744C, driver="amdgpu", **facts)
    box.write(f"{at}/mem_info_vram_total", f"{vram}\n")
    box.write(f"{at}/mem_info_vram_used", f"{used}\n")
    box.write(f"{at}/mem_info_vis_vram_total", f"{vram}\n")
    box.write(f"{at}/mem_info_gtt_total", f"{32 * GIB}\n")
    box.write(f"{at}/mem_info_gtt_used", f"{GIB}\n")
    if table is not None:
        box.write(f"{at}/gpu_metrics", table)
    return at


def test_an_amd_card(box: Any) -> None:
    at = amd(box)
    box.write(f"{at}/product_name", "AMD Radeon RX 7900 XTX\n")
    (device,) = read(box)
    assert (device.id, device.name, device.kind) == ("Vulkan0", "AMD Radeon RX 7900 XTX", DeviceKind.DISCRETE)
    assert (device.memory_total, device.memory_free, device.memory_shared) == (24 * GIB, 23 * GIB, 0)
    assert (device.rebar, device.driver, device.source) == (Rebar.ON, "amdgpu", "drm")


def test_an_amd_card_without_rebar(box: Any) -> None:
    at = amd(box)
    box.write(f"{at}/mem_info_vis_vram_total", f"{256 * MIB}\n")
    (device,) = read(box)
    assert device.rebar is Rebar.OFF


def test_rocm_names_and_target(box: Any) -> None:
    amd(box)
    box.write("/dev/kfd", "")
    node = "/sys/class/kfd/kfd/topology/nodes"
    box.write(f"{node}/0/properties", "cpu_cores_count 16\ngfx_target_version 0\n")
    box.write(f"{node}/1/properties", f"gfx_target_version 110000\ndomain 0\nlocation_id {3 << 8}\n")
    (device,) = read(box)
    assert (device.id, device.compute) == ("ROCm0", "gfx1100")


@pytest.mark.parametrize(("version", "name"), [(90010, "gfx90a"), (90402, "gfx942"), (100300, "gfx1030")])
def test_targets_are_hexadecimal(box: Any, version: int, name: str) -> None:
    amd(box)
    properties = f"gfx_target_version {version}\ndomain 0\nlocation_id {3 << 8}\n"
    box.write("/sys/class/kfd/kfd/topology/nodes/1/properties", properties)
    assert read(box)[0].compute == name


def test_an_apu_shares_the_host_s_memory(box: Any) -> None:
    amd(box, table=APU_TABLE, vram=512 * MIB, used=128 * MIB)
    (device,) = read(box)
    assert device.kind is DeviceKind.INTEGRATED
    assert device.memory_total == 512 * MIB + 32 * GIB
    assert device.memory_free == 384 * MIB + 31 * GIB
    assert device.memory_shared == 32 * GIB
    assert device.rebar is None


def test_an_apu_cannot_have_more_than_the_host_has_left(box: Any) -> None:
    amd(box, table=APU_TABLE, vram=512 * MIB, used=512 * MIB)
    tree = Tree(box.root)
    (device,) = drm.read_devices(tree, pci.gpus(tree), Memory(total=64 * GIB, available=5 * GIB))
    assert device.memory_free == 5 * GIB


def test_a_sleeping_card_keeps_its_total_and_its_sleep(box: Any) -> None:
    """gpu_metrics would wake it: the kind then comes from the maker of its memory."""
    at = amd(box, table=APU_TABLE, status="suspended")
    box.write(f"{at}/mem_info_vram_vendor", "hynix\n")
    (device,) = read(box)
    assert device.suspended
    assert (device.kind, device.memory_total) == (DeviceKind.DISCRETE, 24 * GIB)


@pytest.mark.parametrize("table", [None, b"", b"\x80", b"\x80\x00\x09\x00"])
def test_a_kind_that_nothing_tells_is_unknown(box: Any, table: bytes | None) -> None:
    amd(box, table=table)
    assert read(box)[0].kind is None


def test_arc_under_xe_sums_its_tiles(box: Any) -> None:
    at = box.function(ARC, vendor=INTEL, device=0xE20B, driver="xe", bars=(16 * GIB,))
    box.write(f"{at}/tile0/physical_vram_size_bytes", f"{8 * GIB}\n")
    box.write(f"{at}/tile1/physical_vram_size_bytes", f"{8 * GIB}\n")
    (device,) = read(box)
    assert (device.kind, device.memory_total, device.memory_free) == (DeviceKind.DISCRETE, 16 * GIB, None)
    assert (device.rebar, device.memory_shared, device.source) == (Rebar.ON, 0, "drm")


def test_a_tile_that_is_silent_makes_the_sum_unknown(box: Any) -> None:
    at = box.function(ARC, vendor=INTEL, driver="xe")
    box.write(f"{at}/tile0/physical_vram_size_bytes", f"{8 * GIB}\n")
    box.write(f"{at}/tile1/physical_vram_size_bytes", "")
    assert read(box)[0].memory_total is None


def test_arc_under_intel_s_own_i915(box: Any) -> None:
    at = box.function(ARC, vendor=INTEL, device=0x56A0, driver="i915", bars=(256 * MIB,))
    box.write(f"{at}/drm/card1/lmem_total_bytes", f"{16 * GIB}\n")
    (device,) = read(box)
    assert (device.memory_total, device.rebar) == (16 * GIB, Rebar.OFF)


def test_arc_under_mainline_i915_keeps_its_size_to_itself(box: Any) -> None:
    box.function(ARC, vendor=INTEL, device=0x56A0, driver="i915", bars=(16 * GIB,))
    (device,) = read(box)
    assert (device.memory_total, device.memory_free, device.rebar, device.source) == (None, None, None, "pci")


def test_intel_s_integrated_gpu(box: Any) -> None:
    at = box.function("pci0000:00/0000:00:02.0", vendor=INTEL, device=0x46A6, driver="i915", bars=(256 * MIB,))
    box.write(f"{at}/drm/card0/lmem_total_bytes", "0\n")
    (device,) = read(box)
    assert (device.kind, device.memory_total, device.memory_shared) == (DeviceKind.INTEGRATED, None, None)
    assert (device.pcie, device.rebar) == (None, None)


def test_ids_count_per_backend(box: Any) -> None:
    amd(box)
    box.write("/dev/kfd", "")
    box.function("pci0000:00/0000:00:02.0", vendor=INTEL, driver="i915")
    box.function("pci0000:00/0000:00:01.0/0000:05:00.0", vendor=AMD, driver="amdgpu")
    assert [device.id for device in read(box)] == ["Vulkan0", "ROCm0", "ROCm1"]
