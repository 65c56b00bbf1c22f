"""Keeps measured figures in the user's cache, for as long as they hold, and gives them back to a probed machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.errors import KvlaunchError
from launcher.machine.bandwidth import Bandwidth
from launcher.machine.decode import Reader
from launcher.machine.types import Device, Machine

HOST = "host"
"""The cache's name for host RAM itself."""
FOLDER = "bandwidth"
"""Where figures are kept, below the user's cache."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be the same for a figure to hold: the device, its driver, what its slowest link can do."""

    device: str
    name: str | None
    driver: str | None = None
    link: str | None = None
    """None: there is no link, or it sleeps and tells nothing; that is no reason to forget."""

    @classmethod
    def of(cls, device: Device) -> Identity:
        """A device's: by its UUID, its place on the bus, or its name."""
        link = device.pcie
        can = (
            None if link is None or link.gen_max is None else f"gen {link.gen_max} x{link.width_max} {link.bottleneck}"
        )
        return cls(device.uuid or device.address or device.name, device.name, device.driver, can)

    @classmethod
    def of_host(cls, machine: Machine) -> Identity:
        """Host RAM's: by the processors that read it."""
        return cls(HOST, machine.cpu.model, f"{machine.cpu.threads} threads")

    def holds_for(self, other: Identity) -> bool:
        """A figure taken as `self` may be used as `other`."""
        known = (self.device, self.name, self.driver) == (other.device, other.name, other.driver)
        return known and (self.link == other.link or None in (self.link, other.link))

    def file(self, folder: Path) -> Path:
        """Its place in the cache."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", self.device)[:60]
        return folder / f"{plain}-{hashlib.sha256(os.fsencode(self.device)).hexdigest()[:8]}.json"


def keep(folder: Path, identity: Identity, measured: Bandwidth) -> Path:
    """Write it into the cache, whole or not at all. Raises KvlaunchError."""
    path = identity.file(folder)
    record = measured.as_json() | {"identity": asdict(identity)}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".new-", delete=False, encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        Path(file.name).replace(path)
    except OSError as error:
        raise KvlaunchError(f"cannot keep the measurement in {folder}: {error.strerror or error}") from None
    return path


def recall(folder: Path, identity: Identity) -> Bandwidth | None:
    """What was measured for this device with this driver behind this link; None when nothing was."""
    try:
        data = json.loads(identity.file(folder).read_text(encoding="utf-8"))
        reader = Reader.top(data, "the cache")
        taken = reader.required_child("identity")
        stored = Identity(taken.required_text("device"), *(taken.text(key) for key in ("name", "driver", "link")))
        return Bandwidth.read(reader) if stored.holds_for(identity) else None
    except (OSError, ValueError, RecursionError, KvlaunchError):
        return None  # a cache that does not read is no cache; the next measurement writes it anew


def with_measured(machine: Machine, folder: Path) -> Machine:
    """The machine with what the cache knows about its links and its RAM."""
    if not folder.is_dir():
        return machine
    devices = []
    for device in machine.devices:
        measured = recall(folder, Identity.of(device))
        devices.append(device if measured is None else _with_figures(device, measured))
    host = recall(folder, Identity.of_host(machine))
    memory = machine.memory if host is None else replace(machine.memory, gbps=host.read_gbps)
    return replace(machine, devices=tuple(devices), memory=memory)


def _with_figures(device: Device, measured: Bandwidth) -> Device:
    link = device.pcie
    return replace(
        device,
        copy_gbps=measured.plateau,
        copy_latency_us=measured.latency_us,
        pcie=replace(link, gbps=measured.plateau) if link is not None else None,
    )
