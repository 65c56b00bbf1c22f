"""Measured host-device copies as values: the figures, and the conditions under which they were taken.

How they are made stands in cuda_copies.py and engine_copies.py, what they say in verdict.py, where they are kept in
figures.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.machine.decode import Reader
from launcher.units import MIB

SIZES = (1 * MIB, 16 * MIB, 64 * MIB)


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
