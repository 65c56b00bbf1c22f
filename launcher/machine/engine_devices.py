"""The devices that an engine lists (`llama-server --list-devices`), and how they and the probed ones become one list.

Pure: text and a Machine in, a Machine out. Whoever runs the engine hands in what it printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from launcher.machine.types import Device, DeviceKind, Machine
from launcher.units import MIB

_LINE = re.compile(r"\s+([A-Za-z][A-Za-z0-9_.]*\d*): (.*) \((\d{1,12}) MiB, (\d{1,12}) MiB free\)\s*")
_SOFTWARE = re.compile(r"llvmpipe|lavapipe|swiftshader|softpipe", re.IGNORECASE)
_LOOPBACK = re.compile(r"(127\.|localhost:|\[?::1\]?:)")
_VENDORS = {
    "nvidia": re.compile(r"nvidia|geforce|quadro|tesla|\brtx\b", re.IGNORECASE),
    "amd": re.compile(r"\bamd\b|radeon|instinct|\bradv\b", re.IGNORECASE),
    "intel": re.compile(r"intel|\barc\b", re.IGNORECASE),
}
_BACKEND_VENDOR = {"CUDA": "nvidia", "ROCm": "amd", "HIP": "amd"}


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """One line of the list. Sizes are None where the backend said 0: some do when they do not know."""

    id: str
    description: str
    total: int | None
    free: int | None

    @property
    def backend(self) -> str:
        """`CUDA` of `CUDA0`."""
        return self.id.rstrip("0123456789")

    @property
    def vendor(self) -> str | None:
        """Who made it, by the backend or the description."""
        if self.backend in _BACKEND_VENDOR:
            return _BACKEND_VENDOR[self.backend]
        if self.backend == "RPC" or _SOFTWARE.search(self.description):
            return None
        return next((vendor for vendor, pattern in _VENDORS.items() if pattern.search(self.description)), None)

    @property
    def kind(self) -> DeviceKind | None:
        """What the list alone tells."""
        if self.backend == "RPC":
            return DeviceKind.REMOTE
        return DeviceKind.SOFTWARE if _SOFTWARE.search(self.description) else None


def parse_devices(text: str) -> tuple[EngineDevice, ...]:
    """The devices in what `--list-devices` printed; other lines (logs, the heading, `(none)`) are passed over."""
    found: dict[str, EngineDevice] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            total, free = int(match[3]) * MIB, int(match[4]) * MIB
            known = total > 0
            found.setdefault(
                match[1], EngineDevice(match[1], match[2].strip(), total if known else None, free if known else None)
            )
    return tuple(found.values())


def merge(machine: Machine, listed: Sequence[EngineDevice]) -> Machine:
    """The probed devices under the engine's names, then what only the engine knows; `usable` says which it lists.

    A probed device takes part in one pair at most, the likeliest: an engine of two backends lists one GPU twice, and
    its second line is then left out.
    """
    pairs: dict[int, EngineDevice] = {}
    alone: list[EngineDevice] = []
    notes: list[str] = []
    for entry in listed:
        scores = {place: _likeness(device, entry) for place, device in enumerate(machine.devices)}
        best = max(scores, key=lambda place: (scores[place], place not in pairs, -place), default=None)
        if best is None or scores[best] <= 0:
            alone.append(entry)
        elif best in pairs:
            notes.append(f"the engine lists {machine.devices[best].name} as {pairs[best].id} and as {entry.id}")
        else:
            pairs[best] = entry
    devices = [
        _joined(device, pairs[place]) if place in pairs else replace(device, usable=False)
        for place, device in enumerate(machine.devices)
    ]
    taken = {entry.id for entry in listed}
    # an id that the engine gave to another device must not stand twice
    devices = [
        replace(device, id=f"{device.vendor}@{device.address or place}")
        if device.usable is False and device.id in taken
        else device
        for place, device in enumerate(devices)
    ]
    return machine.with_devices((*devices, *(_new(machine, entry) for entry in alone)), *notes)


def _likeness(device: Device, entry: EngineDevice) -> float:
    """0: not the same device. The vendor must agree; then the id, the name's words and the memory speak."""
    if entry.vendor is None or device.vendor != entry.vendor:
        return 0.0
    score = 0.1
    if device.id == entry.id:
        score += 1.0
    words, others = _words(device.name), _words(entry.description)
    if words and others:
        score += 2.0 * len(words & others) / len(words | others)
    if device.memory_total and entry.total and device.kind is DeviceKind.DISCRETE:
        # the engine counts without the driver's reserve
        ratio = entry.total / device.memory_total
        score += 1.0 if 0.9 <= ratio <= 1.02 else -1.0
    return score


def _words(name: str) -> frozenset[str]:
    """Words that tell one model from another."""
    plain = {"nvidia", "geforce", "amd", "radeon", "intel", "graphics", "gpu", "corporation", "tm", "r"}
    return frozenset(re.findall(r"[a-z0-9]+", name.lower())) - plain


def _joined(device: Device, entry: EngineDevice) -> Device:
    """The engine's name; its sizes only where the probe has none (NVML's are finer, and it knows what the rest is)."""
    total = device.memory_total if device.memory_total is not None else entry.total
    free = device.memory_free if device.memory_free is not None else entry.free
    shared = device.memory_shared
    if shared is None and device.kind in (DeviceKind.INTEGRATED, DeviceKind.UNIFIED):
        shared = total  # no memory of its own: all that it can use is the host's
    return replace(device, id=entry.id, memory_total=total, memory_free=free, memory_shared=shared, usable=True)


def _new(machine: Machine, entry: EngineDevice) -> Device:
    """A device that the box itself does not show: an rpc worker, a software renderer, one behind a container's wall."""
    ours = entry.kind is DeviceKind.SOFTWARE or _is_our_ram(machine, entry)
    free = entry.free
    if ours and free is not None and machine.memory.available is not None:
        free = min(free, machine.memory.available)
    return Device(
        id=entry.id,
        name=entry.description,
        kind=entry.kind,
        memory_total=entry.total,
        memory_free=free,
        memory_shared=entry.total if ours else None,
        vendor=entry.vendor,
        usable=True,
        source="engine",
    )


def _is_our_ram(machine: Machine, entry: EngineDevice) -> bool:
    """A worker on this very box that computes on the CPU: it is at the loopback, and has just what the host has."""
    total = machine.memory.total
    if entry.kind is not DeviceKind.REMOTE or total is None or entry.total is None:
        return False
    return bool(_LOOPBACK.match(entry.description)) and abs(entry.total - total) <= MIB
