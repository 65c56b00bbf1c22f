"""Start the resident process: in this process's place (foreground), or beside it (detached) with a waiter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from launcher.errors import AlreadyRunning, KvlaunchError, NotRunning
from launcher.supervise.client import Client
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.view import View

_FIRST_SIGN = 20.0  # seconds until the control socket must be there; a busy machine takes 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a detached start went: 0 and the status when it serves, else the code and words of the foreground."""

    code: int
    reason: str | None
    status: dict[str, object] | None


def run_foreground(spec: LaunchSpec) -> NoReturn:
    """Become the resident process: no second Python stays behind, and what the command line imported is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, _command(str(_write(replace(spec, detached=False)))), _environment())


class Detached:
    """The resident process in a session of its own. It imports at once, and waits for the launch it is to carry out.

    That hides its own start behind the planning. One that is never handed a launch ends with whoever made it.
    """

    def __init__(self, what: str) -> None:
        """`what` it will be, for whoever reads a list of processes."""
        command = [*_command("-"), what]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=2, start_new_session=True, cwd="/", env=_environment()
        )

    def start(self, spec: LaunchSpec) -> int:
        """Its complaints are in `spec.complaints` from now on. Returns its pid."""
        assert self._process.stdin is not None
        spec.complaints.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.complaints.write_bytes(b"")
        spec.complaints.chmod(0o600)
        file = _write(replace(spec, detached=True))
        with contextlib.suppress(BrokenPipeError), self._process.stdin as line:  # gone already: the waiter finds out
            line.write(f"{file}\n".encode())
        return self._process.pid


def start_detached(spec: LaunchSpec) -> int:
    """Start it in a session of its own. Returns its pid."""
    return Detached(spec.name).start(spec)


def wait_ready(spec: LaunchSpec, pid: int, view: View | None = None) -> Outcome:
    """Follow the events until it serves or has ended. ^C in here leaves it running (the caller says so)."""
    client = _first_answer(spec, pid)
    # it may end between any two questions: then its exit code and its last words tell
    with contextlib.suppress(NotRunning):
        if client is not None and (outcome := _follow(client, view)) is not None:
            return outcome
    return _post_mortem(spec, pid)


def _follow(client: Client, view: View | None) -> Outcome | None:
    """None: it ended before it could say how. Raises NotRunning."""
    for event in client.events(follow=True):
        if view is not None:
            view.event(event)
        if event.get("event") != "state":
            continue
        if event["state"] in ("ready", "degraded"):
            return Outcome(0, event.get("reason"), client.status())
        if event["state"] in ("failed", "stopped") and event.get("code") is not None:
            return Outcome(event["code"], event.get("reason") or event.get("cause"), None)
    return None


def _command(spec_file: str) -> list[str]:
    return [sys.executable, "-m", "launcher.supervise", spec_file]


def _environment() -> dict[str, str]:
    """`-m launcher.supervise` must find this very package, from whichever folder the command ran in."""
    package_home = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{package_home}:{path}" if path else package_home}


def _write(spec: LaunchSpec) -> Path:
    """Handed over under a name of its own: a second start must not overwrite the spec of what runs already."""
    return spec.write(Path(spec.state_dir) / f"launch.{os.getpid()}.json")


def _first_answer(spec: LaunchSpec, pid: int) -> Client | None:
    """A client that is answered by the process we started. None when it has ended before."""
    end = time.monotonic() + _FIRST_SIGN
    places = (Path(spec.socket), Path(spec.state_dir) / "control.sock")
    while time.monotonic() < end:
        for place in places:
            client = Client(place, spec.name)
            try:
                if client.status().get("pid") == pid:
                    return client
            except KvlaunchError:
                continue
        if _ended(pid) is not None:
            return None
        time.sleep(0.01)
    raise KvlaunchError(f"{spec.name} gives no sign of life", help=f"see {spec.complaints}; its pid is {pid}")


def _post_mortem(spec: LaunchSpec, pid: int) -> Outcome:
    """It ended before it could tell us over the socket: what it wrote last, and its exit code."""
    deadline = time.monotonic() + 5
    while (code := _ended(pid)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    words = _complaint(spec.complaints)
    if code == AlreadyRunning.code:
        raise AlreadyRunning(words or f"{spec.name} is running already", help=f"`kvlaunch down {spec.name}`")
    return Outcome(1 if code is None else code, words, None)


_codes: dict[int, int] = {}


def _ended(pid: int) -> int | None:
    """The exit code of our child, once it has ended."""
    if pid not in _codes:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None if Path(f"/proc/{pid}").exists() else 1
        if not done:
            return None
        _codes[pid] = os.waitstatus_to_exitcode(status)
    return _codes[pid]


def _complaint(file: Path) -> str | None:
    """The last line that the resident process wrote for people."""
    try:
        lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return None
    return lines[-1].removeprefix("error: ") if lines else None
