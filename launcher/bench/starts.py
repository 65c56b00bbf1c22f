"""Starts a real engine for a moment and reads from its log what it allocated. Serves nothing, kills it at once."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

# "llama_kv_cache:        CPU KV buffer size =   180.00 MiB" (src/llama-kv-cache.cpp:291 and its like)
_BUFFER = re.compile(
    r"(?P<where>\w+): +(?P<buffer>\S+) +(?P<what>KV|RS|DSV4 \w+ state|output|compute|model|LoRA) buffer size = +"
    r"(?P<size>[\d.]+) MiB"
)
_ITEMS = {"KV": "kv", "RS": "recurrent", "output": "output", "compute": "compute", "model": "weights", "LoRA": "lora"}
_DONE = "sched_reserve: reserve took"
_KEPT_LINES = 400


@dataclass(frozen=True, slots=True)
class Allocation:
    """One buffer that the log names. `mib` has the two digits of the log."""

    item: str
    device: str
    mib: float
    buffer: str


@dataclass(frozen=True, slots=True)
class Start:
    """What one start came to. `ready` is False where the engine refused; `tail` has its last lines."""

    argv: tuple[str, ...]
    ready: bool
    exit_code: int | None
    allocations: tuple[Allocation, ...]
    seconds: float
    tail: tuple[str, ...]

    def total(self, item: str, device: str | None = None) -> float:
        """MiB of one item, on one device or on all."""
        return sum(a.mib for a in self.allocations if a.item == item and device in (None, a.device))


def device_of(buffer: str, workers: Sequence[str] = ()) -> str:
    """The device that a buffer lies on: `CPU_Mapped`, `CPU_REPACK` and a device's pinned host memory are the host.

    Each rpc worker counts its own devices from 0, so `RPC0[127.0.0.1:50052]` is known by its address: the devices are
    numbered in the order of `workers` (one device each).
    """
    name, _, address = buffer.partition("[")
    if address.rstrip("]") in workers:
        return f"RPC{workers.index(address.rstrip(']'))}"
    return "host" if name.startswith("CPU") or name.endswith("_Host") else name


def read_allocations(lines: Sequence[str], workers: Sequence[str] = ()) -> tuple[Allocation, ...]:
    """The buffers that these log lines name, in order."""
    found: list[Allocation] = []
    for line in lines:
        match = _BUFFER.search(line)
        if match is None:
            continue
        item = _ITEMS.get(match["what"], "recurrent")
        found.append(Allocation(item, device_of(match["buffer"], workers), float(match["size"]), match["buffer"]))
    return tuple(found)


def start(
    server: Path,
    argv: Sequence[str],
    *,
    timeout: float = 60.0,
    until: str = _DONE,
    workers: Sequence[str] = (),
    warm: bool = False,
    at_end: Callable[[int], None] | None = None,
    listens: bool = False,
    env: Mapping[str, str] | None = None,
) -> Start:
    """Run `server argv` until its memory is reserved (a line has `until`), then kill it.

    The environment is clean but for `env`; the port is a free one, unless `argv` says where it `listens`. `warm`: with
    the engine's empty run. `at_end` gets the live process.
    """
    command: tuple[str, ...] = (str(server), *argv, "-lv", "4", "--fit", "off")
    command += () if listens else ("--host", "127.0.0.1", "--port", "0")
    command += () if warm else ("--no-warmup",)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvlaunch-start-") as home:
        environ = {"PATH": os.environ.get("PATH", ""), "HOME": home, "XDG_CONFIG_HOME": home, "LANG": "C.UTF-8"}
        environ |= env or {}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, cwd=home
        ) as process:
            lines: list[str] = []
            ready = False
            try:
                for line in _lines(process, began + timeout):
                    lines.append(line)
                    if until in line:
                        ready = True
                        break
                if ready and at_end is not None:
                    at_end(process.pid)
                if not ready:  # it closed its output: it is about to end by itself
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(1.0, min(5.0, began + timeout - time.monotonic())))
            finally:
                process.kill()
                process.wait()
            code = None if ready else process.returncode
    return Start(
        command, ready, code, read_allocations(lines, workers), time.monotonic() - began, tuple(lines[-_KEPT_LINES:])
    )


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Lines as they come, until the end of file or the deadline."""
    assert process.stdout is not None
    pending = b""
    descriptor = process.stdout.fileno()
    with DefaultSelector() as selector:
        selector.register(descriptor, EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                return
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return
            *whole, pending = (pending + piece).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
