"""Timed copies through the engine's own backends, by the small program that is built with each engine
(build/bandwidth): rpc workers, Vulkan, ROCm, and reading host RAM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import EngineRefused, KvlaunchError, ProfileError
from launcher.machine.bandwidth import Copy
from launcher.machine.decode import Reader
from launcher.machine.engine_process import run_engine_program
from launcher.units import MIB

PROGRAM = "kvlaunch-bandwidth"


@dataclass(frozen=True, slots=True)
class EngineCopies:
    """One device's figures, or why there are none."""

    device: str
    description: str
    copies: tuple[Copy, ...] = ()
    latency_us: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HostRead:
    """How fast all threads together read RAM, in GB/s."""

    gbps: float
    threads: int


def measure(
    program: Path,
    *,
    rpc: Sequence[str] = (),
    devices: Sequence[str] = (),
    sizes: Sequence[int] = (),
    seconds: float = 0.25,
    host: bool = True,
    timeout: float = 120.0,
    environ: Mapping[str, str] | None = None,
) -> tuple[tuple[EngineCopies, ...], HostRead | None]:
    """Run the program and read its figures: of the named devices, else of all but the CPU. Raises KvlaunchError."""
    command = ["--seconds", str(seconds)]
    command += [part for device in devices for part in ("--device", device)]
    command += ["--sizes", ",".join(str(size // MIB) for size in sizes)] if sizes else []
    command += ["--host"] if host else []
    done = run_engine_program(program, command, rpc=rpc, timeout=timeout, environ=environ)
    if done.returncode not in (0, 1):
        raise EngineRefused(f"{PROGRAM} {done.ending}: {done.last_words}")
    return read_output(done.output)


def read_output(text: str) -> tuple[tuple[EngineCopies, ...], HostRead | None]:
    """The program's lines. Raises KvlaunchError when they are not what the program prints."""
    devices: list[EngineCopies] = []
    host: HostRead | None = None
    for line in text.splitlines():
        if not line.startswith("{"):
            continue  # a backend that logs to stdout
        try:
            reader = Reader.top(json.loads(line), PROGRAM)
            name = reader.required_text("device")
            if name == "host":
                host = HostRead(reader.number("read_gbps") or 0.0, reader.required_count("threads"))
            else:
                devices.append(_device(name, reader))
        except (ValueError, ProfileError) as error:
            raise KvlaunchError(f"{PROGRAM} printed what cannot be read: {error}") from None
    return tuple(devices), host


def _device(name: str, reader: Reader) -> EngineCopies:
    error = reader.text("error", optional=True)
    if error is not None:
        return EngineCopies(name, reader.required_text("description"), error=error)
    return EngineCopies(
        name,
        reader.required_text("description"),
        tuple(Copy.read(copy) for copy in reader.children("copies") or ()),
        reader.number("latency_us"),
    )
