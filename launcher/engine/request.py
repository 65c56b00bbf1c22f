"""What to build, as a profile or a command line asks for it, and which backend `auto` means on a machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.series import Choice
from launcher.machine.types import DeviceKind, Machine


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """`dev`: a tree of its own that rebuilds fast after an edit. `force`: build although it is there."""

    backend: str = "auto"
    patches: Choice = "default"
    pin: str | None = None
    from_git: bool = False
    dev: bool = False
    force: bool = False
    jobs: int = 0
    patches_dir: Path | None = None
    cpu_flags: Collection[str] | None = None
    """Instead of this CPU's own."""


# vendor of a device, the compiler that its backend takes, the backend
_BY_VENDOR = (("nvidia", "nvcc", "cuda"), ("amd", "hipcc", "rocm"))


def request_for(patches: Choice, backend: str, machine: Machine) -> BuildRequest:
    """The request that a profile's `engine.patches` and `compute.backend` mean here."""
    return BuildRequest(patches=patches, backend=choose_backend(machine) if backend == "auto" else backend)


def choose_backend(machine: Machine, environ: Mapping[str, str] | None = None) -> str:
    """The vendor's own backend where its compiler is here, else Vulkan where that can be built, else the CPU."""
    path = (os.environ if environ is None else environ).get("PATH")
    cards = [d for d in machine.devices if d.kind not in (DeviceKind.REMOTE, DeviceKind.SOFTWARE)]
    vendors = {(device.vendor or "").lower() for device in cards}
    for vendor, compiler, backend in _BY_VENDOR:
        if vendor in vendors and shutil.which(compiler, path=path):
            return backend
    return "vulkan" if cards and shutil.which("glslc", path=path) else "cpu"
