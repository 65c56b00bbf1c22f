"""Looks at the box and says what it has. The one door into this room; a box without GPUs takes a few milliseconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.machine import drm, nvidia, pci, surroundings
from launcher.machine.cpu import read_cpu
from launcher.machine.ram import read_memory
from launcher.machine.tree import Tree
from launcher.machine.types import Device, Machine

_FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")  # drivers that keep a device for virtual machines


def probe(
    root: Path = Path("/"),
    *,
    environ: Mapping[str, str] | None = None,
    nvml: Any | None = None,
    wake: bool = False,
) -> Machine:
    """The machine as this process may use it. Never raises: what can't be learnt is None, and `notes` say why.

    `root` may be a recorded tree; NVML is then only asked where a stand-in is handed in. `wake` asks GPUs that sleep.
    """
    env = os.environ if environ is None else environ
    tree = Tree(root)
    memory = read_memory(tree)
    notes: list[str] = []
    functions: list[pci.PciFunction] = []
    for function in pci.gpus(tree):
        if function.driver in _FOR_GUESTS:
            notes.append(f"{pci.name(tree, function)} at {function.address} is kept for guests ({function.driver})")
        else:
            functions.append(replace(function, suspended=False) if wake else function)

    cuda = tuple(function for function in functions if function.vendor == pci.NVIDIA)
    devices: tuple[Device, ...] = ()
    cuda_notes: tuple[str, ...] = ()
    if nvidia.present(tree, cuda):
        if nvml is None and tree.live:
            nvml = nvidia.load_nvml()
        devices, cuda_notes = nvidia.read_devices(tree, cuda, memory, env, nvml)
    others = tuple(function for function in functions if function.vendor != pci.NVIDIA)
    return Machine(
        devices=(*devices, *drm.read_devices(tree, others, memory)),
        memory=memory,
        cpu=read_cpu(tree),
        wsl=surroundings.is_wsl(tree),
        container=surroundings.container(tree),
        kernel=surroundings.kernel(tree),
        notes=(*notes, *cuda_notes),
    )
