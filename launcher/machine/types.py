"""What one box has, as plain values, and their JSON (`kvlaunch probe --json`, contract.md) in both directions.

Nothing here reads the box. Every measure that could not be learnt is None, in JSON null; a 0 is a real zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.errors import ProfileError
from launcher.machine.decode import Reader

_LARGEST_FILE = 16 << 20  # bytes of a machine file; a real one has a few thousand


class DeviceKind(StrEnum):
    """Where a device's memory is: that decides how the plan counts it."""

    DISCRETE = "discrete"
    """Memory of its own, behind a link."""
    INTEGRATED = "integrated"
    """A carve-out of host RAM, and more of it on demand."""
    UNIFIED = "unified"
    """CPU and GPU use one memory (Jetson, DGX Spark): what the host takes, the device lacks."""
    REMOTE = "remote"
    """An rpc worker: its memory is elsewhere, or here under another process."""
    SOFTWARE = "software"
    """A renderer on the CPU (llvmpipe): it computes on the host, with the host's memory."""


class LinkState(StrEnum):
    """What the link was doing when it was looked at. None of these but `narrow` is a finding."""

    ACTIVE = "active"
    IDLE = "idle"
    """Below its speed to save power; it comes up when data flows."""
    NARROW = "narrow"
    """Fewer lanes than both of its ends have: a seat, riser or bifurcation to look at."""
    SUSPENDED = "suspended"
    """The device sleeps, and was left asleep."""


