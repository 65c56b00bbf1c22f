"""From the spawn to `ready`: waits as long as something moves, then asks the engine what it is and for one token.

No fixed start timeout: a large model on a slow disk takes what it takes. What counts is that memory, I/O, CPU time or
the log go on changing; when all of them stand still for the stall limit, loading has stalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.supervise import evidence, ports, proc, ready
from launcher.supervise.cgroup import Group
from launcher.supervise.classes import ExitClass
from launcher.supervise.http1 import Endpoint, NoAnswer
from launcher.supervise.lines import Facts
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.states import Checked, Fault, Loading, Message

_SAMPLE = 0.5
"""Seconds between two looks at what moves, and at the load bar."""
_QUICK, _SLOW = 0.02, 0.2
"""Polls of the health route: often in the first seconds, then less; the log's own word wakes us at once."""
_TRIES = 3
_MOVED_BYTES = 1 << 16
"""A stalled process still grows by a page now and then."""
_MOVED_CPU = 0.02
"""Our own probes cost the engine CPU time as well: less than this per second is no progress."""


_WORKING_CPU = 0.5
_OVERSLEPT = 2.0


async def doze(seconds: float) -> float:
    """Sleep; and by how much too long, where a busy box doesn't explain it.

    Then we were stopped ourselves (a paused container, a saved machine), and what did not move is not to blame.
    """
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    late = time.monotonic() - begin - seconds
    return late if late > _OVERSLEPT else 0.0


class Movement:
    """Whether a process (or the one below it that does the work) has moved lately."""

    def __init__(self, pid: int) -> None:
        self._leader = pid
        self.pid = proc.real(pid)
        self.last = time.monotonic()
        self._sampled = self.last
        self._before = proc.usage(self.pid)
        self._lines = 0

    def look(self, lines: int = 0, *, loading: bool = True) -> float:
        """Seconds since anything moved, after looking again. `lines`: how many it has written so far.

        Once it serves only CPU time counts, and of its queue's thread, or a lot: what asks a hung engine for its
        health costs it CPU time of other threads, and an unanswered probe a thread, and so memory.
        """
        now = time.monotonic()
        self.pid = proc.real(self._leader)
        usage = proc.usage(self.pid)
        before, self._before = self._before, usage
        moved = lines != self._lines
        self._lines = lines
        if usage is not None and before is not None:
            passed = max(now - self._sampled, 0.1)
            moved = moved or usage.main_cpu - before.main_cpu > _MOVED_CPU * passed
            moved = moved or usage.cpu - before.cpu > (_MOVED_CPU if loading else _WORKING_CPU) * passed
            if loading:
                moved = moved or abs(usage.rss - before.rss) >= _MOVED_BYTES
                moved = moved or usage.read - before.read >= _MOVED_BYTES
        self._sampled = now
        if moved:
            self.last = now
        return now - self.last

    def forgive(self, seconds: float) -> None:
        """Time that doesn't count."""
        self.last += seconds

    @property
    def usage(self) -> proc.Usage | None:
        return self._before


@dataclass(frozen=True, slots=True)
class Found:
    """What the engine said of itself when it became ready."""

    props: dict[str, Any]
    slots: list[dict[str, Any]]
    active: dict[str, bool | None]


