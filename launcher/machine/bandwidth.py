"""Measured host-device copies: what was measured, under which conditions, what it says, and where it is kept.

How the copies are made stands in cuda_copies.py (through the CUDA driver) and engine_copies.py (through the engine's
backends). Nothing here moves a byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.errors import KvlaunchError
from launcher.machine.decode import Reader
from launcher.machine.types import Device, Machine
from launcher.units import MIB, format_bytes

SIZES = (1 * MIB, 16 * MIB, 64 * MIB)
HOST = "host"
"""The cache's name for host RAM itself."""
FOLDER = "bandwidth"
"""Where figures are kept, below the user's cache."""

_GAIN = 1.1  # below it, pinned and pageable are the same within what a busy box wobbles
_SATURATED = 0.75  # of a link's rate after its line code; packet headers take 10 to 20 % (seed: 6.67 of 7.88 GB/s)


@dataclass(frozen=True, slots=True)
class Copy:
    """One figure: `size` bytes one way from or to one kind of host memory, the median of `runs`, in GB/s (decimal)."""

    size: int
    direction: str
    host: str
    gbps: float
    best: float
    runs: int

    def as_json(self) -> dict[str, object]:
        """One entry of `copies`."""
        return {
            "bytes": self.size,
            "direction": self.direction,
            "host": self.host,
            "gbps": self.gbps,
            "best": self.best,
            "runs": self.runs,
        }

    @classmethod
    def read(cls, reader: Reader) -> Copy:
        """From the JSON object. Raises ProfileError."""
        return cls(
            size=reader.required_count("bytes"),
            direction=reader.required_text("direction"),
            host=reader.required_text("host"),
            gbps=reader.number("gbps") or 0.0,
            best=reader.number("best") or 0.0,
            runs=reader.required_count("runs"),
        )


