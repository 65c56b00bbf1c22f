"""NVIDIA GPUs: through NVML where it answers, else what the PCI bus and the kernel show. A sleeping GPU is left asleep.

NVML is the module `pynvml`, or an object with the same functions (tests hand one in).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from launcher.machine import pci
from launcher.machine.cuda_ids import number
from launcher.machine.pci import PciFunction
from launcher.machine.tree import Tree
from launcher.machine.types import Device, DeviceKind, GpuProcess, Memory, PcieLink

_Result = TypeVar("_Result")

_NOT_SUPPORTED, _MISMATCH = 3, 18  # NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_LIB_RM_VERSION_MISMATCH
_PATIENCE = 5.0  # seconds; a healthy NVML needs 0.1 to 1.5, a GPU that fell off the bus can block it for good
_UNIFIED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b")


def present(tree: Tree, functions: Sequence[PciFunction]) -> bool:
    """Anything that hints at an NVIDIA GPU: without one the 40 ms for loading NVML are saved."""
    hints = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvmap")
    return bool(functions) or any(tree.exists(hint) for hint in hints)


def load_nvml() -> Any:
    """The real thing; raises what it raises."""
    import pynvml

    return pynvml


def read_devices(
    tree: Tree,
    functions: Sequence[PciFunction],
    memory: Memory,
    environ: Mapping[str, str],
    nvml: Any | None,
    *,
    wake: bool = False,
    patience: float = _PATIENCE,
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The GPUs that CUDA will see here, in its order, and notes about those that it won't or that stay unknown."""
    asleep = [] if wake else [function for function in functions if function.suspended]
    notes = [
        f"{pci.name(tree, f)} at {f.address} sleeps and was not woken, so its memory is unknown; `--wake` asks it"
        for f in asleep
    ]
    if nvml is None or (functions and len(asleep) == len(functions)):
        known: tuple[Device, ...] | None = None
    else:
        session = _Session(nvml, tree, functions, memory)
        answer = _within(patience, lambda: session.devices(skip={f.address for f in asleep}))
        known = answer[0] if answer else None
        notes += session.notes if answer else [f"NVML did not answer within {patience:g} s (a GPU may hang)"]
    if known is None:
        known = _without_nvml(tree, [f for f in functions if f not in asleep], memory)
        notes += [_why_unknown(tree, d) for d in known if d.memory_total is None and d.kind is not DeviceKind.UNIFIED]
    everyone = sorted(known + tuple(_sleeper(tree, f) for f in asleep), key=lambda d: d.address or "")
    devices, hidden = number(everyone, environ)
    return devices, (*notes, *hidden)


