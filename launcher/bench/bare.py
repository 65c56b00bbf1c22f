"""A llama-server for a bench: started with its arguments and nothing else, asked over HTTP, ended with its block.

No supervisor, no profile: what a bench of one patch measures must be the engine's own doing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from launcher.bench.instance import free_port

_START = 120.0  # seconds until the model answers
_SAVED = "bench.bin"
_LOG = "engine.log"


@dataclass(frozen=True, slots=True)
class BareEngine:
    """A running server, and the few requests that benches make."""

    http: httpx.Client
    folder: Path
    pid: int

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def complete(self, prompt: str | Sequence[int], n: int, **fields: Any) -> dict[str, Any]:
        """A greedy completion that goes on to its n-th token."""
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "ignore_eos": True, "cache_prompt": True}
        return self.post("/completion", body | fields)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        tokens: list[int] = self.post("/tokenize", {"content": text, "add_special": special})["tokens"]
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(self.post("/detokenize", {"tokens": list(tokens)})["content"])

    def save(self, name: str = _SAVED) -> None:
        self.post("/slots/0?action=save", {"filename": name})

    def restore(self, name: str = _SAVED) -> None:
        self.post("/slots/0?action=restore", {"filename": name})

    def erase(self) -> None:
        self.post("/slots/0?action=erase", {})

    def restore_from(self, other: BareEngine, name: str = _SAVED) -> None:
        """Another engine's save, which its slot and its context may not be larger than."""
        shutil.copy(other.folder / name, self.folder / name)
        self.restore(name)

    def held(self) -> list[int]:
        """The tokens that slot 0 holds, read from the head of its own save file."""
        self.save("held.bin")
        with (self.folder / "held.bin").open("rb") as file:
            _magic, _version, count = struct.unpack("<III", file.read(12))
            packed = struct.unpack(f"<{count}i", file.read(4 * count))
        # the server's own mark and version, the number of tokens, the tokens
        return list(packed[3 : 3 + packed[2]])

    def cpu_seconds(self) -> float:
        """What its threads have computed until now; unlike the clock, it doesn't count the box's other work."""
        clock = (~self.pid << 3) | 2  # as clock_getcpuclockid(3) makes it: the whole process, threads that ended, too
        return time.clock_gettime(clock)

    def log(self) -> str:
        return (self.folder / _LOG).read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that was just spawned: it may not answer yet."""

    process: subprocess.Popen[bytes]
    folder: Path
    url: str

    def log(self) -> str:
        return (self.folder / _LOG).read_text(errors="replace")

    def end(self, how: signal.Signals) -> None:
        """Signal the server itself: the child of a command that runs it, where that didn't become the server."""
        pid = self.process.pid
        if self.process.poll() is None:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(children[0]) if children else pid, how)


@contextlib.contextmanager
def launched(server: Path, model: Path, *args: object, under: Sequence[str] = ()) -> Iterator[Launched]:
    """Spawn it on a free port with an empty environment of its own, and end it with all that it spawned.

    `under`: the command that runs it, such as `taskset -c 1`.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "GGML_", "AIP_"))}
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="kvlaunch-bench-") as name:
        argv = [*under, str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--fit", "off"]
        # more threads than it may use cores would wait for each other
        argv += ["--no-warmup", "-t", str(len(os.sched_getaffinity(0))), "--slot-save-path", name, *map(str, args)]
        with (Path(name) / _LOG).open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=kept | {"XDG_CONFIG_HOME": "/nonexistent"}
            )
        spawned = Launched(process, Path(name), f"http://127.0.0.1:{port}")
        try:
            yield spawned
        finally:
            spawned.end(signal.SIGKILL)
            process.kill()
            process.wait()


@contextlib.contextmanager
def bare_engine(server: Path, model: Path, *args: object, under: Sequence[str] = ()) -> Iterator[BareEngine]:
    """Start it, wait until it answers, end it; see `launched`."""
    with (
        launched(server, model, *args, under=under) as spawned,
        httpx.Client(base_url=spawned.url, timeout=600, trust_env=False) as client,
    ):
        engine = BareEngine(client, spawned.folder, spawned.process.pid)
        _wait(engine, spawned.process)
        yield engine


def _wait(engine: BareEngine, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if engine.http.get("/health").status_code == httpx.codes.OK:
                return
        time.sleep(0.02)
    raise RuntimeError(f"the engine did not come up:\n{engine.log()[-2000:]}")
