"""What the launcher costs: spawn to first token against the bare engine, the commands, the idle supervisor.

Both sides run the same engine with the same flags, in turns within one run: a slow moment of the box meets both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from launcher.bench.instance import free_port
from launcher.bench.record import check, row
from launcher.errors import BuildError
from launcher.supervise.client import Client
from launcher.supervise.command import engine_command
from launcher.supervise.spawn import start_detached, wait_ready
from launcher.supervise.spec import LaunchSpec

_POLL = 0.005  # seconds, as the target says
_MANY = 11  # profiles in one `check`: the first and ten further ones
_PROFILE = '[model]\npath = "{model}"\n[context]\nper_slot = "8k"\n[serve]\nport = {port}\n'


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """Rows and checks. `seed` is not used: nothing is drawn."""
    del server, seed  # the engine that `up` finds in the store is what is measured
    pairs = 3 if quick else 12
    with tempfile.TemporaryDirectory(prefix="kvlaunch-bench-") as folder:
        case = _Case(Path(folder), models["smollm2"])
        rows, checks = _first_token(case, pairs)
        for part in (_commands(case, 5 if quick else 15), _resident(case, 15 if quick else 120)):
            rows += part[0]
            checks += part[1]
    return {"rows": rows, "checks": checks}


class _Case:
    """One profile in a folder of its own, with its own state and the user's store."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.profile = folder / "startup.toml"
        self.profile.write_text(_PROFILE.format(model=model, port=self.port))
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder)}
        # an installed kvlaunch has its bytecode beside it; compiling every module at every start would be measured
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)

    def spec(self) -> LaunchSpec:
        """The launch that `up` would hand over."""
        words = [sys.executable, "-m", "launcher", "plan", str(self.profile), "--spec"]
        return LaunchSpec.from_json(json.loads(subprocess.check_output(words, env=self.env)))


def _first_token(case: _Case, pairs: int) -> tuple[list[Any], list[Any]]:
    spec = case.spec()
    bare, ours = [], []
    _bare_start(spec)  # once unmeasured: the model's pages come into the cache
    for _ in range(pairs):
        bare.append(_bare_start(spec))
        ours.append(_supervised_start(spec))
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    more = statistics.median(a - b for a, b in zip(ours, bare, strict=True))
    rows = [
        row("spawn to first token", "bare engine, median", statistics.median(bare), "s"),
        row("spawn to first token", "kvlaunch, median", statistics.median(ours), "s"),
        row("spawn to first token", "kvlaunch ÷ bare, median of pairs", ratio, "ratio"),
        row("spawn to first token", "kvlaunch − bare, median of pairs", more, "s"),
    ]
    ok = ratio <= 1.05 or more <= 0.040
    return rows, [check("first token", ok, ratio, "≤ 1.05, or + 0.040 s")]


def _bare_start(spec: LaunchSpec) -> float:
    """Seconds from the spawn to the first token of the engine alone, on a port that nobody has used before."""
    port = free_port()
    words = engine_command(spec, port)
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            while True:
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError as error:
                    if process.poll() is not None:
                        raise BuildError(f"the bare engine ended with {process.returncode}") from error
                time.sleep(_POLL)
            client.post("/completion", json={"prompt": "a", "n_predict": 1, "cache_prompt": False}).raise_for_status()
        return time.monotonic() - began
    finally:
        process.terminate()
        process.wait(30)


def _supervised_start(spec: LaunchSpec) -> float:
    """Seconds from the spawn to `ready` (which means: one token) under the supervisor."""
    pid = start_detached(spec)
    wait_ready(spec, pid)
    client = Client(Path(spec.socket), spec.name)
    took = _between(client, "ready")
    client.stop()
    return took


def _between(client: Client, state: str) -> float:
    spawned = reached = None
    for event in client.events():
        if event.get("event") == "spawn":
            spawned = datetime.fromisoformat(event["at"])
        elif event.get("event") == "state" and event.get("state") == state:
            reached = datetime.fromisoformat(event["at"])
    assert spawned is not None and reached is not None, "wait_ready came back before the instance was ready"
    return (reached - spawned).total_seconds()


def _commands(case: _Case, times: int) -> tuple[list[Any], list[Any]]:
    def timed(*words: str) -> float:
        def once() -> float:
            began = time.monotonic()
            subprocess.run([*_kvlaunch(), *words], env=case.env, stdout=subprocess.DEVNULL, check=True)
            return time.monotonic() - began

        return _median(once, times)

    version = timed("--version")
    timed("check", str(case.profile))  # once unmeasured, as above: files and bytecode are warm
    checking = timed("check", str(case.profile))
    profiles = [str(case.profile)] * _MANY
    each = (timed("check", *profiles) - checking) / (_MANY - 1)
    planning = timed("plan", str(case.profile))
    before = _median(lambda: _before_spawn(case), max(3, times // 3))
    rows = [
        row("kvlaunch --version", "wall, median", version, "s"),
        row("kvlaunch check", "wall, median", checking, "s"),
        row("kvlaunch check", f"each further one of {_MANY}", each, "s"),
        row("kvlaunch plan", "wall, median", planning, "s"),
        row("kvlaunch up", "before the spawn, median", before, "s"),
    ]
    checks = [
        check("--version", version <= 0.120, version, "≤ 0.120 s", hard=False),
        check("check", checking <= 0.350, checking, "≤ 0.350 s", hard=False),
        check("check, each further profile", each <= 0.030, each, "≤ 0.030 s", hard=False),
        check("plan", planning <= 0.400, planning, "≤ 0.400 s", hard=False),
        check("up before the spawn", before <= 0.300, before, "≤ 0.300 s of our own", hard=False),
    ]
    return rows, checks


def _before_spawn(case: _Case) -> float:
    """Seconds from the command's start to the engine's spawn, with the engine in the store and the model here."""
    began = time.time()
    subprocess.run([*_kvlaunch(), "up", str(case.profile), "-d"], env=case.env, capture_output=True, check=True)
    client = Client(case.folder / "kvlaunch" / "startup.sock", "startup")
    spawn = next(event for event in client.events() if event.get("event") == "spawn")
    client.stop()
    return datetime.fromisoformat(spawn["at"]).timestamp() - began


def _resident(case: _Case, seconds: float) -> tuple[list[Any], list[Any]]:
    spec = replace(case.spec(), name="idle")
    pid = start_detached(spec)
    wait_ready(spec, pid)
    client = Client(Path(spec.socket), spec.name)
    try:
        process = psutil.Process(pid)
        time.sleep(2)
        before = process.cpu_times()
        began = time.monotonic()
        time.sleep(seconds)
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / (time.monotonic() - began)
        resident = process.memory_info().rss
    finally:
        client.stop()
    mib = resident / (1 << 20)
    rows = [
        row("supervisor, idle", "resident memory", mib, "MiB"),
        row("supervisor, idle", f"share of a core over {seconds:.0f} s", share * 100, "%"),
    ]
    checks = [
        check("resident memory", mib <= 32, mib, "≤ 32 MiB"),
        check("idle processor time", share <= 0.002, share * 100, "≤ 0.2 %"),
    ]
    return rows, checks


def _kvlaunch() -> list[str]:
    """The console script of this environment, as a person calls it; the module where there is no script."""
    script = Path(sys.executable).parent / "kvlaunch"
    return [str(script)] if script.exists() else [sys.executable, "-m", "launcher"]


def _median(measure: Callable[[], float], times: int) -> float:
    return statistics.median(measure() for _ in range(times))