@dataclass(frozen=True, slots=True)
class Conditions:
    """What could make the next measurement come out otherwise."""

    at: str
    """RFC 3339."""
    method: str
    """`cuda-driver`, or `engine KEY`."""
    driver: str | None
    kernel: str | None
    link: str | None
    """The link while it was busy, `gen 4 x16`: idle ones read lower."""
    load: float | None
    """Load average over the last minute, before."""
    threads: int | None

    def as_json(self) -> dict[str, object]:
        """The object `conditions`."""
        return {
            "at": self.at,
            "method": self.method,
            "driver": self.driver,
            "kernel": self.kernel,
            "link": self.link,
            "load": self.load,
            "threads": self.threads,
        }

    @classmethod
    def read(cls, reader: Reader) -> Conditions:
        """From the JSON object. Raises ProfileError."""
        return cls(
            at=reader.required_text("at"),
            method=reader.required_text("method"),
            driver=reader.text("driver"),
            kernel=reader.text("kernel"),
            link=reader.text("link"),
            load=reader.number("load"),
            threads=reader.count("threads"),
        )


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One device's figures. For host RAM (`device` is `host`) only `read_gbps` is set."""

    device: str
    name: str
    conditions: Conditions
    copies: tuple[Copy, ...] = ()
    latency_us: float | None = None
    """One small read back: the least that any transfer costs."""
    read_gbps: float | None = None

    def rate(self, direction: str, host: str, size: int) -> float | None:
        """The figure of one cell of the table."""
        return next(
            (c.gbps for c in self.copies if (c.direction, c.host, c.size) == (direction, host, size)),
            None,
        )

    @property
    def plateau(self) -> float | None:
        """Host to device where size no longer matters, pinned where that was possible: what plans count with."""
        for host in ("pinned", "pageable"):
            rates = [c.gbps for c in self.copies if c.direction == "h2d" and c.host == host and c.size >= 16 * MIB]
            if rates:
                return max(rates)
        return None

    def as_json(self) -> dict[str, object]:
        """The object in `bandwidth` of `probe --bandwidth --json`, and the file in the cache."""
        return {
            "schema": 1,
            "device": self.device,
            "name": self.name,
            "conditions": self.conditions.as_json(),
            "copies": [copy.as_json() for copy in self.copies],
            "latency_us": self.latency_us,
            "read_gbps": self.read_gbps,
        }

    @classmethod
    def read(cls, reader: Reader) -> Bandwidth:
        """From the JSON object. Raises ProfileError."""
        reader.check_schema(1)
        return cls(
            device=reader.required_text("device"),
            name=reader.required_text("name"),
            conditions=Conditions.read(reader.required_child("conditions")),
            copies=tuple(Copy.read(copy) for copy in reader.children("copies") or ()),
            latency_us=reader.number("latency_us"),
            read_gbps=reader.number("read_gbps"),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures say. `gain` is pinned over pageable by (direction, size)."""

    gain: dict[tuple[str, int], float]
    link_share: float | None
    """The plateau over what the slowest link can carry."""
    sentences: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The object `verdict`."""
        gains = [{"direction": d, "bytes": size, "ratio": ratio} for (d, size), ratio in self.gain.items()]
        return {"gain": gains, "link_share": self.link_share, "sentences": list(self.sentences)}


def judge(measured: Bandwidth, device: Device) -> Verdict:
    """The ReBAR state and the figures, in sentences.

    The ratio of pinned to pageable is not a test for ReBAR. A pageable copy is staged through a pinned buffer by the
    driver, a fixed cost that shows on small copies (> 1.1 at 1 MiB) and drowns on large ones (about 1.0 at 64 MiB,
    where the link is full); both go by DMA, which never uses the CPU's window onto the card. (The seed's card had ReBAR
    on, and its 1 MiB row said "degraded".) ReBAR is read from the size of the BAR.
    """
    gain: dict[tuple[str, int], float] = {}
    for direction in ("h2d", "d2h"):
        for size in sorted({copy.size for copy in measured.copies}):
            pinned, pageable = (measured.rate(direction, host, size) for host in ("pinned", "pageable"))
            if pinned and pageable:
                gain[direction, size] = round(pinned / pageable, 3)
    limit = device.pcie.gbps_max if device.pcie else None
    share = round(measured.plateau / limit, 3) if measured.plateau and limit else None
    sentences = [*_about_rebar(device), *_about_link(measured, device, share), *_about_gain(gain)]
    return Verdict(gain, share, tuple(sentences))


def _about_rebar(device: Device) -> list[str]:
    words = {
        "on": "ReBAR is on: the BAR spans all of the device's memory.",
        "partial": "ReBAR is partial: the BAR spans some of the device's memory, more than the 256 MiB of old.",
        "off": "ReBAR is off (a BAR of 256 MiB or less). Copies by DMA, as the engine makes them, do not need it.",
    }
    return [words[device.rebar]] if device.rebar is not None else []


def _about_link(measured: Bandwidth, device: Device, share: float | None) -> list[str]:
    if measured.plateau is None:
        return []
    rate = f"{measured.plateau:.2f} GB/s host to device"
    if share is None:
        return [f"{rate}."]
    link = device.pcie
    where = f" at {link.bottleneck}" if link and link.bottleneck and link.bottleneck != device.address else ""
    name = f"the link{where} (gen {link.gen_max} x{link.width})" if link else "the link"
    if share > 1.05:
        return [f"{rate}: more than {name} should carry; what was read about the link is wrong."]
    if share >= _SATURATED:
        return [f"{rate}: {share:.0%} of what {name} carries, so the link is full and nothing else is in the way."]
    return [
        f"{rate}: only {share:.0%} of what {name} carries; look for a busy box, another NUMA node, or power saving."
    ]


def _about_gain(gain: dict[tuple[str, int], float]) -> list[str]:
    if not gain:
        return []
    sizes = sorted({size for _, size in gain})
    small, large = sizes[0], sizes[-1]
    at_small = max(ratio for (_, size), ratio in gain.items() if size == small)
    at_large = max(ratio for (_, size), ratio in gain.items() if size == large)
    if at_small > _GAIN and at_large <= _GAIN:
        return [
            f"Pinned memory is {at_small:.2f}× as fast at {format_bytes(small)} and no faster at {format_bytes(large)}:"
            " small copies are bound by latency and staging, so small tiles belong in pinned memory."
        ]
    if at_large > _GAIN:
        return [
            f"Pinned memory is {at_large:.2f}× as fast even at {format_bytes(large)}: staging, not the link, limits "
            "pageable copies here, so everything that is streamed belongs in pinned memory."
        ]
    return ["Pinned memory gains nothing at any size here."]


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
