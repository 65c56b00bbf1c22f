"""What the resident supervisor is handed: one finished launch, as data, JSON both ways.

It must not know profiles, plans or models: the CLI resolves those and writes down here what is left to do.
Only the standard library, because the resident process pays for every import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1


class SpecError(ValueError):
    """The spec file is not one of ours, or is of a newer schema."""


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of the ledger, as planned: `status` shows it beside what the engine's log says it took."""

    item: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What the engine must report before it counts as ready. None: not compared."""

    total: int | None = None
    per_slot: int | None = None
    slots: int | None = None
    unified: bool | None = None
    alias: str | None = None
    gpu_layers: int | None = None
    """Layers that the log must report as offloaded. 0 and None: no device is planned."""
    devices: tuple[str, ...] = ()
    """Devices that hold part of the model in the plan. With one of these and none in the log: `gpu-missing`."""
    techniques: Mapping[str, bool] = field(default_factory=dict)
    """Name of a technique -> requested. What is active is learnt from the engine and compared."""
    told: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """What the engine is told, by our names: what it takes and then does without is looked for in what it says."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything one instance needs. Paths are absolute; times are seconds; sizes are bytes.

    `argv` is what stands after the executable and names no address: `--host`, `--port` and `--listen-fd` in it are
    dropped, since the supervisor binds the public socket, resolves port 0 and adds a private socket for its probes.
    Log options (`--log-jsonl`, `-lv`) are added here too where `log_jsonl` says that the engine has them.
    """

    name: str
    binary: str
    argv: tuple[str, ...]
    state_dir: str
    """`state/NAME`: status.json, tally.json, the port that was last used, the engine's own configuration folder."""
    log_dir: str
    socket: str
    """The control socket (paths.Places.socket)."""
    host: str | tuple[str, ...] = "127.0.0.1"
    port: int = 8080
    env: Mapping[str, str] = field(default_factory=dict)
    """The profile's `[env]`. All of LLAMA_*, GGML_*, AIP_* that is inherited is dropped first."""
    cwd: str = "/"
    api_key_file: str | None = None
    expected: Expected = field(default_factory=Expected)
    memory: tuple[MemoryLine, ...] = ()
    measured_file: str = ""
    """Where what the engine really allocated is kept for the next plan; empty: nowhere."""
    model_bytes: int = 0
    """Size of the model's files: the load bar's whole. 0: unknown, no bar."""
    listen_fd: bool = False
    """The engine takes `--listen-fd` (patch 0016)."""
    log_jsonl: bool = True
    start_stall: float = 60.0
    """Loading counts as stalled when I/O, memory, CPU time and log have all stood still for this long."""
    stop_timeout: float = 10.0
    hang_timeout: float = 60.0
    hang_factor: float = 0.0
    """The limit grows to so many times the longest batch that was seen (liveness.py). 0: it stays `hang_timeout`."""
    deep_probe: float = 0.0
    """Ask for one token after so long idle: a lost device shows in nothing else. 0: never."""
    restart: str = "on-failure"
    strict: bool = False
    fallback: tuple[str, ...] = ()
    """What may be given up on oom, in this order. Needs `replan`."""
    replan: tuple[str, ...] = ()
    """A command that prints a new LaunchSpec; `--give-up NAME` is added once for each step already taken."""
    idle_stop: float = 0.0
    """Stop the engine when unused for so long; the next connection starts it. 0: never. Needs `listen_fd`."""
    memory_limit: int = 0
    """Host memory of the engine's own cgroup, in bytes. 0: none."""
    on_event: tuple[str, ...] = ()
    """A command that gets each event as JSON on its standard input."""
    metrics: str = ""
    """Where the supervisor's own metrics page listens: empty (nowhere), a path, or `host:port`."""
    tally_window: float = 3600.0
    tally_limit: int = 10
    """So many deaths within the window: failed, a person is needed."""
    backoff: tuple[float, ...] = (0.0, 1.0, 5.0, 15.0, 60.0, 300.0)
    stable_after: float = 600.0
    """Ready for so long: the next death counts as the first."""
    detached: bool = False
    engine_key: str = ""
    profile: str = ""
    sets: tuple[str, ...] = ()
    directory: str = ""
    """Where relative paths in `sets` start from."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.host,) if isinstance(self.host, str) else self.host

    @property
    def complaints(self) -> Path:
        """What a resident process in the background writes for people, its last words among it."""
        return Path(self.log_dir) / "supervisor.err"

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchSpec:
        if not isinstance(data, Mapping) or not isinstance(data.get("schema"), int):
            raise SpecError("this is no launch spec: it has no schema number")
        if data["schema"] > SCHEMA:
            raise SpecError(f"launch spec of schema {data['schema']}; this kvlaunch reads up to {SCHEMA}")
        known = {f.name for f in fields(cls)}
        values = {key: _tupled(value) for key, value in data.items() if key in known}
        values["expected"] = _expected(data.get("expected", {}))
        values["memory"] = tuple(MemoryLine(**line) for line in data.get("memory", ()))
        try:
            return cls(**values)
        except TypeError as error:
            raise SpecError(f"launch spec with a field missing: {error}") from None

    def write(self, path: Path) -> Path:
        """Write it for the resident process, readable by the user alone."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> LaunchSpec:
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SpecError(f"{path}: {error}") from None
        return cls.from_json(data)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _expected(data: Mapping[str, Any]) -> Expected:
    known = {f.name for f in fields(Expected)}
    return Expected(**{key: _tupled(value) for key, value in data.items() if key in known})
