"""Which instances run, and how to reach one by its name or its profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import AlreadyRunning, KvlaunchError, NotRunning
from launcher.paths import Places, places
from launcher.supervise.client import Client
from launcher.supervise.spec import LaunchSpec

_SYSTEM_RUNTIME = Path("/run/kvlaunch")
"""Where the sockets of instances that a system unit started lie (RuntimeDirectory=kvlaunch)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One running instance."""

    name: str
    client: Client

    def status(self) -> dict[str, Any]:
        """Its status object (contract: `status --json`)."""
        return self.client.status()

    def spec(self) -> LaunchSpec:
        """The launch that it runs by."""
        return LaunchSpec.from_json(self.client.spec())


def all_running(here: Places | None = None) -> Iterator[Instance]:
    """Every instance that answers, by name: the user's, then the system's."""
    seen: set[str] = set()
    for socket, name in sorted(_sockets(here or places()), key=lambda found: found[1]):
        if name in seen:
            continue
        client = Client(socket, name)
        try:
            client.status()
        except KvlaunchError:
            continue
        seen.add(name)
        yield Instance(name, client)


def statuses() -> Iterator[dict[str, Any]]:
    """The status of every instance. One whose supervisor hangs is there too: it holds memory and a port."""
    seen: set[str] = set()
    for socket, name in sorted(_sockets(places()), key=lambda found: found[1]):
        if name in seen:
            continue
        try:
            one = Client(socket, name).status()
        except NotRunning:
            continue
        except KvlaunchError as error:
            one = {"schema": 1, "name": name, "state": "no answer", "reason": f"{error.message}; {error.help}"}
        seen.add(name)
        yield one


def running(ref: str) -> Instance:
    """The instance of this name, or of the profile at this path. Raises NotRunning with what does run."""
    here = places()
    name = Path(ref).stem if "/" in ref or ref.endswith(".toml") else ref
    if ref != name:
        name = _name_in(Path(ref)) or name
    for socket, found in _sockets(here):
        if found == name:
            client = Client(socket, name)
            try:
                client.status()
            except NotRunning:
                continue
            return Instance(name, client)
    others = ", ".join(instance.name for instance in all_running(here))
    raise NotRunning(f"{name} is not running", help=f"running: {others}" if others else "nothing runs")


def refuse_running(name: str, profile: Path, here: Places) -> None:
    """Raise AlreadyRunning (15) where an instance of this name runs, with the file that it came from."""
    for socket, found in _sockets(here):
        if found != name:
            continue
        client = Client(socket, name)
        try:
            first = client.spec().get("profile", "?")
        except KvlaunchError:
            continue
        same = "" if str(profile) == first else f", started from {first}"
        raise AlreadyRunning(
            f"{name} is running already{same}",
            help=f"`kvlaunch reload {name}` takes a changed profile, `kvlaunch down {name}` stops it",
        )


def last_status(name: str, here: Places) -> dict[str, Any] | None:
    """What an instance that doesn't run any more wrote last; None where it never ran."""
    try:
        found = json.loads((here.instance(name) / "status.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"name", "state"} <= found.keys() else None


def _sockets(here: Places) -> Iterator[tuple[Path, str]]:
    for folder in dict.fromkeys(folder for folder in (here.runtime, _SYSTEM_RUNTIME) if folder is not None):
        for socket in folder.glob("*.sock"):
            yield socket, socket.stem
    for socket in here.state.glob("*/control.sock"):
        yield socket, socket.parent.name


def _name_in(profile: Path) -> str | None:
    """The name that a profile gives itself."""
    import tomli

    try:
        name = tomli.loads(profile.read_text("utf-8")).get("name")
    except (OSError, ValueError):
        return None
    return name if isinstance(name, str) else None