class Startup:
    """One start. `tell` gets messages for the state machine, `progress` a fraction for the bar."""

    def __init__(
        self,
        spec: LaunchSpec,
        endpoint: Endpoint,
        pid: int,
        group: Group,
        facts: Facts,
        tell: Callable[[Message], None],
        progress: Callable[[float | None, int], None],
    ) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._pid = pid
        self._group = group
        self._facts = facts
        self._tell = tell
        self._progress = progress
        self._spoke = asyncio.Event()
        self.found: Found | None = None
        self.shortfalls: tuple[str, ...] = ()

    def heard(self) -> None:
        """The log has said that the model is loaded: look now."""
        self._spoke.set()

    async def run(self) -> None:
        movement = Movement(self._pid)
        watch = asyncio.create_task(self._watch(movement))
        try:
            await self._answering()
            verdict, self.found = await self._ask_patiently()
        except NoAnswer as error:
            self.shortfalls = (f"it is loaded, but: {error}",)
            self._tell(Checked(self.shortfalls))
            return
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if verdict.gpu_missing:
            planned = ", ".join(self._spec.expected.devices)
            self._tell(Fault(ExitClass.GPU_MISSING, f"{planned} is planned, but the engine put nothing on it"))
        else:
            self.shortfalls = verdict.shortfalls
            self._tell(Checked(verdict.shortfalls))

    async def _watch(self, movement: Movement) -> None:
        """Ends the start when nothing has moved for the limit. Cancelled when it answers."""
        begin = time.monotonic()
        while True:
            movement.forgive(await doze(_SAMPLE))
            self._tell(Loading())  # what writes no log loads as well
            still = movement.look(self._facts.lines)
            if movement.usage is not None and not self._facts.loaded:
                whole = self._spec.model_bytes
                fraction = min(movement.usage.rss / whole, 0.99) if whole else None
                self._progress(fraction, movement.usage.rss)
            if still >= self._spec.start_stall:
                seconds = round(time.monotonic() - begin)
                words = f"nothing has moved for {still:.0f} s (memory, I/O, CPU, log), {seconds} s after the start"
                self._tell(Fault(ExitClass.START_STALLED, words))
                return

    async def _answering(self) -> None:
        """Until the health route says ok. Before that it refuses, or says 503."""
        begin = time.monotonic()
        while True:
            with contextlib.suppress(NoAnswer):
                if (await self._endpoint.get("/health", 5.0)).status == 200:
                    return
            pause = _QUICK if time.monotonic() - begin < 3 or self._facts.loaded else _SLOW
            with contextlib.suppress(TimeoutError):
                # at the first word that it is loaded we look at once; afterwards the pause alone counts
                await asyncio.wait_for(self._spoke.wait(), pause)
                self._spoke.clear()

    async def _ask_patiently(self) -> tuple[ready.Verdict, Found]:
        """A busy machine may leave one question without an answer; the stall watch goes on meanwhile."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(NoAnswer):
                return await self._ask()
            await asyncio.sleep(_SAMPLE)
        return await self._ask()

    async def _ask(self) -> tuple[ready.Verdict, Found]:
        expected = self._spec.expected
        props = await self._object("/props")
        slots_answer = await self._endpoint.get("/slots", 5.0)
        slots = slots_answer.json() if slots_answer.status == 200 else []
        shown = await evidence.gather(self._endpoint, expected.techniques, props)
        verdict = ready.compare(expected, props, slots, self._facts, shown)
        shortfalls = list(verdict.shortfalls)
        if not self._spec.listen_fd and ports.listens(proc.real(self._pid), self._endpoint.port) is False:
            shortfalls.append(f"port {self._endpoint.port}: the listener there is not our engine's")
        if self._spec.memory_limit and not self._group.holds(self._pid):
            shortfalls.append("supervise.memory_limit: no cgroup can be made here (a systemd unit needs Delegate=yes)")
        if problem := await one_token(self._endpoint, limit=None):
            shortfalls.append(problem)
        found = Found(props, slots, ready.active(expected, shown, self._facts))
        self._facts.start.clear()
        return ready.Verdict(tuple(shortfalls), verdict.gpu_missing), found

    async def _object(self, path: str) -> dict[str, Any]:
        answer = await self._endpoint.get(path, 5.0)
        if answer.status == 401:
            raise NoAnswer(f"{path} says 401: the first key of serve.api_key_file is not one of the engine's")
        data = answer.json()
        if answer.status != 200 or not isinstance(data, dict):
            raise NoAnswer(f"{path} says {answer.status}")
        return data


async def one_token(endpoint: Endpoint, limit: float | None) -> str | None:
    """Have one token generated: None when it came, else what came instead. No limit: the stall watch is it."""
    request = {"prompt": "a", "n_predict": 1, "cache_prompt": False, "temperature": 0}
    answer = await endpoint.post("/completion", request, limit if limit is not None else 1e6)
    if answer.status != 200:
        return f"no token was generated: /completion says {answer.status}"
    data = answer.json()
    if not isinstance(data, dict) or not data.get("tokens_predicted"):
        return "no token was generated: /completion answered without one"
    return None
