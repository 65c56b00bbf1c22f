"""Which devices a profile uses, by the engine's names for them, and what room each has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from launcher.machine.types import Device, DeviceKind, Machine
from launcher.plan.kv import HOST
from launcher.plan.ledger import RESERVE
from launcher.plan.verdict import Room
from launcher.profile.schema import Profile

_PREFIX = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan"}
_BACKEND_OF = {"nvidia": "cuda", "amd": "rocm"}


@dataclass(frozen=True, slots=True)
class Used:
    """One device of the plan. `id` is the engine's name for it; `room` is unknown for a worker elsewhere."""

    id: str
    backend: str
    room: Room


def used_devices(profile: Profile, machine: Machine) -> tuple[Used, ...]:
    """The devices in the engine's order: workers first, as `--rpc` registers them before anything is asked of them.

    Empty where all is done on the host.
    """
    compute = profile.compute
    found = [_worker(number, machine) for number in range(len(compute.rpc))]
    found += [_local(device, compute.backend) for device in machine.devices if can_use(device, compute.backend)]
    if compute.devices:
        wanted = {name.lower() for name in compute.devices}
        found = [device for device in found if device.id.lower() in wanted]
    return tuple(found)


def can_use(device: Device, backend: str) -> bool:
    """Whether an engine of this backend (`compute.backend`) could compute on a device that the machine has."""
    if backend == "cpu" or device.usable is False or device.kind in (DeviceKind.SOFTWARE, DeviceKind.REMOTE):
        return False
    # "auto" has become a backend by the time an engine is chosen; until then every card counts
    return backend in ("auto", "vulkan") or _backend(device) == backend


def rooms(machine: Machine, used: tuple[Used, ...], reserved: Mapping[str, int]) -> dict[str, Room]:
    """What every device of the plan has, the host included; `reserved`: bytes that starts under way will take."""
    memory = machine.memory
    total = memory.limit or memory.total
    found = {HOST: Room(total, memory.available, reserved.get(HOST, 0), field="memory.available")}
    for device in used:
        room = device.room
        found[device.id] = replace(room, reserved=reserved.get(device.id, 0))
    return found


def reserves(used: tuple[Used, ...]) -> dict[str, int]:
    """What a driver's context takes on each of them."""
    return {device.id: RESERVE[device.backend] for device in used}


def _local(device: Device, backend: str) -> Used:
    kind = backend if backend in _PREFIX else _backend(device)
    return Used(device.id, kind, _room(device))


def _backend(device: Device) -> str:
    for backend, prefix in _PREFIX.items():
        if device.id.startswith(prefix):
            return backend
    return _BACKEND_OF.get((device.vendor or "").lower(), "vulkan")


def _worker(number: int, machine: Machine) -> Used:
    known = machine.device(f"RPC{number}")
    room = _room(known) if known else Room(None, None, field=_field(f"RPC{number}"))
    return Used(f"RPC{number}", "rpc", room)


def _room(device: Device) -> Room:
    shared = device.memory_shared or 0
    return Room(device.memory_total, device.memory_free, host_share=shared, field=_field(device.id))


def _field(device: str) -> str:
    return f"devices[{device}].memory_free"
