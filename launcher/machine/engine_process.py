"""Runs one of an engine's short programs to its end: asks the engine what it sees, or lets it measure.

Not for the server: that one is the supervisor's.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BuildError, EngineRefused, GaveUp, KvlaunchError, UsageError
from launcher.machine.engine_devices import merge, parse_devices
from launcher.machine.types import Machine

_HEADING = "Available devices:"  # common/arg.cpp, --list-devices
_KEPT = ("HOME", "PATH", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "TMPDIR")
_DEVICES = ("CUDA_", "HIP_", "ROCR_", "HSA_", "VK_", "GGML_VK_", "MESA_")  # which devices there are, and their drivers


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended and what it printed."""

    returncode: int
    output: str
    errors: str

    @property
    def ending(self) -> str:
        """`ended with 3`, `was killed by signal 6`."""
        code = self.returncode
        return f"was killed by signal {-code}" if code < 0 else f"ended with {code}"

    @property
    def last_words(self) -> str:
        """The last line of its stderr."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def list_devices(server: Path, *, rpc: Sequence[str] = (), timeout: float = 30.0) -> str:
    """What `llama-server --list-devices` prints (for engine_devices.py). Raises KvlaunchError."""
    # an engine without the rpc backend does not know the option; so it is given only when it is needed
    done = run_engine_program(server, ["--list-devices"], rpc=rpc, timeout=timeout)
    if done.returncode != 0:
        raise EngineRefused(f"{server.name} --list-devices {done.ending}: {done.last_words}")
    if _HEADING not in done.output:
        raise EngineRefused(f"{server} lists no devices: is it a llama-server?", help="name the engine's own server")
    return done.output


def with_workers(machine: Machine, server: Path, rpc: Sequence[str]) -> Machine:
    """The machine with the rpc workers that a profile names, as this engine sees them; a note where that fails.

    A machine that has them already (a recorded one) is left as it is: nobody need be asked again.
    """
    if not rpc or machine.device("RPC0") is not None:
        return machine
    try:
        return merge(machine, parse_devices(list_devices(server, rpc=rpc)))
    except KvlaunchError as error:
        return machine.with_devices(machine.devices, f"the rpc workers' memory is unknown: {error.message}")


def run_engine_program(
    program: Path,
    arguments: Sequence[str],
    *,
    rpc: Sequence[str] = (),
    timeout: float,
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Run it with the rpc workers named first (the engine's parser wants them before what uses them)."""
    for endpoint in rpc:
        check_worker(endpoint)
    joined = [part for endpoint in rpc for part in ("--rpc", endpoint)]
    if len(rpc) > 1 and program.name == "llama-server":
        joined = ["--rpc", ",".join(rpc)]  # its last --rpc would win
    try:
        done = subprocess.run(
            [str(program), *joined, *arguments],
            env=_environment(os.environ if environ is None else environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise BuildError(f"there is no {program}", help="build the engine anew: `kvlaunch build`") from None
    except subprocess.TimeoutExpired:
        raise GaveUp(f"{program.name} did not end within {timeout:g} s", help="does a device or worker hang?") from None
    except OSError as error:
        raise EngineRefused(f"cannot run {program}: {error.strerror or error}") from None
    return Ended(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def check_worker(endpoint: str, timeout: float = 2.0) -> None:
    """Somebody listens there. The engine aborts where nobody does, so we look first. Raises KvlaunchError."""
    where, colon, port = endpoint.rpartition(":")
    if not colon or not where or not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) < 65536:
        raise UsageError(f"{endpoint!r} is no rpc worker's address", help='write "host:port"')
    try:
        socket.create_connection((where.strip("[]"), int(port)), timeout).close()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise EngineRefused(f"no rpc worker answers at {endpoint}: {words}", help="is it started there?") from None


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """As little as the loader and the device runtimes need; and no debugger attached to an abort."""
    kept = {key: value for key, value in environ.items() if key in _KEPT or key.startswith(_DEVICES)}
    return kept | {"LC_ALL": "C", "GGML_NO_BACKTRACE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
