"""The PCI side of a GPU, from sysfs: which functions there are, the slowest link up to the root, BAR sizes, names.

A sleeping device is left asleep: of those only what the kernel keeps in memory is read (ids, BARs, power state). The
link files are not: since Linux 6.18 (and in stable kernels) reading them powers the device up for the config access.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.machine.tree import Tree
from launcher.machine.types import LinkState, PcieLink, Rebar
from launcher.units import MIB

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
VENDORS = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}

_REDHAT = 0x1B36  # QEMU's root ports: their link is made up
_GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)  # VGA, 3D, other display, processing accelerator
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids", "/usr/share/pci.ids")

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s a lane, as the kernel writes it
# GB/s a lane after the line code: 8b/10b to gen 2, 128b/130b to gen 5, FLIT's 242 of 256 bytes in gen 6
_LANE = {1: 0.25, 2: 0.5, 3: 8 / 8 * 128 / 130, 4: 16 / 8 * 128 / 130, 5: 32 / 8 * 128 / 130, 6: 64 / 8 * 242 / 256}


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One GPU on the bus."""

    address: str
    vendor: int
    device: int
    path: str
    """Its directory below the root, links resolved: the names on the way are the bridges above it."""
    driver: str | None
    suspended: bool
    bar: int | None
    """Bytes of the largest prefetchable memory BAR: the window onto the device's memory."""


@dataclass(frozen=True, slots=True)
class _Port:
    """One end of a link: what it does now, and what it can."""

    vendor: int | None
    gen: int | None
    gen_max: int | None
    width: int | None
    width_max: int | None


def gpus(tree: Tree) -> tuple[PciFunction, ...]:
    """The GPUs and accelerators of the three vendors, in the order of their addresses (NVML's order too)."""
    found: list[PciFunction] = []
    for address in tree.names("/sys/bus/pci/devices"):
        link = f"/sys/bus/pci/devices/{address}"
        code = tree.number(f"{link}/class")
        if code is None or code >> 8 not in _GPU_CLASSES or not _ADDRESS.fullmatch(address):
            continue
        vendor, device = tree.number(f"{link}/vendor"), tree.number(f"{link}/device")
        if vendor not in VENDORS or device is None:
            continue
        driver = tree.resolve(f"{link}/driver")
        found.append(
            PciFunction(
                address=address,
                vendor=vendor,
                device=device,
                path=tree.resolve(link) or link,
                driver=driver.rpartition("/")[2] if driver else None,
                suspended=(tree.line(f"{link}/power/runtime_status") or "") in ("suspended", "suspending"),
                bar=_largest_bar(tree.text(f"{link}/resource")),
            )
        )
    return tuple(found)


def link(tree: Tree, function: PciFunction) -> PcieLink | None:
    """The slowest link from the device up to the root; None where there is none (part of the root complex)."""
    if function.suspended:
        return PcieLink(state=LinkState.SUSPENDED)
    above = [part for part in function.path.split("/") if _ADDRESS.fullmatch(part)]
    if not above:
        return None
    directories = [function.path[: function.path.index(part) + len(part)] for part in above]
    ports = [_port(tree, directory) for directory in directories]
    card = _card_end(ports, function.vendor)
    # ports: root port, then for every switch its upper and its lower side, then the device. A link is where an upper
    # side or the device (odd places) hangs below a root port or a lower side; a switch's own two sides share none.
    found = [
        (_join(ports[place], ports[place - 1]), above[place])
        for place in range(1, card + 1)
        if place % 2 or place == card
    ]
    if len(ports) == 1:  # no bridge above: a device in a virtual machine says its own link, an integrated one says none
        found = [(_join(ports[0], None), above[0])]
    known = [(end, address) for end, address in found if _capacity(end) is not None]
    if not known:
        return None
    slowest, address = min(known, key=lambda pair: _capacity(pair[0]) or 0.0)
    return make_link(
        gen=slowest.gen,
        gen_max=slowest.gen_max,
        width=slowest.width,
        width_max=slowest.width_max,
        bottleneck=address,
        gen_card=ports[card].gen_max,
        width_card=ports[card].width_max,
    )