class _Session:
    """One conversation with NVML. Each question may fail alone: a missing answer must not cost the others."""

    def __init__(self, nvml: Any, tree: Tree, functions: Sequence[PciFunction], memory: Memory) -> None:
        self.nvml = nvml
        self.tree = tree
        self.functions = {function.address: function for function in functions}
        self.memory = memory
        self.notes: list[str] = []

    def ask(self, question: str, *args: Any) -> Any:
        """The answer, or None."""
        return self.try_ask(question, *args)[0]

    def count(self, question: str, *args: Any) -> int | None:
        """The answer, if it is a number that can be counted with."""
        return _size(self.ask(question, *args))

    def entries(self, question: str, *args: Any) -> Sequence[Any] | None:
        """The answer, if it is a list."""
        answer = self.ask(question, *args)
        return answer if isinstance(answer, list | tuple) else None

    def try_ask(self, question: str, *args: Any) -> tuple[Any, int | None]:
        """The answer or None, and NVML's error number where it gave one."""
        try:
            return getattr(self.nvml, question)(*args), None
        # the driver's library, in any version, is behind this call: an old one lacks functions (AttributeError), a
        # broken one may return anything (UnicodeDecodeError, ctypes.ArgumentError)
        except Exception as error:
            return None, getattr(error, "value", -1)

    def devices(self, skip: set[str]) -> tuple[Device, ...] | None:
        """All GPUs but those at the skipped addresses; None when NVML is not to be had."""
        _, failed = self.try_ask("nvmlInit")
        if failed is not None:
            if failed == _MISMATCH:
                self.notes.append("NVML and the kernel module are of different versions: reboot, or reload the module")
            return None
        try:
            found: list[Device] = []
            for handle in self._handles(skip):
                found += self._one(handle)
            return tuple(found)
        finally:
            self.ask("nvmlShutdown")

    def _handles(self, skip: set[str]) -> list[Any]:
        if skip:
            # a handle by index may touch every GPU; by address it touches that one
            addresses = [address for address in self.functions if address not in skip]
            handles = [self.ask("nvmlDeviceGetHandleByPciBusId", address.encode()) for address in addresses]
        else:
            count = self.count("nvmlDeviceGetCount") or 0
            handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(min(count, 64))]
        if lost := sum(1 for handle in handles if handle is None):
            self.notes.append(f"NVML gives no access to {lost} GPU{'s' if lost > 1 else ''} (lost, or not permitted)")
        return [handle for handle in handles if handle is not None]

    def _one(self, handle: Any) -> list[Device]:
        whole = self._whole(handle)
        mode = self.entries("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            return [whole]
        parts: list[Device] = []
        for index in range(min(self.count("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, 64)):
            instance = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if instance is None:
                continue  # a place without an instance
            total, free, reserved, _ = self._memory(instance)
            uuid = _text(self.ask("nvmlDeviceGetUUID", instance))
            parts.append(
                replace(
                    whole,
                    id=uuid or f"{whole.uuid}/{index}",
                    name=_text(self.ask("nvmlDeviceGetName", instance)) or f"{whole.name} MIG {index}",
                    uuid=uuid,
                    mig=whole.uuid or whole.address or whole.name,
                    memory_total=total,
                    memory_free=free,
                    memory_reserved=reserved,
                    memory_gbps=None,  # its share of the memory's lanes depends on the profile
                    processes=self._processes(instance),
                )
            )
        if not parts:
            self.notes.append(f"{whole.name} is in MIG mode without an instance: CUDA cannot use it")
        return parts

    def _whole(self, handle: Any) -> Device:
        address = _address(getattr(self.ask("nvmlDeviceGetPciInfo", handle), "busId", None))
        function = self.functions.get(address or "")
        name = _text(self.ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU"
        uuid = _text(self.ask("nvmlDeviceGetUUID", handle))
        total, free, reserved, error = self._memory(handle)
        shared: int | None = 0
        kind = DeviceKind.DISCRETE
        if _UNIFIED.search(name) or (total is None and error == _NOT_SUPPORTED):
            # the GPU has no memory of its own, so NVML has none to tell
            kind = DeviceKind.UNIFIED
            total = total or self.memory.total
            free = self.memory.available
            shared = total
        bar = getattr(self.ask("nvmlDeviceGetBAR1MemoryInfo", handle), "bar1Total", None)
        return Device(
            id=uuid or address or name,
            name=name,
            kind=kind,
            memory_total=total,
            memory_free=free,
            memory_reserved=reserved,
            memory_shared=shared,
            memory_gbps=self._memory_rate(handle),
            pcie=None if kind is DeviceKind.UNIFIED else self._link(handle, function, name),
            rebar=None
            if kind is DeviceKind.UNIFIED
            else pci.rebar(_size(bar) or (function.bar if function else None), total),
            vendor="nvidia",
            driver=self._driver(),
            address=address,
            uuid=uuid,
            compute=".".join(str(part) for part in self.entries("nvmlDeviceGetCudaComputeCapability", handle) or ())
            or None,
            processes=self._processes(handle),
            source="nvml",
        )

    def _memory(self, handle: Any) -> tuple[int | None, int | None, int | None, int | None]:
        """Total, free, what the driver reserves, NVML's error. Version 1 counts the reserve as used."""
        info = self.ask("nvmlDeviceGetMemoryInfo", handle, getattr(self.nvml, "nvmlMemory_v2", None))
        error = None
        if info is None:
            info, error = self.try_ask("nvmlDeviceGetMemoryInfo", handle)
        total, free, reserved = (_size(getattr(info, field, None)) for field in ("total", "free", "reserved"))
        return total or None, free if total else None, reserved, error

    def _memory_rate(self, handle: Any) -> float | None:
        """Two transfers a clock over the bus: what data sheets state for GDDR and HBM."""
        clock = self.count("nvmlDeviceGetMaxClockInfo", handle, getattr(self.nvml, "NVML_CLOCK_MEM", 2))
        width = self.count("nvmlDeviceGetMemoryBusWidth", handle)
        return round(2 * clock * 1e6 * width / 8 / 1e9, 1) if clock and width else None

    def _link(self, handle: Any, function: PciFunction | None, name: str) -> PcieLink | None:
        if getattr(self.ask("nvmlDeviceGetC2cModeInfoV", handle), "isC2cEnabled", 0):
            self.notes.append(f"{name}: copies go over NVLink-C2C, so its PCIe link does not limit them")
            return None
        if function is not None and (found := pci.link(self.tree, replace(function, suspended=False))) is not None:
            return found

        def learn(what: str) -> int | None:
            return self.count(f"nvmlDeviceGet{what}", handle) or None  # NVML says 0 where it has no link to look at

        gen, gen_max = learn("CurrPcieLinkGeneration"), learn("MaxPcieLinkGeneration")
        width, width_max = learn("CurrPcieLinkWidth"), learn("MaxPcieLinkWidth")
        if (gen, gen_max, width, width_max) == (None,) * 4:
            return None
        gen_card = learn("GpuMaxPcieLinkGeneration")
        return pci.make_link(gen=gen, gen_max=gen_max, width=width, width_max=width_max, gen_card=gen_card)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        """Who holds memory there. A process that computes and draws is in both lists, with the same figure."""
        found: dict[int, int | None] = {}
        lists = [self.entries(f"nvmlDeviceGet{what}RunningProcesses", handle) for what in ("Compute", "Graphics")]
        if lists == [None, None]:
            return None
        for entry in (entry for one in lists for entry in one or ()):
            pid = getattr(entry, "pid", None)
            if isinstance(pid, int) and 0 <= pid < 1 << 32:
                found[pid] = _size(getattr(entry, "usedGpuMemory", None))
        return tuple(GpuProcess(pid, used) for pid, used in sorted(found.items()))

    def _driver(self) -> str | None:
        version = _text(self.ask("nvmlSystemGetDriverVersion"))
        cuda = self.count("nvmlSystemGetCudaDriverVersion_v2")
        if version is None:
            return None
        return f"nvidia {version}" + (f", CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")


def _without_nvml(tree: Tree, functions: Sequence[PciFunction], memory: Memory) -> tuple[Device, ...]:
    """What the bus shows, and a Jetson's GPU, which is on no bus."""
    devices = [
        Device(
            id=f"nvidia@{function.address}",
            name=_proc_name(tree, function) or pci.name(tree, function),
            kind=DeviceKind.DISCRETE,
            memory_shared=0,
            pcie=pci.link(tree, function),
            rebar=pci.rebar(function.bar, None),
            vendor="nvidia",
            driver=function.driver,
            address=function.address,
            source="pci",
        )
        for function in functions
    ]
    if not devices and "nvidia,tegra" in (tree.text("/proc/device-tree/compatible") or ""):
        devices.append(
            Device(
                id="CUDA0",
                name=tree.line("/proc/device-tree/model") or "NVIDIA Tegra",
                kind=DeviceKind.UNIFIED,
                memory_total=memory.total,
                memory_free=memory.available,
                memory_shared=memory.total,
                vendor="nvidia",
                source="devicetree",
            )
        )
    return tuple(devices)


def _sleeper(tree: Tree, function: PciFunction) -> Device:
    return Device(
        id=f"nvidia@{function.address}",
        name=pci.name(tree, function),
        kind=DeviceKind.DISCRETE,
        memory_shared=0,
        pcie=pci.link(tree, function),
        rebar=pci.rebar(function.bar, None),
        vendor="nvidia",
        driver=function.driver,
        address=function.address,
        suspended=True,
        source="pci",
    )


def _why_unknown(tree: Tree, device: Device) -> str:
    """NVML was not to be had: what is missing depends on who holds the card."""
    where = f"{device.name} at {device.address} is on the bus, but"
    if tree.exists("/dev/nvidiactl"):
        return f"{where} NVML (libnvidia-ml.so.1) isn't: in a container, add `utility` to NVIDIA_DRIVER_CAPABILITIES"
    if device.driver == "nvidia":
        return f"{where} its device files aren't here: start the container with GPU access (--gpus all, or CDI)"
    if device.driver in (None, "nouveau"):
        return f"{where} NVIDIA's driver isn't loaded (it is bound to {device.driver or 'no driver'})"
    return f"{where} it is bound to {device.driver}"


def _proc_name(tree: Tree, function: PciFunction) -> str | None:
    for line in (tree.text(f"/proc/driver/nvidia/gpus/{function.address}/information") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model" and value.strip():
            return value.strip()
    return None


def _within(patience: float, work: Callable[[], _Result]) -> list[_Result]:
    """Do it on a thread: [the result], or [] when that took too long.

    A call that hangs in the driver cannot be stopped, only left behind.
    """
    done: list[_Result] = []
    thread = threading.Thread(target=lambda: done.append(work()), name="nvml", daemon=True)
    thread.start()
    thread.join(patience)
    return done


def _address(bus_id: object) -> str | None:
    """NVML writes `00000000:01:00.0`, the kernel `0000:01:00.0`."""
    text = (_text(bus_id) or "").lower()
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text)
    return f"{int(match[1], 16):04x}:{match[2]}" if match else None


def _text(value: object) -> str | None:
    """A string; older pynvml give bytes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value.strip("\0 \n") or None if isinstance(value, str) else None


def _size(value: object) -> int | None:
    """A count of anything; NVML writes all ones where it has none."""
    return value if isinstance(value, int) and 0 <= value < 1 << 50 else None
