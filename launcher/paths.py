"""Where files live (systemd's directories, then XDG, then HOME) and where shipped data lies.

Not platformdirs: it knows neither systemd's directories nor an environment that is handed in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_APP = "kvlaunch"
_SOCKET_LIMIT = 107  # bytes of sun_path without the closing NUL (man 7 unix)


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one user or one unit. None of them need exist yet; whoever writes makes them (mode 0700)."""

    config: Path
    cache: Path
    data: Path
    state: Path
    logs: Path
    runtime: Path | None
    """None where there is no runtime directory (no login session): sockets then live under `state/NAME`."""

    @property
    def engines(self) -> Path:
        """The engine store: one directory a key, each with its manifest.json."""
        return self.data / "engines"

    def instance(self, name: str) -> Path:
        """`state/NAME`: status.json, tally, sessions of one instance."""
        return self.state / name

    def socket(self, name: str) -> Path:
        """The control socket of one instance: short enough for the kernel, and there after a log-out."""
        if self.runtime is not None and self.runtime.parent.is_dir():
            path = self.runtime / f"{name}.sock"
            if len(os.fsencode(path)) <= _SOCKET_LIMIT:
                return path
        return self.instance(name) / "control.sock"


def places(environ: Mapping[str, str] | None = None) -> Places:
    """The places for this process, from systemd's `*_DIRECTORY`, then XDG, then HOME."""
    env = os.environ if environ is None else environ
    home = Path(env.get("HOME") or Path.home())

    def pick(systemd: str, xdg: str, fallback: str, below: str = "") -> Path:
        if given := env.get(systemd, "").split(":")[0]:
            return Path(given)
        base = env.get(xdg, "")
        # the XDG specification: a relative path is to be ignored
        root = Path(base) if base.startswith("/") else home / fallback
        return root / _APP / below if below else root / _APP

    state = pick("STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state")
    runtime: Path | None = None
    if given := env.get("RUNTIME_DIRECTORY", "").split(":")[0]:
        runtime = Path(given)
    elif env.get("XDG_RUNTIME_DIR", "").startswith("/") and Path(env["XDG_RUNTIME_DIR"]).is_dir():
        runtime = Path(env["XDG_RUNTIME_DIR"]) / _APP
    return Places(
        config=pick("CONFIGURATION_DIRECTORY", "XDG_CONFIG_HOME", ".config"),
        cache=pick("CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache"),
        data=pick("", "XDG_DATA_HOME", ".local/share"),
        state=state,
        logs=pick("LOGS_DIRECTORY", "XDG_STATE_HOME", ".local/state", "logs"),
        runtime=runtime,
    )


def shipped(name: str) -> Path:
    """`profiles`, `patches` or `build`: inside the wheel under `_data`, in a checkout beside the package."""
    package = Path(__file__).resolve().parent
    inside = package / "_data" / name
    return inside if inside.is_dir() else package.parent / name
