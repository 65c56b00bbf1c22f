"""Boxes that stand on disk: small trees of /proc and /sys as recorded from such machines, and a stand-in for NVML."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30
MIB = 1 << 20


@dataclass
class Box:
    """A tree that grows by what a test writes into it."""

    root: Path

    def write(self, path: str, content: str | bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(self.root / target.lstrip("/"), at.parent))

    def memory(self, total: int, available: int) -> None:
        self.write(
            "/proc/meminfo",
            f"MemTotal:       {total >> 10} kB\nMemFree:        {available // 2 >> 10} kB\n"
            f"MemAvailable:   {available >> 10} kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n",
        )

    def cores(
        self, cores: int, threads_a_core: int = 1, *, model: str = "Test CPU", flags: str = "fpu avx avx2 fma"
    ) -> None:
        """Siblings are numbered as Linux does it on most boxes: first one thread of every core, then the others."""
        blocks = []
        for cpu in range(cores * threads_a_core):
            core = cpu % cores
            siblings = ",".join(str(core + cores * t) for t in range(threads_a_core))
            self.write(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", siblings + "\n")
            blocks.append(
                f"processor\t: {cpu}\nmodel name\t: {model}\n"
                f"physical id\t: 0\ncore id\t\t: {core}\nflags\t\t: {flags} lm\n"
            )
        self.write("/proc/cpuinfo", "\n".join(blocks))
        self.write("/sys/devices/system/cpu/online", f"0-{cores * threads_a_core - 1}\n")
        self.write("/proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t0-{cores * threads_a_core - 1}\n")

    def bridge(self, path: str, **facts: Any) -> None:
        self.function(path, cls=0x060400, **facts)

    def function(
        self,
        path: str,
        *,
        vendor: int,
        device: int = 0x1234,
        cls: int = 0x030000,
        speed: tuple[str, str] | None = None,
        width: tuple[int, int] | None = None,
        driver: str | None = None,
        status: str = "active",
        bars: tuple[int, ...] = (),
    ) -> str:
        """A PCI function at `pci0000:00/0000:00:01.0/0000:01:00.0`; gives its directory."""
        at = f"/sys/devices/{path}"
        self.write(f"{at}/vendor", f"{vendor:#06x}\n")
        self.write(f"{at}/device", f"{device:#06x}\n")
        self.write(f"{at}/class", f"{cls:#08x}\n")
        self.write(f"{at}/power/runtime_status", status + "\n")
        if speed is not None:
            self.write(f"{at}/current_link_speed", speed[0] + "\n")
            self.write(f"{at}/max_link_speed", speed[1] + "\n")
        if width is not None:
            self.write(f"{at}/current_link_width", f"{width[0]}\n")
            self.write(f"{at}/max_link_width", f"{width[1]}\n")
        lines = [f"0x{0xE0000000:016x} 0x{0xE0000000 + 16 * MIB - 1:016x} 0x0000000000040200"]
        lines += [f"0x{1 << 40:016x} 0x{(1 << 40) + size - 1:016x} 0x000000000014220c" for size in bars]
        lines += ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * (7 - len(lines))
        self.write(f"{at}/resource", "\n".join(lines) + "\n")
        address = path.rpartition("/")[2]
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{at}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"/sys/bus/pci/devices/{address}", at)
        return at


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """An empty box."""
    (tmp_path / "box").mkdir()
    return Box(tmp_path / "box")


class NvmlError(Exception):
    """As pynvml's: the number is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class FakeGpu:
    name: str = "NVIDIA GeForce RTX 3090"
    address: str = "00000000:01:00.0"
    uuid: str = "GPU-11111111-aaaa"
    total: int | None = 24 * GIB
    free: int = 20 * GIB
    reserved: int = 400 * MIB
    bar1: int = 32 * GIB
    gen: tuple[int, int] = (4, 4)
    width: tuple[int, int] = (16, 16)
    capability: tuple[int, int] = (8, 6)
    clock: int = 9751
    bus: int = 384
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    mig: list[FakeGpu] | None = None
    c2c: bool = False
    broken: frozenset[str] = frozenset()


class FakeNvml:
    """The functions of pynvml that we call, over a list of made-up GPUs. Counts which were touched."""

    nvmlMemory_v2 = 0x02000028  # noqa: N815
    NVML_CLOCK_MEM = 2

    def __init__(self, *gpus: FakeGpu, init_error: int | None = None, v2: bool = True) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        self.v2 = v2
        self.touched: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answer = getattr(type(self), f"on_{name[4:]}", None)
        if answer is None:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append(name)
            if args and isinstance(args[0], FakeGpu):
                self.touched.add(args[0].address)
                if name in args[0].broken:
                    raise NvmlError(999)
            return answer(self, *args)

        return call

    def on_Init(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise NvmlError(self.init_error)

    def on_Shutdown(self) -> None:  # noqa: N802
        return None

    def on_DeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def on_DeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self.touched.add(self.gpus[index].address)
        if "handle" in self.gpus[index].broken:
            raise NvmlError(15)
        return self.gpus[index]

    def on_DeviceGetHandleByPciBusId(self, address: bytes) -> FakeGpu:  # noqa: N802
        for gpu in self.gpus:
            if gpu.address.endswith(address.decode()):
                return gpu
        raise NvmlError(6)

    def on_DeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.name

    def on_DeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def on_DeviceGetPciInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(busId=gpu.address.encode())

    def on_DeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:  # noqa: N802
        if gpu.total is None:
            raise NvmlError(3)
        if version is None:
            return SimpleNamespace(total=gpu.total, free=gpu.free, used=gpu.total - gpu.free)
        if not self.v2:
            raise NvmlError(13)
        used = gpu.total - gpu.free - gpu.reserved
        return SimpleNamespace(total=gpu.total, free=gpu.free, reserved=gpu.reserved, used=used)

    def on_DeviceGetBAR1MemoryInfo(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(bar1Total=gpu.bar1)

    def on_DeviceGetCurrPcieLinkGeneration(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.gen[0]

    def on_DeviceGetMaxPcieLinkGeneration(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.gen[1]

    def on_DeviceGetCurrPcieLinkWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.width[0]

    def on_DeviceGetMaxPcieLinkWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.width[1]

    def on_DeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return gpu.capability

    def on_DeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: int) -> int:  # noqa: N802
        return gpu.clock

    def on_DeviceGetMemoryBusWidth(self, gpu: FakeGpu) -> int:  # noqa: N802
        return gpu.bus

    def on_DeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.compute]

    def on_DeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.graphics]

    def on_DeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        if gpu.mig is None:
            raise NvmlError(3)
        return [1, 1]

    def on_DeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return 7

    def on_DeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        if gpu.mig is None or index >= len(gpu.mig):
            raise NvmlError(6)
        return gpu.mig[index]

    def on_DeviceGetC2cModeInfoV(self, gpu: FakeGpu) -> Any:  # noqa: N802
        return SimpleNamespace(isC2cEnabled=int(gpu.c2c))

    def on_SystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def on_SystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000


@pytest.fixture
def nvml() -> type[FakeNvml]:
    """The stand-in's class: `nvml(gpu(…), gpu(…))`."""
    return FakeNvml


@pytest.fixture
def gpu() -> type[FakeGpu]:
    """One made-up GPU: `gpu(name=…, total=…)`."""
    return FakeGpu
