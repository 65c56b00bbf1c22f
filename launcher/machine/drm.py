"""AMD and Intel GPUs: their memory, from the files of amdgpu, i915 and xe."""

from __future__ import annotations

import re

from launcher.machine import pci
from launcher.machine.pci import AMD, PciFunction
from launcher.machine.tree import Tree
from launcher.machine.types import Device, DeviceKind, Memory


def read_devices(tree: Tree, functions: tuple[PciFunction, ...], memory: Memory) -> tuple[Device, ...]:
    """One device a function. Ids are the engine's where they can be foretold: ROCm counts by address, so does Vulkan
    over what is left; the engine's own list (engine_devices.py) settles it."""
    rocm = tree.exists("/dev/kfd")
    counts = {"ROCm": 0, "Vulkan": 0}
    devices: list[Device] = []
    for function in functions:
        backend = "ROCm" if rocm and function.vendor == AMD and function.driver == "amdgpu" else "Vulkan"
        id = f"{backend}{counts[backend]}"
        counts[backend] += 1
        read = _amd if function.vendor == AMD else _intel
        devices.append(read(tree, function, memory, id))
    return tuple(devices)


def _amd(tree: Tree, function: PciFunction, memory: Memory, id: str) -> Device:
    """amdgpu keeps these totals and counters in memory: reading them does not wake a sleeping card."""
    vram = tree.number(f"{function.path}/mem_info_vram_total")
    used = tree.number(f"{function.path}/mem_info_vram_used")
    kind = _amd_kind(tree, function)
    total, shared = vram, None if vram is None else 0
    free = _left(vram, used)
    if kind is DeviceKind.INTEGRATED:
        gtt = tree.number(f"{function.path}/mem_info_gtt_total")
        gtt_free = _left(gtt, tree.number(f"{function.path}/mem_info_gtt_used"))
        if gtt_free is not None and memory.available is not None:
            gtt_free = min(gtt_free, memory.available)
        total, free, shared = _sum(vram, gtt), _sum(free, gtt_free), gtt
    visible = tree.number(f"{function.path}/mem_info_vis_vram_total")
    return Device(
        id=id,
        name=tree.line(f"{function.path}/product_name") or pci.name(tree, function),
        kind=kind,
        memory_total=total,
        memory_free=free,
        memory_shared=shared,
        pcie=pci.link(tree, function),
        rebar=None if kind is DeviceKind.INTEGRATED else pci.rebar(visible or function.bar, vram),
        vendor="amd",
        driver=function.driver,
        address=function.address,
        compute=_gfx_target(tree, function),
        suspended=function.suspended,
        source="drm" if vram is not None else "pci",
    )


def _amd_kind(tree: Tree, function: PciFunction) -> DeviceKind | None:
    """An APU or a card: the SMU's table says it by its revision (1: card; 2, 3: APU), but reading it wakes a card."""
    if not function.suspended and (revision := _metrics_revision(tree.data(f"{function.path}/gpu_metrics"))):
        return DeviceKind.DISCRETE if revision == 1 else DeviceKind.INTEGRATED
    maker = (tree.line(f"{function.path}/mem_info_vram_vendor") or "unknown").lower()
    return None if maker == "unknown" else DeviceKind.DISCRETE


def _metrics_revision(table: bytes | None) -> int | None:
    """The third byte of the table: its format revision (kgd_pp_interface.h, metrics_table_header)."""
    return table[2] if table is not None and len(table) >= 4 and 1 <= table[2] <= 3 else None


def _gfx_target(tree: Tree, function: PciFunction) -> str | None:
    """`gfx1100` from the compute driver's topology; its node is found by the PCI location."""
    parts = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", function.address)
    if parts is None:
        return None
    domain, bus, slot, number = (int(part, 16) for part in parts.groups())
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for node in tree.names(nodes):
        facts = tree.pairs(f"{nodes}/{node}/properties")
        version = facts.get("gfx_target_version", 0)
        here = (facts.get("domain"), facts.get("location_id"))
        if version and here == (domain, bus << 8 | slot << 3 | number):
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            return f"gfx{major}{minor:x}{step:x}"
    return None


def _intel(tree: Tree, function: PciFunction, memory: Memory, id: str) -> Device:
    """Mainline i915 and xe publish no free memory, and i915 no total: those stay unknown until the engine is asked."""
    total = None if function.suspended else _intel_total(tree, function)
    if function.address.endswith(":00:02.0"):
        kind: DeviceKind | None = DeviceKind.INTEGRATED  # where every one of Intel's processors has it
    else:
        kind = DeviceKind.DISCRETE
    return Device(
        id=id,
        name=pci.name(tree, function),
        kind=kind,
        memory_total=total,
        memory_shared=0 if kind is DeviceKind.DISCRETE else None,
        pcie=pci.link(tree, function),
        rebar=pci.rebar(function.bar, total) if kind is DeviceKind.DISCRETE else None,
        vendor="intel",
        driver=function.driver,
        address=function.address,
        suspended=function.suspended,
        source="drm" if total is not None else "pci",
    )


def _intel_total(tree: Tree, function: PciFunction) -> int | None:
    """xe: the sum over its tiles. i915: only Intel's own (out-of-tree) driver tells, at the card."""
    tiles = [name for name in tree.names(function.path) if re.fullmatch(r"tile\d{1,2}", name, re.ASCII)]
    sizes = [
        tree.number(f"{function.path}/{tile}/physical_vram_size_bytes")
        or tree.number(f"{function.path}/{tile}/memory/physical_vram_size_bytes")
        for tile in tiles
    ]
    if known := [size for size in sizes if size]:
        return sum(known) if len(known) == len(sizes) else None
    for card in tree.names(f"{function.path}/drm"):
        if card.startswith("card"):
            size = tree.number(f"{function.path}/drm/{card}/lmem_total_bytes")
            return size or None  # 0: a GPU without memory of its own
    return None


def _left(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else max(0, total - used)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
