"""One engine from spawn to end: its process, what it has said, and whoever watches it just now.

It tells what it finds by messages and by one callback at its end; it decides nothing. During a hand-over two live.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.keyfile import first_key
from launcher.supervise import leftover, ports, proc
from launcher.supervise.cgroup import Group
from launcher.supervise.classes import Evidence, Exit, ExitClass, classify
from launcher.supervise.command import engine_command
from launcher.supervise.files import InstanceFiles
from launcher.supervise.flood import Brake
from launcher.supervise.http1 import Endpoint
from launcher.supervise.lines import Facts, parse
from launcher.supervise.liveness import Liveness
from launcher.supervise.logs import Log
from launcher.supervise.output import Output
from launcher.supervise.process import Child, Keeper, clean_environment, spawn
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.startup import Startup
from launcher.supervise.states import Loading, Message


class Running:
    """Spawns at once. Raises OSError when no process could be made."""

    def __init__(
        self,
        spec: LaunchSpec,
        port: int,
        listeners: Sequence[int],
        private: str | None,
        group: Group,
        keeper: Keeper,
        files: InstanceFiles,
        log: Log,
        tell: Callable[[Message], None],
        progress: Callable[[float | None, int], None],
        on_end: Callable[[Running, Exit], None],
    ) -> None:
        self.spec = spec
        self.facts = Facts()
        self.slots_seen: list[dict[str, Any]] = []
        self._active: dict[str, bool | None] = {}
        self.was_ready = False
        self._public = Endpoint(_probe_host(spec.hosts), port, first_key(spec.api_key_file))
        self.endpoint = self._public if private is None else replace(self._public, host=private)
        self._private = private
        self._files = files
        self._log = log
        self._tell = tell
        self._on_end = on_end
        self._group = group
        self._oom_kills = group.oom_kills()
        self._killed_for_memory = False
        self._brake = Brake()
        self._liveness: Liveness | None = None
        home = Path(spec.state_dir) / "engine"
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.argv = engine_command(spec, port, listeners, private)
        env = clean_environment(os.environ, spec.env, str(home))
        self.child: Child = spawn(self.argv, env, spec.cwd, keeper, self._ended, inherit=listeners, cgroup=group.door)
        leftover.remember(files, self.child.pid, self.child.birth, spec.engine_key)
        self._output = Output(self.child.output, self._heard)
        self._startup: Startup | None = Startup(spec, self.endpoint, self.child.pid, group, self.facts, tell, progress)
        self._watch: asyncio.Task[None] | None = asyncio.create_task(self._startup.run())

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def real_pid(self) -> int:
        """For people: below a wrapper the process that does the work."""
        return proc.real(self.child.pid)

    def serving(self) -> None:
        """It has become ready: from now on it is watched for hangs."""
        shortfalls: tuple[str, ...] = ()
        if self._startup is not None:
            shortfalls = self._startup.shortfalls
            if self._startup.found is not None:
                self.slots_seen, self._active = self._startup.found.slots, self._startup.found.active
            self._startup = None
        self.was_ready = True
        # not before: until it serves, nobody takes a connection to the public address
        self.endpoint = replace(self.endpoint, other=self._public)
        self._liveness = Liveness(self.spec, self.endpoint, self.pid, shortfalls, self._tell)
        self._liveness.slots = self.slots_seen
        self._watch = asyncio.create_task(self._liveness.run())

    def take(self, fresh: LaunchSpec) -> None:
        """A launch that differs in the supervisor's own settings only: they hold from now on."""
        self.spec = fresh
        if self._liveness is not None:
            self._liveness.spec = fresh

    def retell(self, tell: Callable[[Message], None]) -> None:
        """Its messages go to somebody else from now on: it was a candidate, now it serves."""
        self._tell = tell

    def terminate(self) -> None:
        self.unwatch()
        self.child.allow_group(self.spec.stop_timeout)
        self.child.terminate()

    def kill(self) -> None:
        self.unwatch()
        self.child.kill()

    def unwatch(self) -> None:
        """Nobody asks it anything any more: it is being ended."""
        if self._liveness is not None:
            self.slots_seen, self._liveness = self._liveness.slots, None
        self._startup = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def refresh(self, limit: float) -> None:
        """For `status`: the slots as they are now, or as they last were when it doesn't answer in time."""
        if self._liveness is not None:
            await self._liveness.refresh(limit)

    @property
    def slots(self) -> list[dict[str, Any]]:
        return self._liveness.slots if self._liveness is not None else self.slots_seen

    @property
    def counters(self) -> dict[str, int] | None:
        """Tokens read and written since its start, where it has a metrics page."""
        return self._liveness.counters if self._liveness is not None else None

    @property
    def used_at(self) -> float | None:
        """Monotonic time at which a slot was last seen at work; None while it isn't watched."""
        return self._liveness.used_at if self._liveness is not None else None

    @property
    def active(self) -> dict[str, bool | None]:
        return self._active

    def classify(self, end: Exit) -> tuple[ExitClass, str | None]:
        return classify(Evidence(end, self.was_ready, oom_kill=self._killed_for_memory, errors=self.facts.errors))

    def _heard(self, raw: bytes) -> None:
        if not self._brake.lets_pass(raw, time.monotonic()):
            return
        if left_out := self._brake.take():
            self._log.add("supervisor", "warn", f"the engine writes too much: {left_out} lines left out")
        line = parse(raw)
        loaded = self.facts.loaded
        self.facts.learn(line)
        self._log.add("engine", line.level, line.text)
        if self.facts.lines == 1:
            self._tell(Loading())
        if self._startup is not None and not loaded and self.facts.loaded:
            self._startup.heard()
        if line.level == "error" and self._liveness is not None:
            self._liveness.suspect()

    def _ended(self, end: Exit) -> None:
        self.unwatch()
        self._output.drain()
        self._killed_for_memory = self._group.oom_kills() > self._oom_kills
        self._group.remove()
        leftover.forget(self._files, self.pid)
        if self._private is not None:
            Path(self._private).unlink(missing_ok=True)
        self._on_end(self, end)


def _probe_host(hosts: tuple[str, ...]) -> str:
    tcp = [host for host in hosts if not ports.is_unix(host)]
    first = tcp[0] if tcp else hosts[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first, first)
