"""Measures what there is to measure on this machine, keeps the figures, and says what stayed out and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.errors import KvlaunchError
from launcher.machine import cuda_copies, engine_copies, pci
from launcher.machine.bandwidth import SIZES, Bandwidth, Conditions
from launcher.machine.figures import Identity, keep, with_measured
from launcher.machine.tree import Tree
from launcher.machine.types import Device, Machine, PcieLink
from launcher.machine.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Program:
    """The engine's measuring program, and what to call the engine in the conditions."""

    path: Path
    engine: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures with their verdicts (host RAM has none), what stayed out, and the machine with the figures in it."""

    machine: Machine
    results: tuple[tuple[Bandwidth, Verdict | None], ...]
    notes: tuple[str, ...]


def measure(
    machine: Machine,
    cache: Path,
    *,
    program: Program | None,
    rpc: Sequence[str] = (),
    cuda: Callable[[], Any] = cuda_copies.load_driver,
    tree: Tree | None = None,
    seconds: float = 0.25,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """CUDA devices through the driver, the rest and host RAM through the engine's program.

    A device that fails costs its own figures only. `say` is told what is being measured.
    """
    results: list[tuple[Bandwidth, Verdict | None]] = []
    notes: list[str] = []

    def take(bandwidth: Bandwidth, device: Device | None) -> None:
        identity = Identity.of_host(machine) if device is None else Identity.of(device)
        results.append((bandwidth, None if device is None else judge(bandwidth, device)))
        try:
            keep(cache, identity, bandwidth)
        except KvlaunchError as error:
            notes.append(error.message)

    left = []
    for device in machine.devices:
        if not device.id.startswith("CUDA") or device.address is None or device.mig is not None:
            left.append(device)
            continue
        say(f"{device.id} {device.name}, through the CUDA driver")
        try:
            take(_through_cuda(machine, device, cuda(), tree or Tree(), seconds), device)
        except KvlaunchError as error:
            left.append(device)
            notes.append(f"{device.id}: {error.message}" + (f" ({error.help})" if error.help else ""))
    if program is not None:
        say("through the engine's backends, then host RAM")
        try:
            _through_engine(machine, program, rpc, left, seconds, take, notes)
        except KvlaunchError as error:
            notes.append(error.message + (f" ({error.help})" if error.help else ""))
    else:
        names = [device.id for device in left]
        what = f"{', '.join(names)} and host RAM" if names else "host RAM"
        notes.append(f"{what}: not measured, since no engine is built yet (`kvlaunch build`)")
    return Measured(with_measured(machine, cache), tuple(results), tuple(notes))


def _through_cuda(machine: Machine, device: Device, driver: Any, tree: Tree, seconds: float) -> Bandwidth:
    conditions = _conditions(machine, device, "cuda-driver")
    seen: list[str | None] = []
    found = cuda_copies.measure(
        driver, device.address or "", budget=seconds, while_busy=lambda: seen.append(_link_now(tree, device))
    )
    if seen and seen[0] is not None:
        conditions = replace(conditions, link=seen[0])
    return Bandwidth(device.id, device.name, conditions, found.copies, found.latency_us)


def _through_engine(
    machine: Machine,
    program: Program,
    rpc: Sequence[str],
    left: Sequence[Device],
    seconds: float,
    take: Callable[[Bandwidth, Device | None], None],
    notes: list[str],
) -> None:
    found, host = engine_copies.measure(program.path, rpc=rpc, sizes=SIZES, seconds=seconds)
    by_id = {device.id: device for device in left}
    measured_already = {device.id for device in machine.devices} - set(by_id)
    for entry in found:
        if entry.device in measured_already:
            continue
        if entry.error is not None:
            notes.append(f"{entry.device}: {entry.error}")
            continue
        device = by_id.get(entry.device) or Device(id=entry.device, name=entry.description, source="engine")
        conditions = _conditions(machine, device, f"engine {program.engine}")
        take(Bandwidth(device.id, device.name, conditions, entry.copies, entry.latency_us), device)
    seen = {entry.device for entry in found}
    notes.extend(f"{id}: the engine does not see it" for id in by_id if id not in seen)
    if host is not None:
        conditions = _conditions(machine, None, f"engine {program.engine}, {host.threads} threads")
        take(Bandwidth("host", machine.cpu.model or "host", conditions, read_gbps=host.gbps), None)


def _conditions(machine: Machine, device: Device | None, method: str) -> Conditions:
    try:
        load: float | None = round(os.getloadavg()[0], 2)
    except OSError:
        load = None
    return Conditions(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        method=method,
        driver=device.driver if device else None,
        kernel=machine.kernel,
        link=_words(device.pcie) if device else None,
        load=load,
        threads=machine.cpu.threads,
    )


def _link_now(tree: Tree, device: Device) -> str | None:
    """The link's state while data flows: that is when it is at its speed."""
    function = next((f for f in pci.gpus(tree) if f.address == device.address), None)
    return _words(pci.link(tree, function)) if function is not None else None


def _words(link: PcieLink | None) -> str | None:
    return None if link is None or link.gen is None else f"gen {link.gen} x{link.width}"
