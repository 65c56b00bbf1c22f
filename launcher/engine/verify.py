"""Whether a built engine really works, seen by running it where it will stay.

`--version` and even loading succeed in a build that dies at its first matrix product, so only inference counts:
one tiny model per weight type, a prompt long enough for the batched kernels, a few tokens, all numbers finite.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

from launcher.engine.tinymodel import write_model

# Weight type to the cache types it is tried with: each pair runs other kernels.
CASES: Mapping[str, tuple[str, str]] = {
    "f16": ("f16", "f16"),
    "bf16": ("f16", "f16"),
    "q8_0": ("q8_0", "q8_0"),
    "q4_0": ("q4_0", "q4_0"),
    "q5_0": ("f16", "f16"),
    "q4_K": ("q8_0", "q4_0"),
    "q6_K": ("f16", "f16"),
}
_PROMPT = "the quick brown fox jumps over the lazy dog and then all of it once more " * 2
_TOKENS = 8
_PATIENCE = 120.0  # seconds to load half a megabyte: shaders are compiled at the first start on a GPU


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an engine is not taken. `signal` is set when it died of one."""

    check: str
    reason: str
    signal: int | None = None

    @property
    def illegal_instruction(self) -> bool:
        return self.signal == signal.SIGILL

    def __str__(self) -> str:
        return f"{self.check}: {self.reason}"


def verify(
    binaries: Path, *, gpu: bool, version: str, on_case: Callable[[int, int, str], None] = lambda i, n, name: None
) -> Fault | None:
    """Run every check on the engine in the folder `binaries`; the first fault, or None.

    `version`: what `--version` must name. `gpu`: offload all layers where a device is found.
    """
    server = binaries / "llama-server"
    with tempfile.TemporaryDirectory(prefix="kvlaunch-verify-") as scratch:
        folder = Path(scratch)
        checks: list[tuple[str, Callable[[], Fault | None]]] = [
            ("version", lambda: _version(server, version, folder)),
            ("exceptions", lambda: _exception(server, folder)),
            ("fit-params", lambda: _runs([binaries / "llama-fit-params", "--help"], "fit-params", folder)),
            ("rpc-server", lambda: _runs([binaries / "ggml-rpc-server", "--help"], "rpc-server", folder)),
        ]
        for weights, cache in CASES.items():
            checks.append((weights, lambda w=weights, c=cache: _infer(server, w, c, gpu, folder)))  # type: ignore[misc]
        for number, (name, check) in enumerate(checks):
            on_case(number, len(checks), name)
            if fault := check():
                return fault
    return None


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the caller's settings for engines reaches it, not even a configuration file."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "GGML_", "AIP_"))}
    return kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}


def _runs(command: list[Path | str], name: str, folder: Path) -> Fault | None:
    done = _call(command, folder)
    if isinstance(done, Fault):
        return done
    return None if done[0] >= 0 else Fault(name, f"died of {_signal_name(-done[0])}", -done[0])


def _version(server: Path, version: str, folder: Path) -> Fault | None:
    done = _call([server, "--version"], folder)
    if isinstance(done, Fault):
        return done
    code, text = done
    if code < 0:
        return Fault("version", f"died of {_signal_name(-code)}", -code)
    return None if version in text else Fault("version", f"--version does not name {version!r}: {text.strip()[:200]!r}")


def _exception(server: Path, folder: Path) -> Fault | None:
    """A number that is none throws inside the parser: a build whose exceptions don't unwind aborts here."""
    done = _call([server, "-n", "notanum"], folder)
    if isinstance(done, Fault):
        return done
    code, text = done
    if code < 0:
        return Fault("exceptions", f"a bad option ends in {_signal_name(-code)} instead of an error", -code)
    if code == 0 or "error" not in text.lower():
        return Fault("exceptions", f"a bad option ends with code {code} and {text.strip()[-200:]!r}")
    return None


def _call(command: list[Path | str], folder: Path) -> tuple[int, str] | Fault:
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=_environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except OSError as error:
        return Fault(Path(command[0]).name, f"cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Fault(Path(command[0]).name, f"did not end within {_PATIENCE:.0f} s")
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _infer(server: Path, weights: str, cache: tuple[str, str], gpu: bool, folder: Path) -> Fault | None:
    model = write_model(folder / "model.gguf", weights)
    listen = folder / "verify.sock"
    listen.unlink(missing_ok=True)
    command = [
        str(server), "--model", str(model), "--host", str(listen), "--ctx-size", "512", "--parallel", "1",
        "--batch-size", "128", "--ubatch-size", "64", "--threads", "2", "--fit", "off", "--no-warmup",
        "--flash-attn", "on", "--cache-type-k", cache[0], "--cache-type-v", cache[1],
        "--gpu-layers", "99" if gpu else "0",
    ]  # fmt: skip
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            command,
            env=_environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return _converse(process, listen, weights, log.name)
        finally:
            process.kill()
            process.wait()


def _converse(process: subprocess.Popen[bytes], listen: Path, weights: str, log: str) -> Fault | None:
    name = f"inference with {weights} weights"
    deadline = time.monotonic() + _PATIENCE
    while True:
        if process.poll() is not None:
            return _death(name, process.returncode, log)
        if time.monotonic() > deadline:
            return Fault(name, f"not ready within {_PATIENCE:.0f} s: {_tail(log)}")
        if _ask(listen, "GET", "/health", timeout=5) is not None:
            break
        time.sleep(0.01)
    body = {
        "prompt": _PROMPT, "n_predict": _TOKENS, "n_probs": 1, "temperature": 0, "ignore_eos": True,
        "cache_prompt": False,
    }  # fmt: skip
    answer = _ask(listen, "POST", "/completion", body, timeout=_PATIENCE)
    if answer is None:
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            return Fault(name, f"no answer: {_tail(log)}")
        return _death(name, process.returncode, log)
    return _judge(name, answer)


def _judge(name: str, answer: Mapping[str, object]) -> Fault | None:
    told = answer.get("completion_probabilities")
    # noise makes broken UTF-8, whose bytes the server joins: fewer entries than tokens are no fault
    if answer.get("tokens_predicted") != _TOKENS or not isinstance(told, list) or not told:
        return Fault(name, f"{_TOKENS} tokens asked for, answered {json.dumps(answer)[:200]}")
    values = [entry.get("logprob") for entry in told]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return Fault(name, f"computes no finite numbers: {values}")
    return None


def _ask(
    listen: Path, method: str, route: str, body: Mapping[str, object] | None = None, *, timeout: float
) -> dict[str, object] | None:
    """The JSON of a 200 answer, None for anything else."""
    connection = HTTPConnection("localhost", timeout=timeout)
    connection.sock = socket(AF_UNIX, SOCK_STREAM)
    connection.sock.settimeout(timeout)
    try:
        connection.sock.connect(str(listen))
        connection.request(method, route, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        data = response.read()
        answer = json.loads(data) if response.status == 200 else None
        return answer if isinstance(answer, dict) else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _death(name: str, code: int, log: str) -> Fault:
    if code < 0:
        return Fault(name, f"died of {_signal_name(-code)}", -code)
    return Fault(name, f"ended with code {code}: {_tail(log)}")


def _tail(log: str) -> str:
    lines = Path(log).read_text("utf-8", "replace").splitlines()
    telling = [line for line in lines if "error" in line.lower() or " E " in line] or lines
    return telling[-1].strip()[:300] if telling else "it printed nothing"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (illegal instruction)" if number == signal.SIGILL else name