class Rebar(StrEnum):
    """How much of a device's memory the CPU can map at once, by the size of its BAR."""

    ON = "on"
    PARTIAL = "partial"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The slowest link between a device and the root, which is the one that counts.

    `gen`, `width` are now; `gen_max`, `width_max` what both ends of that link can do.
    """

    gen: int | None = None
    gen_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    state: LinkState | None = None
    gbps: float | None = None
    """Measured host to device, pinned, large copies, in GB/s (decimal); None until `probe --bandwidth`."""
    gbps_max: float | None = None
    """What that link can carry after its line code, in GB/s: an upper bound, no measurement."""
    bottleneck: str | None = None
    """The PCI address of the lower end of the slowest link: the device itself, or a bridge above it."""
    gen_card: int | None = None
    width_card: int | None = None

    def as_json(self) -> dict[str, object]:
        """The object `pcie` of the contract, and more."""
        return {
            "gen": self.gen,
            "gen_max": self.gen_max,
            "width": self.width,
            "width_max": self.width_max,
            "state": self.state,
            "gbps": self.gbps,
            "gbps_max": self.gbps_max,
            "bottleneck": self.bottleneck,
            "gen_card": self.gen_card,
            "width_card": self.width_card,
        }

    @classmethod
    def read(cls, reader: Reader) -> PcieLink:
        """From the JSON object."""
        return cls(
            gen=reader.count("gen"),
            gen_max=reader.count("gen_max"),
            width=reader.count("width"),
            width_max=reader.count("width_max"),
            state=reader.choice("state", LinkState),
            gbps=reader.number("gbps"),
            gbps_max=reader.number("gbps_max", optional=True),
            bottleneck=reader.text("bottleneck", optional=True),
            gen_card=reader.count("gen_card", optional=True),
            width_card=reader.count("width_card", optional=True),
        )


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that holds device memory; `bytes` is None where the driver won't tell."""

    pid: int
    bytes: int | None

    def as_json(self) -> dict[str, object]:
        """The object in `devices[].processes`."""
        return {"pid": self.pid, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class Device:
    """One device that an engine could use. `id` is the engine's name for it (`CUDA0`), where it has one."""

    id: str
    name: str
    kind: DeviceKind | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    pcie: PcieLink | None = None
    rebar: Rebar | None = None
    vendor: str | None = None
    driver: str | None = None
    address: str | None = None
    """PCI address, `0000:01:00.0`."""
    uuid: str | None = None
    mig: str | None = None
    """The UUID of the GPU that this MIG instance is a part of."""
    compute: str | None = None
    """CUDA compute capability (`9.0`) or AMD target (`gfx1100`)."""
    memory_reserved: int | None = None
    """Bytes of `memory_total` that the driver keeps for itself."""
    memory_shared: int | None = None
    """Bytes of `memory_total` that are host RAM and so must not be counted twice."""
    memory_gbps: float | None = None
    """The rate of the device's own memory by its clock and bus width, in GB/s."""
    copy_gbps: float | None = None
    """Measured host to device, large copies, in GB/s, over whatever link there is; None until `probe --bandwidth`."""
    copy_latency_us: float | None = None
    """Measured time of one small read back."""
    suspended: bool = False
    usable: bool | None = None
    """The engine lists it; None where no engine was asked."""
    processes: tuple[GpuProcess, ...] | None = None
    source: str | None = None
    """Who told: nvml, drm, pci, engine."""

    def as_json(self) -> dict[str, object]:
        """The object in `devices` of the contract, and more."""
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "memory_total": self.memory_total,
            "memory_free": self.memory_free,
            "pcie": self.pcie.as_json() if self.pcie else None,
            "rebar": self.rebar,
            "vendor": self.vendor,
            "driver": self.driver,
            "address": self.address,
            "uuid": self.uuid,
            "mig": self.mig,
            "compute": self.compute,
            "memory_reserved": self.memory_reserved,
            "memory_shared": self.memory_shared,
            "memory_gbps": self.memory_gbps,
            "copy_gbps": self.copy_gbps,
            "copy_latency_us": self.copy_latency_us,
            "suspended": self.suspended,
            "usable": self.usable,
            "processes": [p.as_json() for p in self.processes] if self.processes is not None else None,
            "source": self.source,
        }

    @classmethod
    def read(cls, reader: Reader) -> Device:
        """From the JSON object."""
        link = reader.child("pcie")
        processes = reader.children("processes", optional=True)
        return cls(
            id=reader.required_text("id"),
            name=reader.required_text("name"),
            kind=reader.choice("kind", DeviceKind),
            memory_total=reader.count("memory_total"),
            memory_free=reader.count("memory_free"),
            pcie=PcieLink.read(link) if link is not None else None,
            rebar=reader.choice("rebar", Rebar),
            vendor=reader.text("vendor", optional=True),
            driver=reader.text("driver", optional=True),
            address=reader.text("address", optional=True),
            uuid=reader.text("uuid", optional=True),
            mig=reader.text("mig", optional=True),
            compute=reader.text("compute", optional=True),
            memory_reserved=reader.count("memory_reserved", optional=True),
            memory_shared=reader.count("memory_shared", optional=True),
            memory_gbps=reader.number("memory_gbps", optional=True),
            copy_gbps=reader.number("copy_gbps", optional=True),
            copy_latency_us=reader.number("copy_latency_us", optional=True),
            suspended=reader.flag("suspended", optional=True) or False,
            usable=reader.flag("usable", optional=True),
            processes=None
            if processes is None
            else tuple(GpuProcess(p.required_count("pid"), p.count("bytes")) for p in processes),
            source=reader.text("source", optional=True),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Host RAM as this process may use it."""

    total: int | None = None
    """Of the whole box."""
    available: int | None = None
    """What a new process here could take: the least of the kernel's MemAvailable and what every cgroup above leaves."""
    limit: int | None = None
    """The smallest cgroup limit that applies; None: none does."""
    limited_by: str | None = None
    """The cgroup that leaves the least; None: the box itself is what is short."""
    swap_total: int | None = None
    swap_free: int | None = None
    lockable: int | None = None
    """What may be locked (mlock): RLIMIT_MEMLOCK, at most `total`."""
    gbps: float | None = None
    """Measured rate of reading RAM with all cores, in GB/s; None until `probe --bandwidth`."""

    def as_json(self) -> dict[str, object]:
        """The object `memory` of the contract, and more."""
        return {
            "total": self.total,
            "available": self.available,
            "limit": self.limit,
            "limited_by": self.limited_by,
            "swap_total": self.swap_total,
            "swap_free": self.swap_free,
            "lockable": self.lockable,
            "gbps": self.gbps,
        }

    @classmethod
    def read(cls, reader: Reader) -> Memory:
        """From the JSON object."""
        return cls(
            total=reader.count("total"),
            available=reader.count("available"),
            limit=reader.count("limit"),
            limited_by=reader.text("limited_by", optional=True),
            swap_total=reader.count("swap_total", optional=True),
            swap_free=reader.count("swap_free", optional=True),
            lockable=reader.count("lockable", optional=True),
            gbps=reader.number("gbps", optional=True),
        )


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors that this process may run on."""

    model: str | None = None
    cores: int | None = None
    """Physical cores under the affinity mask: a good number of threads."""
    features: tuple[str, ...] = ()
    """Instruction sets that a kernel of the engine may use, in the spelling of /proc/cpuinfo."""
    arch: str | None = None
    threads: int | None = None
    """Logical processors under the affinity mask."""
    fast_cores: int | None = None
    """Of a hybrid CPU, the physical cores of the fast kind; None where all are alike."""
    quota: float | None = None
    """Processors' worth of time that cgroups grant; None: no limit."""
    numa_nodes: int | None = None

    def as_json(self) -> dict[str, object]:
        """The object `cpu` of the contract, and more."""
        return {
            "model": self.model,
            "cores": self.cores,
            "features": list(self.features),
            "arch": self.arch,
            "threads": self.threads,
            "fast_cores": self.fast_cores,
            "quota": self.quota,
            "numa_nodes": self.numa_nodes,
        }

    @classmethod
    def read(cls, reader: Reader) -> Cpu:
        """From the JSON object."""
        return cls(
            model=reader.text("model"),
            cores=reader.count("cores"),
            features=reader.texts("features"),
            arch=reader.text("arch", optional=True),
            threads=reader.count("threads", optional=True),
            fast_cores=reader.count("fast_cores", optional=True),
            quota=reader.number("quota", optional=True),
            numa_nodes=reader.count("numa_nodes", optional=True),
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """One box, as one process on it sees it."""

    devices: tuple[Device, ...] = ()
    memory: Memory = Memory()
    cpu: Cpu = Cpu()
    wsl: bool = False
    container: str | None = None
    """The kind of container that this process is in (docker, podman, lxc, …), where it shows."""
    kernel: str | None = None
    notes: tuple[str, ...] = ()
    """What a person should know about what could not be learnt, and how to let it be."""

    def device(self, id: str) -> Device | None:
        """The device of that id."""
        return next((d for d in self.devices if d.id == id), None)

    def with_devices(self, devices: tuple[Device, ...], *notes: str) -> Machine:
        """The same box with other devices and some more notes."""
        return replace(self, devices=devices, notes=self.notes + notes)

    def as_json(self) -> dict[str, object]:
        """What `kvlaunch probe --json` prints."""
        return {
            "schema": 1,
            "devices": [device.as_json() for device in self.devices],
            "memory": self.memory.as_json(),
            "cpu": self.cpu.as_json(),
            "wsl": self.wsl,
            "container": self.container,
            "kernel": self.kernel,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Any, source: str = "the machine file") -> Machine:
        """From the object that `probe --json` printed. Raises ProfileError that names what is missing or wrong."""
        reader = Reader.top(data, source)
        reader.check_schema(1)
        return cls(
            devices=tuple(Device.read(device) for device in reader.children("devices") or ()),
            memory=Memory.read(reader.required_child("memory")),
            cpu=Cpu.read(reader.required_child("cpu")),
            wsl=reader.flag("wsl") or False,
            container=reader.text("container", optional=True),
            kernel=reader.text("kernel", optional=True),
            notes=reader.texts("notes", optional=True),
        )

    @classmethod
    def load(cls, path: Path) -> Machine:
        """From a file that holds the output of `probe --json` (what `--machine FILE` takes). Raises ProfileError."""
        again = "write it with `kvlaunch probe --json > FILE` on the box that is meant"
        try:
            with path.open("rb") as file:
                text = file.read(_LARGEST_FILE + 1)
            if len(text) > _LARGEST_FILE:
                raise ProfileError(f"{path} is no machine file: it has more than 16 MiB", help=again)
            data: Mapping[str, object] = json.loads(text.decode("utf-8"))
        except FileNotFoundError:
            raise ProfileError(f"there is no machine file {path}", help=again) from None
        except OSError as error:
            raise ProfileError(f"cannot read the machine file {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"the machine file {path} is not JSON: {error}", help=again) from None
        return cls.from_json(data, str(path))
