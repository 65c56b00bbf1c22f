"""The resident process of one instance: carries out what the state machine says, and tells it what happens.

One task (`run`) owns the machine and is the only one that changes it. Readers, probes, timers, signals and the control
socket put messages into its inbox. What it decides is in states.py and policy.py; how it is done is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.errors import AlreadyRunning, PortTaken
from launcher.supervise import cgroup, leftover, policy, ports, ready, states
from launcher.supervise.classes import Evidence, Exit, ExitClass, classify
from launcher.supervise.command import engine_command
from launcher.supervise.control import Control, Feed, Reply
from launcher.supervise.files import InstanceFiles
from launcher.supervise.http1 import Endpoint
from launcher.supervise.lines import Facts, parse
from launcher.supervise.liveness import Liveness
from launcher.supervise.logs import Log, Record, now
from launcher.supervise.notify import Notifier
from launcher.supervise.output import Output
from launcher.supervise.process import Child, Keeper, clean_environment, spawn
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.startup import Found, Startup
from launcher.supervise.states import ALIVE, SERVING, Ask, Machine, Message, State, Wish

_EVENTS = 500
_GIVE_UP_OUTPUT = 1 << 20


class Supervisor:
    def __init__(self, spec: LaunchSpec, files: InstanceFiles, log: Log) -> None:
        self.spec = spec
        self._files = files
        self._log = log
        self._setting = states.Setting(
            rules=policy.Rules.of(spec), stop_timeout=spec.stop_timeout, strict=spec.strict, linger=spec.detached
        )
        self._machine = Machine()
        self._since = now()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._timers: dict[states.Timer, asyncio.TimerHandle] = {}
        self._next_try: str | None = None
        self._finished: int | None = None
        self._keeper = Keeper()
        self._notifier = Notifier(os.environ)
        self._events: deque[Reply] = deque(maxlen=_EVENTS)
        self._sequence = 0
        self._feeds: set[Feed] = set()
        self.watchers: list[Callable[[Reply], None]] = []
        """Called with each event: the view of the foreground."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._control = Control(Path(spec.socket), Path(spec.state_dir) / "control.sock", self._answer, self._subscribe)
        # of the running engine
        self._child: Child | None = None
        self._facts = Facts()
        self._watcher: asyncio.Task[None] | None = None
        self._startup: Startup | None = None
        self._liveness: Liveness | None = None
        self._found: Found | None = None
        self._oom_kills = 0
        self._engine_number = 0
        self._listeners: list[socket.socket] = []
        self._port = spec.port
        self._private: Path | None = None
        self._last_exit: dict[str, Any] | None = None

    # --- the owner ----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the instance is over; its exit code."""
        self._catch_signals()
        if killed := leftover.reap(self._files):
            self._log.add(
                "supervisor", "warn", f"ended an engine that an earlier supervisor had left behind: pid {killed}"
            )
        # the engine's start comes first: a client can wait for the socket while it loads
        self.tell(states.Begin())
        await self._take_all()
        await self._control.open()
        self._go(self._control.keep())
        self._go(self._keep_up())
        while self._finished is None:
            self._take(await self._inbox.get())
        await self._close()
        return self._finished

    def tell(self, message: Message) -> None:
        """For everybody: the only way to the machine."""
        self._inbox.put_nowait(message)

    async def _take_all(self) -> None:
        while not self._inbox.empty():
            self._take(self._inbox.get_nowait())

    def _take(self, message: Message) -> None:
        before = self._machine
        self._machine, effects = states.step(before, message, self._setting, time.monotonic())
        changed = (before.state, before.reason) != (self._machine.state, self._machine.reason)
        if before.deaths != self._machine.deaths and self._machine.deaths:
            self._save_tally()
        for effect in effects:
            self._perform(effect)
        if changed:
            self._changed(before)

    def _perform(self, effect: states.Effect) -> None:
        match effect:
            case states.Spawn(given_up):
                if given_up == self._planned_without:
                    self._spawn()
                else:
                    self._replanning = self._go(self._replan_and_spawn(given_up))
            case states.Terminate():
                self._end_watch()
                if self._child is not None:
                    self._child.allow_group(self.spec.stop_timeout)
                    self._child.terminate()
                else:
                    self._no_child()
            case states.Kill():
                if self._child is not None:
                    self._child.kill()
                else:
                    self._no_child()
            case states.Arm(timer, after):
                self._disarm(timer)
                self._timers[timer] = asyncio.get_running_loop().call_later(after, self.tell, states.Due(timer))
            case states.Disarm(timer):
                self._disarm(timer)
            case states.Finish(code):
                self._finished = code

    def _disarm(self, timer: states.Timer) -> None:
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()

    def _changed(self, before: Machine) -> None:
        here = self._machine
        if before.state is not here.state:
            self._since = now()
        self._next_try = _wall_clock(here.next_try)
        self._event(
            "state",
            state=str(here.state),
            was=str(before.state),
            reason=here.reason,
            cause=here.cause,
            code=here.code,
            next_try=self._next_try,
            url=self.url,
            last_exit=self._last_exit if here.state in (State.BACKOFF, State.FAILED) else None,
        )
        level = "error" if here.state is State.FAILED else "warn" if here.state in _UNWELL else "info"
        self._log.add("supervisor", level, f"{before.state} -> {here.state}: {here.reason or here.cause}")
        self._files.write("status", self.status())
        self._tell_systemd()
        if here.state in SERVING and before.state not in SERVING:
            self._watch_liveness()

    # --- the engine ---------------------------------------------------------------------------------------------------

    _planned_without: tuple[str, ...] = ()
    _replanning: asyncio.Task[None] | None = None

    def _spawn(self) -> None:
        spec = self.spec
        self._facts = Facts()
        self._found = None
        try:
            listeners, private = self._addresses()
        except PortTaken as error:
            self.tell(states.CannotStart(ExitClass.PORT_TAKEN, error.message))
            return
        home = Path(spec.state_dir) / "engine"
        with contextlib.suppress(OSError):
            home.mkdir(exist_ok=True, mode=0o700)
        descriptors = [listener.fileno() for listener in listeners]
        argv = engine_command(spec, self._port, descriptors, private)
        self._oom_kills = cgroup.oom_kills()
        try:
            child = spawn(
                argv,
                clean_environment(os.environ, spec.env, str(home)),
                spec.cwd,
                self._keeper,
                self._exited,
                inherit=descriptors,
            )
        except OSError as error:
            self.tell(states.CannotStart(ExitClass.CRASH, f"cannot start a process: {error}"))
            return
        self._child = child
        self._output = Output(child.output, self._heard)
        leftover.remember(self._files, child.pid, child.birth, spec.engine_key)
        self._event("spawn", pid=child.pid, argv=argv, model_bytes=spec.model_bytes)
        self._endpoint = Endpoint(private or _probe_host(spec.hosts), self._port, _first_key(spec.api_key_file))
        self._startup = Startup(spec, self._endpoint, child.pid, self._facts, self.tell, self._progress)
        self._watcher = self._go(self._startup.run())
        self.tell(states.Spawned(child.pid))

    def _addresses(self) -> tuple[list[socket.socket], str | None]:
        """The public addresses, bound by us for as long as we live; and a socket of our own for probes.

        An engine without `--listen-fd` binds by itself: then they are only tried, to name who is in the way.
        """
        bound = self._listeners or self._bind()
        if not self.spec.listen_fd:
            for listener in bound:
                listener.close()
            for host in filter(ports.is_unix, self.spec.hosts):
                ports.clear_stale(host)
            return [], None
        self._listeners = bound
        self._engine_number += 1
        return bound, str(self._private_folder() / f"{self.spec.name}.{self._engine_number}.sock")

    def _bind(self) -> list[socket.socket]:
        saved = self._files.read("port")
        preferred = saved.get("port", 0) if isinstance(saved, dict) else 0
        bound: list[socket.socket] = []
        try:
            for host in self.spec.hosts:
                bound.append(ports.bind(host, self._port, preferred=preferred))
                if not ports.is_unix(host):
                    self._port = bound[-1].getsockname()[1]
        except PortTaken:
            for listener in bound:
                listener.close()
            raise
        if self.spec.port == 0:
            self._files.write("port", {"port": self._port})
        return bound

    def _private_folder(self) -> Path:
        """Beside the control socket, but not among those; elsewhere when that would be too long for the kernel."""
        if self._private is None:
            folder = Path(self.spec.socket).parent / "engine"
            if len(os.fsencode(folder)) + len(self.spec.name) + 10 > 107:
                folder = Path(tempfile.mkdtemp(prefix="kvlaunch-"))
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._private = folder
        return self._private

    async def _replan_and_spawn(self, given_up: tuple[str, ...]) -> None:
        """Something is to be given up (or taken back): have the launch planned anew, with the memory there is now."""
        command = [*self.spec.replan, *(word for step in given_up for word in ("--give-up", step))]
        self._event("replan", given_up=list(given_up))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await asyncio.wait_for(process.communicate(), 120)
            if process.returncode != 0:
                raise ValueError(err.decode(errors="replace").strip()[-400:] or f"exit code {process.returncode}")
            fresh = LaunchSpec.from_json(json.loads(out[:_GIVE_UP_OUTPUT]))
        except (OSError, ValueError, TimeoutError) as error:
            self.tell(states.CannotStart(ExitClass.OOM_LOAD, f"cannot plan without {', '.join(given_up)}: {error}"))
            return
        self.spec = replace(fresh, detached=self.spec.detached, replan=self.spec.replan, socket=self.spec.socket)
        self._planned_without = given_up
        self._spawn()

    def _heard(self, raw: bytes) -> None:
        line = parse(raw)
        loaded = self._facts.loaded
        self._facts.learn(line)
        self._log.add("engine", line.level, line.text)
        if self._facts.lines == 1:
            self.tell(states.Loading())
        if self._startup is not None and not loaded and self._facts.loaded:
            self._startup.heard()
        if line.level == "error" and self._liveness is not None:
            self._liveness.suspect()

    def _no_child(self) -> None:
        """To be ended before there was a process: while it is planned anew, or when the spawn has just failed."""
        if self._replanning is not None:
            self._replanning.cancel()
        self.tell(states.Died(ExitClass.ENDED, None))

    def _progress(self, fraction: float | None, resident: int) -> None:
        self._event("progress", keep=False, fraction=fraction, bytes=resident)

    def _exited(self, end: Exit) -> None:
        self._end_watch()
        self._output.drain()
        child, self._child = self._child, None
        self._files.forget("engine")
        here = self._machine
        evidence = Evidence(
            end, here.ready_at is not None, oom_kill=cgroup.oom_kills() > self._oom_kills, errors=self._facts.errors
        )
        kind, line = classify(evidence)
        shown = here.fault or (ExitClass.STOPPED_BY_US if here.next is not states.Next.JUDGE else kind)
        self._last_exit = {
            "class": str(shown),
            "code": end.code,
            "signal": end.signal,
            "line": line,
            "at": now(),
        }
        self._log.add("supervisor", "info", f"the engine has ended: {end} ({shown})")
        self._event("exit", pid=child.pid if child else None, **self._last_exit)
        if shown is not ExitClass.STOPPED_BY_US:
            self._files.write("last-exit", {**self._last_exit, "log": list(self._log.ring)})
        self.tell(states.Died(kind, line or str(end), random.random()))

    def _watch_liveness(self) -> None:
        if self._child is None:
            return
        shortfalls: tuple[str, ...] = ()
        if self._startup is not None:
            self._found, shortfalls = self._startup.found, self._startup.shortfalls
            self._startup = None
        self._liveness = Liveness(self.spec, self._endpoint, self._child.pid, shortfalls, self.tell)
        if self._found is not None:
            self._liveness.slots = self._found.slots
        self._watcher = self._go(self._liveness.run())

    def _end_watch(self) -> None:
        self._liveness = self._startup = None
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str | None:
        if not self._port:
            return None
        host = self.spec.hosts[0]
        if ports.is_unix(host):
            return f"unix:{host}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def status(self) -> dict[str, Any]:
        here, spec = self._machine, self.spec
        expected = spec.expected
        actual = self._facts.buffers
        slots = self._liveness.slots if self._liveness else self._found.slots if self._found else []
        known = ready.active(expected, self._found.props, self._facts) if self._found else {}
        return {
            "schema": 1,
            "name": spec.name,
            "state": str(here.state),
            "reason": here.reason,
            "pid": os.getpid(),
            "engine_pid": here.pid if here.state in ALIVE else None,
            "url": self.url,
            "since": self._since,
            "restarts": here.restarts,
            "next_try": self._next_try,
            "engine": spec.engine_key,
            "profile": spec.profile,
            "context": {
                "total": expected.total,
                "per_slot": expected.per_slot,
                "slots": expected.slots,
                "unified": expected.unified,
            },
            "slots": [
                {
                    "id": slot.get("id"),
                    "size": slot.get("n_ctx"),
                    "used": slot.get("n_prompt_tokens", 0),
                    "session": slot.get("session_id"),
                    "busy": bool(slot.get("is_processing")),
                }
                for slot in slots
            ],
            "memory": _memory(spec, actual),
            "requested": dict(expected.techniques),
            "active": known,
            "given_up": list(here.given_up),
            "last_exit": self._last_exit,
            "code": here.code,
        }

    def _event(self, kind: str, *, keep: bool = True, **fields: Any) -> None:
        self._sequence += 1
        event: Reply = {
            "schema": 1,
            "seq": self._sequence,
            "at": now(),
            "name": self.spec.name,
            "event": kind,
            **fields,
        }
        if keep:
            self._events.append(event)
            if self.spec.on_event:
                self._go(_hand_over(self.spec.on_event, event))
        for feed in self._feeds:
            feed.put(event)
        for watcher in self.watchers:
            watcher(event)

    def _subscribe(self, request: Reply) -> Feed | None:
        """A feed for `events` and `logs`; None for what is answered at once."""
        if request.get("do") == "events":
            since = request.get("since", 0)
            feed = Feed([event for event in self._events if event["seq"] > since])
        elif request.get("do") == "logs":
            count = request.get("lines", 200)
            kept = list(self._log.ring)[-count:] if count else []
            feed = Feed([record for record in kept if _loud(record, request)])
        else:
            return None
        if not request.get("follow"):
            feed.close()
            return feed
        if request["do"] == "events":
            self._feeds.add(feed)
            feed.when_closed = lambda: self._feeds.discard(feed)
        else:

            def listen(record: Record) -> None:
                if _loud(record, request):
                    feed.put(record)

            self._log.listeners.append(listen)
            feed.when_closed = lambda: _drop(self._log.listeners, listen)
        return feed

    async def _answer(self, request: Reply) -> Reply:
        match request.get("do"):
            case "status":
                if self._liveness is not None:
                    await self._liveness.refresh(0.1)
                return {"ok": True, "status": self.status()}
            case "stop" | "kill" | "restart" as wish:
                self.tell(Ask(Wish(wish), str(request.get("by") or f"asked to {wish}")))
                return {"ok": True, "seq": self._sequence}
            case "last-exit":
                return {"ok": True, "last_exit": self._files.read("last-exit")}
            case "spec":
                return {"ok": True, "spec": self.spec.as_json()}
        return {"ok": False, "error": f"unknown request {request.get('do')!r}"}

    def _tell_systemd(self) -> None:
        here = self._machine
        words = {"STATUS": f"{here.state}: {here.reason or here.cause}"}
        if here.state in SERVING:
            words["READY"] = "1"
        elif here.state in (State.DRAINING, State.STOPPED) and here.next is states.Next.EXIT:
            words["STOPPING"] = "1"
        self._notifier.say(**words)

    # --- around it ----------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.tell, Ask(Wish.STOP, number.name))
        loop.add_signal_handler(signal.SIGINT, self._interrupted)

    _interrupts = 0

    def _interrupted(self) -> None:
        """The first ^C stops gracefully, the second kills."""
        self._interrupts += 1
        self.tell(Ask(Wish.STOP if self._interrupts == 1 else Wish.KILL, "^C"))

    async def _keep_up(self) -> None:
        """Small chores, seldom: the keeper, systemd's watchdog, the count of folded lines."""
        pause = min(5.0, self._notifier.watchdog or 5.0)
        while True:
            await asyncio.sleep(pause)
            self._keeper.check()
            self._log.flush_fold()
            if self._notifier.watchdog:
                self._notifier.say(WATCHDOG="1")

    def _save_tally(self) -> None:
        tally = [{"class": str(death.kind), "healthy": round(death.healthy, 1)} for death in self._machine.deaths]
        self._files.write("tally", {"schema": 1, "at": now(), "deaths": tally})

    def _go(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.add("supervisor", "error", f"a fault of ours: {type(error).__name__}: {error}")

    async def _close(self) -> None:
        for feed in list(self._feeds):
            feed.close()
        await asyncio.sleep(0.05)  # the followers' last lines go out
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._control.close()
        for listener in self._listeners:
            listener.close()
        self._keeper.close()


_UNWELL = frozenset({State.DEGRADED, State.BACKOFF})
_LEVELS = ("debug", "info", "warn", "error")


def _loud(record: Record, request: Reply) -> bool:
    wanted = request.get("level", "debug")
    return _LEVELS.index(record["level"]) >= (_LEVELS.index(wanted) if wanted in _LEVELS else 0)


def _drop(listeners: list[Callable[[Record], None]], listener: Callable[[Record], None]) -> None:
    with contextlib.suppress(ValueError):
        listeners.remove(listener)


def _wall_clock(at: float | None) -> str | None:
    from datetime import UTC, datetime, timedelta

    if at is None:
        return None
    moment = datetime.now(UTC) + timedelta(seconds=at - time.monotonic())
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _memory(spec: LaunchSpec, actual: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Every line of the ledger beside what the engine's log says; what only the log names comes after."""
    left = dict(actual)
    lines = [
        {
            "item": line.item,
            "device": line.device,
            "planned": line.bytes,
            "actual": left.pop((line.item, line.device), None),
        }
        for line in spec.memory
    ]
    return lines + [
        {"item": item, "device": device, "planned": None, "actual": size} for (item, device), size in left.items()
    ]


def _probe_host(hosts: tuple[str, ...]) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(hosts[0], hosts[0])


def _first_key(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((line.strip() for line in lines if line.strip() and not line.startswith("#")), None)


async def _hand_over(command: tuple[str, ...], event: Reply) -> None:
    """`supervise.on_event`: never waited for longer than 30 s, and its failure is nobody's."""
    with contextlib.suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.communicate(json.dumps(event).encode() + b"\n"), 30)
        except TimeoutError:
            process.kill()


def take_name(spec: LaunchSpec) -> InstanceFiles:
    """The state folder, locked for this process. Raises AlreadyRunning and says which profile the first came from."""
    files = InstanceFiles(Path(spec.state_dir))
    if not files.lock():
        status = files.read("status")
        first = status.get("profile") if isinstance(status, dict) else None
        origin = f", from {first}" if first else ""
        raise AlreadyRunning(
            f"{spec.name} is running already{origin}",
            help=f"`kvlaunch down {spec.name}`, or give this one another name",
        )
    return files


__all__ = ["Supervisor", "take_name"]
