"""Timed copies through the engine's own backends, by the small program that is built with each engine
(build/bandwidth): rpc workers, Vulkan, ROCm, and reading host RAM.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import KvlaunchError, ProfileError
from launcher.machine.bandwidth import Copy
from launcher.machine.decode import Reader
from launcher.units import MIB

PROGRAM = "kvlaunch-bandwidth"
_LOADER = ("HOME", "PATH", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "TMPDIR")
_DEVICES = ("CUDA_", "HIP_", "ROCR_", "HSA_", "VK_", "GGML_VK_", "MESA_")  # which devices there are, and their drivers


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
    for endpoint in rpc:
        check_worker(endpoint)
    command = [str(program), "--seconds", str(seconds)]
    command += [part for endpoint in rpc for part in ("--rpc", endpoint)]
    command += [part for device in devices for part in ("--device", device)]
    command += ["--sizes", ",".join(str(size // MIB) for size in sizes)] if sizes else []
    command += ["--host"] if host else []
    try:
        done = subprocess.run(
            command,
            env=_environment(os.environ if environ is None else environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise KvlaunchError(f"there is no {program}", help="build the engine anew: `kvlaunch build`") from None
    except subprocess.TimeoutExpired:
        raise KvlaunchError(f"{PROGRAM} did not end within {timeout:g} s", help="is an rpc worker hanging?") from None
    except OSError as error:
        raise KvlaunchError(f"cannot run {program}: {error.strerror or error}") from None
    if done.returncode not in (0, 1):
        raise KvlaunchError(f"{PROGRAM} {_ended(done.returncode)}: {_last_line(done.stderr)}")
    return read_output(done.stdout.decode("utf-8", "replace"))


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


def check_worker(endpoint: str, timeout: float = 2.0) -> None:
    """Somebody listens there. The engine aborts where nobody does, so it is asked first. Raises KvlaunchError."""
    where, colon, port = endpoint.rpartition(":")
    if not colon or not where or not port.isdecimal() or not 0 < int(port) < 65536:
        raise KvlaunchError(f"{endpoint!r} is no rpc worker's address", help='write "host:port"')
    try:
        socket.create_connection((where.strip("[]"), int(port)), timeout).close()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise KvlaunchError(f"no rpc worker answers at {endpoint}: {words}") from None


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


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """As little as the loader and the device runtimes need; and no debugger attached to an abort."""
    kept = {key: value for key, value in environ.items() if key in _LOADER or key.startswith(_DEVICES)}
    return kept | {"LC_ALL": "C", "GGML_NO_BACKTRACE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with {code}"


def _last_line(output: bytes) -> str:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
