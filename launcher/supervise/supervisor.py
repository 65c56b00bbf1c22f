"""The resident process of one instance: carries out what the state machine says, and tells it what happens.

One task (`run`) owns the machine and is the only one that changes it. Readers, probes, timers, signals and the control
socket put messages into its inbox. What it decides is in states.py and policy.py; how it is done is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from launcher.errors import AlreadyRunning, PortTaken
from launcher.supervise import face, leftover, metrics, policy, proc, settle, states
from launcher.supervise.address import Address
from launcher.supervise.answers import Answers
from launcher.supervise.cgroup import Home
from launcher.supervise.classes import Exit, ExitClass
from launcher.supervise.clock import Moment, now
from launcher.supervise.control import Control
from launcher.supervise.files import InstanceFiles
from launcher.supervise.journal import Journal
from launcher.supervise.logs import Log
from launcher.supervise.measured import keep_measured
from launcher.supervise.notify import Notifier
from launcher.supervise.orphans import Orphans
from launcher.supervise.ports import AddressUnusable
from launcher.supervise.process import Keeper
from launcher.supervise.reloading import Reloader
from launcher.supervise.replan import CannotReplan, replan
from launcher.supervise.running import Running
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.states import SERVING, Ask, Machine, Message, State, Wish

_CHORES = 5.0
_LONG_WAIT = 5.0
"""A pause before the next try that is longer than this is answered with 503 rather than with silence."""
_SAVING, _SAVING_LIMIT = 1 << 20, 9
_SAVING_LOOK = 0.5
"""At the stop limit: an engine that writes 1 MiB in the next moment is saving, and gets a second more, and again."""
_UNIT_PATIENCE = 60_000_000
"""µs that systemd is asked for, again and again: how long a load or a save may take is for our own limits to say."""
_UNWELL = frozenset({State.DEGRADED, State.BACKOFF})


class Supervisor:
    def __init__(self, spec: LaunchSpec, files: InstanceFiles, log: Log) -> None:
        self.spec = spec
        self.journal = Journal(spec.name, spec.on_event)
        self._files = files
        self._log = log
        self._setting = _setting(spec)
        self._machine = Machine()
        self._since = Moment()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._timers: dict[states.Timer, asyncio.TimerHandle] = {}
        self._finished: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = Keeper()
        self._home = Home()
        self._orphans = Orphans()
        self._notifier = Notifier(os.environ)
        self._address = Address(spec, files)
        self._engine: Running | None = None
        self._reloader = Reloader(self)
        self._planned_without: tuple[str, ...] = ()
        self._preparing: asyncio.Task[None] | None = None
        self._last_exit: dict[str, Any] | None = None
        self._interrupts = 0
        self.starts = 0
        self.deaths: Counter[str] = Counter()
        answers = Answers(self, self._reloader, files, log)
        fallback = Path(spec.state_dir) / "control.sock"
        self._control = Control(Path(spec.socket), fallback, answers.answer, answers.subscribe)
        self._page = metrics.Page(answers.metrics)

    # --- the owner ----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Until the instance is over; its exit code."""
        self._catch_signals()
        if killed := leftover.reap(self._files):
            self.say("warn", f"ended what an earlier supervisor had left behind: pid {', '.join(map(str, killed))}")
        self._home.settle()
        # the engine's start comes first: a client can wait for the socket while it loads
        self.tell(states.Begin())
        while not self._inbox.empty():
            self._take(self._inbox.get_nowait())
        await self._control.open()
        self.go(self._control.keep())
        self.go(self._chores())
        await self._move_page(self.spec.metrics)
        while self._finished is None:
            self._take(await self._inbox.get())
        await self._close()
        return self._finished

    def tell(self, message: Message) -> None:
        """For everybody: the only way to the machine."""
        self._inbox.put_nowait(message)

    async def settled(self) -> None:
        """When everything that has happened already has been taken: only then the state is the truth."""
        while not self._inbox.empty():
            await asyncio.sleep(0)

    def status(self) -> dict[str, Any]:
        return face.status(
            self.spec,
            self._machine,
            self._engine,
            pid=os.getpid(),
            url=self._address.url,
            since=str(self._since),
            last_exit=self._last_exit,
        )

    def _take(self, message: Message) -> None:
        before = self._machine
        self._machine, effects = states.step(before, message, self._setting, time.monotonic())
        if before.deaths != self._machine.deaths:
            self._save_tally()
        for effect in effects:
            self._perform(effect)
        if (before.state, before.reason) != (self._machine.state, self._machine.reason):
            self._changed(before)

    def _perform(self, effect: states.Effect) -> None:
        match effect:
            case states.Spawn(given_up):
                if given_up == self._planned_without and not self._must_settle():
                    self._spawn()
                else:
                    self._preparing = self.go(self._prepare_and_spawn(given_up))
            case states.Terminate():
                self._end(Running.terminate)
            case states.Kill():
                self._end(Running.kill)
            case states.Arm(timer, after):
                self._disarm(timer)
                due = self._stop_limit if timer is states.Timer.STOP_LIMIT else lambda: self.tell(states.Due(timer))
                self._timers[timer] = asyncio.get_running_loop().call_later(after, due)
            case states.Disarm(timer):
                self._disarm(timer)
            case states.Finish(code):
                self._finished = code

    def _stop_limit(self, before: int | None = None, again: int = 0) -> None:
        """The limit grows, up to ten times, while saved state is still being written: killing it would lose that."""
        timer = states.Timer.STOP_LIMIT
        family = proc.descendants(self._engine.pid) if self._engine is not None else []
        written = sum(map(proc.written, family))  # what a child that has ended wrote counts for its parent
        first = before is None
        if written and (first or written - (before or 0) >= _SAVING) and again < _SAVING_LIMIT * self.spec.stop_timeout:
            look = functools.partial(self._stop_limit, written, again + 1)
            self._timers[timer] = asyncio.get_running_loop().call_later(_SAVING_LOOK if first else 1.0, look)
            return
        self.tell(states.Due(timer))

    def _disarm(self, timer: states.Timer) -> None:
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()

    def _changed(self, before: Machine) -> None:
        here = self._machine
        if before.state is not here.state:
            self._since = Moment()
        ended_badly = here.state in (State.BACKOFF, State.FAILED)
        self.journal.add(
            "state",
            state=str(here.state),
            was=str(before.state),
            reason=here.reason,
            cause=here.cause,
            code=here.code,
            next_try=face.next_try(here),
            url=self._address.url,
            last_exit=self._last_exit if ended_badly else None,
        )
        level = "error" if here.state is State.FAILED else "warn" if here.state in _UNWELL else "info"
        self.say(level, f"{before.state} -> {here.state}: {here.reason or here.cause}")
        self._files.write("status", self.status())
        self._tell_systemd()
        if here.state in SERVING and before.state not in SERVING and self._engine is not None:
            self._engine.serving()
            keep_measured(self.spec, self._engine.facts.buffers)
        self._mind_the_door(before)

    def _mind_the_door(self, before: Machine) -> None:
        """While no engine takes connections for long, we answer; while it sleeps, we wait for the first."""
        here = self._machine
        if before.state is here.state:
            return
        self._address.unwatch()
        if here.state is State.BACKOFF and here.next_try is not None:
            pause = here.next_try - time.monotonic()
            if pause > _LONG_WAIT:
                self.go(self._address.open_desk(here.reason or "", round(pause) + 1))
        elif here.state is State.FAILED and self._finished is None:
            self.go(self._address.open_desk(here.reason or "", 60))
        elif here.state is State.STOPPED and self._finished is None:
            self._address.watch(lambda: self.tell(Ask(Wish.WAKE, "a connection")))
        elif before.state in (State.BACKOFF, State.FAILED):
            self.go(self._address.close_desk())

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        try:
            self._engine = self.start_engine(self.spec, self.tell, self.engine_ended)
        except PortTaken as error:
            self.tell(states.CannotStart(ExitClass.PORT_TAKEN, error.message))
        except AddressUnusable as error:
            self.tell(states.CannotStart(ExitClass.ADDRESS_UNUSABLE, error.message))
        except OSError as error:
            self.tell(states.CannotStart(ExitClass.CRASH, f"cannot start a process: {error}"))
        else:
            self.tell(states.Spawned(self._engine.pid))

    def start_engine(
        self, spec: LaunchSpec, tell: Callable[[Message], None], on_end: Callable[[Running, Exit], None]
    ) -> Running:
        """Spawn one on the public address. Raises PortTaken, AddressUnusable and OSError."""
        listeners: list[int] = []
        private = None
        if spec.listen_fd:
            listeners, private = self._address.hold(), self._address.private()
        else:
            self._address.test()
        engine = Running(
            spec,
            self._address.port,
            listeners,
            private,
            self._home.group(spec.memory_limit),
            self._keeper,
            self._files,
            self._log,
            tell,
            self._progress,
            on_end,
        )
        self.starts += 1
        self.journal.add("spawn", pid=engine.pid, argv=engine.argv, model_bytes=spec.model_bytes)
        return engine

    def _must_settle(self) -> bool:
        """A device was in use until just now."""
        return self.starts > 0 and bool(self.spec.expected.devices)

    async def _prepare_and_spawn(self, given_up: tuple[str, ...]) -> None:
        if self._must_settle() and (read := settle.nvml_reader()) is not None and not await settle.settled(read):
            self.say("warn", "device memory was still being given back after 10 s")
        if given_up == self._planned_without:
            self._spawn()
        else:
            await self._replan_and_spawn(given_up)

    async def _replan_and_spawn(self, given_up: tuple[str, ...]) -> None:
        """Plan without these things. Where that takes some back and does not fit, as little less as does."""
        known = self._planned_without
        tries = [given_up, *(known[:n] for n in range(len(given_up) + 1, len(known)))]
        for attempt in tries:
            try:
                fresh = await replan(self.spec, attempt)
            except CannotReplan as error:
                problem = str(error)
                continue
            self.spec, self._planned_without = fresh, attempt
            self._files.write("launch", fresh.as_json())
            break
        else:
            if not known or len(given_up) > len(known):
                words = f"cannot plan without {', '.join(given_up)}: {problem}"
                self.tell(states.CannotStart(ExitClass.OOM_LOAD, words))
                return
            # all that was given up is still needed: the launch stands as it is
        self.journal.add("replan", given_up=list(self._planned_without), before=list(known))
        self.tell(states.Planned(self._planned_without))
        self._spawn()

    def _end(self, how: Callable[[Running], None]) -> None:
        self._reloader.end(how)
        if self._engine is not None:
            how(self._engine)
            return
        # asked to end before there was a process: while it is prepared, or when the spawn has just failed
        if self._preparing is not None:
            self._preparing.cancel()
        self.tell(states.Died(ExitClass.ENDED, None))

    def _progress(self, fraction: float | None, resident: int) -> None:
        self.journal.add("progress", keep=False, fraction=fraction, bytes=resident)

    def engine_ended(self, engine: Running, end: Exit) -> None:
        if self._reloader.has_ended(engine, end):
            return
        here = self._machine
        kind, line = engine.classify(end)
        ours = here.next is not states.Next.JUDGE
        shown = here.fault or (ExitClass.STOPPED_BY_US if ours else kind)
        self._last_exit = {
            "class": str(shown),
            "code": end.code,
            "signal": end.signal,
            "line": None if ours else here.last_line if here.fault else line,
            "at": now(),
        }
        self.say("info", f"the engine has ended: {end} ({shown})")
        self.journal.add("exit", pid=engine.pid, **self._last_exit)
        if not ours:
            self.deaths[str(shown)] += 1
            self._files.write("last-exit", {**self._last_exit, "argv": engine.argv, "log": list(self._log.ring)})
        self._engine = None
        self.tell(states.Died(kind, line or str(end), _dice()))

    # --- for the reloader ---------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Running | None:
        return self._engine

    @property
    def serves(self) -> bool:
        return self._machine.state in SERVING

    def adopt(self, fresh: LaunchSpec) -> None:
        """From now on this is the launch. The running engine stays what it is."""
        self.spec = fresh
        self._setting = _setting(fresh)
        self.journal.on_event = fresh.on_event
        self.go(self._move_page(fresh.metrics))
        self._planned_without = ()
        self._files.write("launch", fresh.as_json())

    async def _move_page(self, where: str) -> None:
        if problem := await self._page.move(where):
            self.say("error", problem)
            self.journal.add("problem", reason=problem)

    def restart_as(self, fresh: LaunchSpec) -> None:
        """Stop, and start as that. The public address is kept where it can be."""
        self.adopt(fresh)
        held = fresh.listen_fd and (fresh.hosts, fresh.port) == (self._address.hosts, self._address.asked)
        if not held:
            self._address.close()
            self._address = Address(fresh, self._files)
        self.tell(Ask(Wish.RESTART, "reload"))

    def is_old(self, engine: Running) -> bool:
        return engine in self._reloader.old

    def switch(self, engine: Running, verdict: Message) -> Running | None:
        """Another engine is ours from now on. Returns the one before."""
        old, self._engine = self._engine, engine
        engine.retell(self.tell)
        engine.serving()
        self.tell(states.Switched(engine.pid))
        self.tell(verdict)
        return old

    def _tell_systemd(self) -> None:
        here = self._machine
        words = {"STATUS": f"{here.state}: {here.reason or here.cause}"}
        if here.state in SERVING:
            words["READY"] = "1"
        elif here.state in (State.DRAINING, State.STOPPED) and here.next is states.Next.EXIT:
            words["STOPPING"] = "1"
        if here.state not in SERVING:
            words["EXTEND_TIMEOUT_USEC"] = str(_UNIT_PATIENCE)
        self._notifier.say(**words)

    # --- around it ----------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.tell, Ask(Wish.STOP, number.name))
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # their default would end us
            signal.signal(number, signal.SIG_IGN)

    def _interrupted(self) -> None:
        """The first ^C stops gracefully, the second kills."""
        self._interrupts += 1
        self.tell(Ask(Wish.STOP if self._interrupts == 1 else Wish.KILL, "^C"))

    async def _chores(self) -> None:
        """Small things, seldom: the keeper, systemd's watchdog, the count of folded lines, an idle engine."""
        pause = min(_CHORES, self._notifier.watchdog or _CHORES, self.spec.idle_stop / 4 or _CHORES)
        while True:
            await asyncio.sleep(pause)
            self._keeper.check()
            engines = [engine.pid for engine in (*self._reloader.old, self._engine) if engine is not None]
            self._orphans.reap([*engines, self._keeper.pid or 0])
            self._log.flush_fold()
            if self._notifier.watchdog:
                self._notifier.say(WATCHDOG="1")
            if self._machine.state not in SERVING:
                self._notifier.say(EXTEND_TIMEOUT_USEC=str(_UNIT_PATIENCE))
            used_at = self._engine.used_at if self._engine is not None else None
            if self.spec.idle_stop and self.spec.listen_fd and used_at is not None and not self._reloader.busy:
                idle = time.monotonic() - used_at
                if idle >= self.spec.idle_stop:
                    self.tell(Ask(Wish.IDLE, f"unused for {idle:.0f} s"))

    def _save_tally(self) -> None:
        tally = [{"class": str(death.kind), "healthy": round(death.healthy, 1)} for death in self._machine.deaths]
        self._files.write("tally", {"schema": 1, "at": now(), "deaths": tally})

    def say(self, level: str, text: str) -> None:
        self._log.add("supervisor", level, text)

    def go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.say("error", f"a fault of ours: {type(error).__name__}: {error}")

    async def _close(self) -> None:
        # the loop's end puts back the default of these signals: one more TERM would then be our exit code
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        await self._control.stop_listening()
        await self.journal.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._control.close()
        self._page.close()
        await self._address.close_desk()
        self._address.close()
        self._keeper.close()


def _dice() -> float:
    """A number in [0, 1). Not by `random`, whose import the spawn would wait for."""
    return os.urandom(1)[0] / 256


def _setting(spec: LaunchSpec) -> states.Setting:
    return states.Setting(
        rules=policy.Rules.of(spec), stop_timeout=spec.stop_timeout, strict=spec.strict, linger=spec.detached
    )


def take_name(spec: LaunchSpec) -> InstanceFiles:
    """The state folder, locked for this process. Raises AlreadyRunning and says which profile the first came from."""
    files = InstanceFiles(Path(spec.state_dir))
    if not files.lock():
        first = None
        with contextlib.suppress(AttributeError):
            first = files.read("status").get("profile")
        origin = f", from {first}" if first else ""
        raise AlreadyRunning(
            f"{spec.name} is running already{origin}",
            help=f"`kvlaunch down {spec.name}`, or give this one another name",
        )
    return files