def make_link(
    *,
    gen: int | None,
    gen_max: int | None,
    width: int | None,
    width_max: int | None,
    bottleneck: str | None = None,
    gen_card: int | None = None,
    width_card: int | None = None,
) -> PcieLink:
    """A link with its state and upper bound worked out. A low speed alone is sleep, not a fault."""
    state: LinkState | None = None
    if gen is not None and gen_max is not None and width is not None and width_max is not None:
        full = LinkState.ACTIVE if width >= width_max else LinkState.NARROW
        # some drivers give up lanes too while idle, so the width says nothing then
        state = LinkState.IDLE if gen < gen_max else full
    lanes = width if width is not None else width_max
    rate = _LANE.get(gen_max or gen or 0)
    return PcieLink(
        gen=gen,
        gen_max=gen_max,
        width=width,
        width_max=width_max,
        state=state,
        gbps_max=round(rate * lanes, 2) if rate is not None and lanes is not None else None,
        bottleneck=bottleneck,
        gen_card=gen_card,
        width_card=width_card,
    )


def rebar(bar: int | None, memory_total: int | None) -> Rebar | None:
    """Whether the CPU sees all of the memory: the BAR against the memory behind it."""
    if bar is None:
        return None
    if bar <= 256 * MIB:  # the size every card starts with; none that runs models has so little memory
        return Rebar.OFF
    if memory_total is None:
        return None
    return Rebar.ON if bar >= memory_total else Rebar.PARTIAL


def name(tree: Tree, function: PciFunction) -> str:
    """The model's name from the box's pci.ids, else its numbers."""
    vendor = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}[function.vendor]
    for path in _IDS:
        text = tree.text(path)
        start = text.find(f"\n{function.vendor:04x}  ") if text else -1
        if text is None or start < 0:
            continue
        match = re.compile(r"\n(?:\t([0-9a-f]{4})  (.*)|(?=[0-9a-f]))").finditer(text, start + 1)
        for entry in match:
            if entry[1] is None:
                break  # the next vendor
            if int(entry[1], 16) == function.device:
                bracket = re.search(r"\[(.+)\]", entry[2])
                return f"{vendor} {(bracket[1] if bracket else entry[2]).strip()}"
    return f"{vendor} GPU [{function.vendor:04x}:{function.device:04x}]"


def _card_end(ports: list[_Port], vendor: int) -> int:
    """The place of the port that is the card's edge.

    Cards by AMD and Intel carry a switch: the link between it and the GPU is on the chip and its numbers are made up
    (Intel Arc: gen 1 x1; AMD: always the best), the card's edge is the switch's upper side.
    """
    last = len(ports) - 1
    if last >= 3 and vendor in (AMD, INTEL) and ports[last - 1].vendor == ports[last - 2].vendor == vendor:
        return last - 2
    return last


def _port(tree: Tree, directory: str) -> _Port:
    return _Port(
        vendor=tree.number(f"{directory}/vendor"),
        gen=_generation(tree.line(f"{directory}/current_link_speed")),
        gen_max=_generation(tree.line(f"{directory}/max_link_speed")),
        width=_lanes(tree.number(f"{directory}/current_link_width")),
        width_max=_lanes(tree.number(f"{directory}/max_link_width")),
    )


def _join(lower: _Port, upper: _Port | None) -> _Port:
    """One link from its two ends: it can do what both can."""
    ends = [lower] if upper is None or upper.vendor == _REDHAT else [lower, upper]
    return _Port(
        vendor=lower.vendor,
        gen=_least(end.gen for end in ends),
        gen_max=_least(end.gen_max for end in ends),
        width=_least(end.width for end in ends),
        width_max=_least(end.width_max for end in ends),
    )


def _least(values: object) -> int | None:
    return min((value for value in values if value is not None), default=None)  # type: ignore[attr-defined]


def _capacity(end: _Port) -> float | None:
    """GB/s at the link's best speed over the lanes that it trained."""
    rate = _LANE.get(end.gen_max or end.gen or 0)
    lanes = end.width if end.width is not None else end.width_max
    return None if rate is None or lanes is None else rate * lanes


def _generation(speed: str | None) -> int | None:
    """`8.0 GT/s PCIe` is generation 3; `Unknown` is None."""
    match = re.match(r"(\d{1,3}(?:\.\d)?) GT/s", speed or "", re.ASCII)
    return _GENERATIONS.get(float(match[1])) if match else None


def _lanes(width: int | None) -> int | None:
    """0 (down) and 255 (the register reads all ones: the device has gone) are no widths."""
    return width if width is not None and 1 <= width <= 32 else None


def _largest_bar(resource: str | None) -> int | None:
    """The largest prefetchable memory region of the six BARs; lines are `start end flags`."""
    memory, prefetch = 0x200, 0x2000  # linux/ioport.h
    sizes: list[int] = []
    for line in (resource or "").splitlines()[:6]:
        try:
            start, end, flags = (int(field, 16) for field in line.split())
        except ValueError:
            continue
        if flags & memory and flags & prefetch and 0 <= start < end < 1 << 62:
            sizes.append(end - start + 1)
    return max(sizes, default=None)
