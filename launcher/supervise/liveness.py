"""Tells a long batch from a hang, once the engine serves.

Hung is: something is being processed, and neither the counters nor the CPU time have moved for the hang limit; or
nothing is answered three times in a row and nothing moves. Never while anything moves: with a batch of 8192 the
counters stood still for 4 s of healthy prefill while /slots answered within 7 ms. How long a batch takes on this box
no plan knows, so the limit is learned: it grows with the longest that was seen.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher.supervise import proc
from launcher.supervise.classes import ExitClass
from launcher.supervise.http1 import Endpoint, NoAnswer
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.startup import Movement, doze, one_token
from launcher.supervise.states import Checked, Fault, Message

_TICK = 1.0
"""`status` must be true within 3 s, with two questions unanswered; one look costs about 1 ms."""
_IMPATIENT = 0.9
"""Both routes answer within some 10 ms beside any decode: no answer within this is worth telling."""
_FRESH = 0.25
"""Whoever asks for the status a hundred times a second does not ask the engine as often."""
_PATIENCE, _TRIES = 10.0, 3


_COUNTED = {"prompt_tokens": "prompt_tokens_total", "predicted_tokens": "tokens_predicted_total"}
_COUNTER = re.compile(rb"^llamacpp:(prompt_tokens_total|tokens_predicted_total) ([\d.e+]+)", re.MULTILINE)
_INSIDE_BATCH = re.compile(rb"^llamacpp:(?:ubatch|graph_nodes)_total ([\d.e+]+)", re.MULTILINE)


class Patience:
    """How long an engine at work may stand still: `least`, or `factor` times the longest that ended by itself.

    Pure. A standstill counts only when it was watched from move to move: not one that began before there was work.
    """

    def __init__(self, least: float, factor: float, now: float) -> None:
        self.least = least
        self.factor = factor
        self.moved = now
        self._longest = 0.0
        self._watched = False

    @property
    def limit(self) -> float:
        return max(self.least, self.factor * self._longest)

    def move(self, now: float) -> None:
        if self._watched:
            self._longest = max(self._longest, now - self.moved)
        self.moved, self._watched = now, True

    def forgive(self, seconds: float) -> None:
        """Time that doesn't count."""
        self.moved += seconds

    def look_away(self) -> None:
        """Silent: what ends now says nothing about how long a batch takes."""
        self._watched = False

    def rest(self, now: float) -> None:
        """Idle: there is nothing that could move."""
        self.moved, self._watched = now, False


class Liveness:
    """Watches one serving engine until cancelled. `shortfalls` are those that it became ready with."""

    def __init__(
        self,
        spec: LaunchSpec,
        endpoint: Endpoint,
        pid: int,
        shortfalls: tuple[str, ...],
        tell: Callable[[Message], None],
    ) -> None:
        self.spec = spec
        """May be replaced by one that differs in the supervisor's own settings."""
        self._endpoint = endpoint
        self._pid = pid
        self._shortfalls = shortfalls
        self._tell = tell
        self._suspicious = False
        self._refreshed = 0.0
        self.slots: list[dict[str, Any]] = []
        self.counters: dict[str, int] | None = None
        self.used_at = time.monotonic()
        """When a slot was last seen at work."""

    def suspect(self) -> None:
        """The engine has written an error: ask for a token at the next look."""
        self._suspicious = True

    async def run(self) -> None:
        movement = Movement(self._pid)
        counters: tuple[int, ...] = ()
        probed = time.monotonic()
        patience = Patience(self.spec.hang_timeout, self.spec.hang_factor, probed)
        silent_since: float | None = None
        within: tuple[bytes, ...] = ()
        while True:
            lost = await doze(_TICK)
            movement.forgive(lost)
            patience.forgive(lost)
            silent_since = silent_since + lost if silent_since is not None else None
            now = time.monotonic()
            patience.least, patience.factor = self.spec.hang_timeout, self.spec.hang_factor
            if movement.look(loading=False) == 0.0:
                patience.move(now)
            stopped = _is_stopped(movement.pid)
            slots = None if stopped else await self._slots(_IMPATIENT) or await self._slots(_IMPATIENT)
            if slots is None:
                silent_since = silent_since or now
                words = "stopped by a signal (SIGSTOP)" if stopped else "does not answer"
                self._tell(Checked((*self._shortfalls, words)))
                patience.look_away()
                if now - max(silent_since, patience.moved) >= min(_PATIENCE * _TRIES, self.spec.hang_timeout):
                    self._tell(Fault(ExitClass.HUNG, f"no answer for {now - silent_since:.0f} s, and nothing moves"))
                    return
                continue
            silent_since = None
            self._tell(Checked(self._shortfalls))
            self.slots = slots
            busy = any(slot.get("is_processing") for slot in slots)
            if (progress := _counters(slots)) != counters:
                # a request that came and went between two looks was use as well; the first look knows nothing yet
                self.used_at = now if counters else self.used_at
                counters = progress
                patience.move(now)
            elif busy and now - patience.moved > _TICK and (inside := await self._inside_batch()) != within:
                within = inside
                patience.move(now)
            if busy:
                self.used_at = now
                if (still := now - patience.moved) >= patience.limit:
                    words = f"a request is being processed, but nothing has moved for {still:.0f} s"
                    self._tell(Fault(ExitClass.HUNG, words))
                    return
                continue
            patience.rest(now)
            due = self.spec.deep_probe and now - max(probed, self.used_at) >= self.spec.deep_probe
            if due or self._suspicious:
                self._suspicious, probed = False, now
                if problem := await self._probe(movement):
                    self._tell(Fault(ExitClass.HUNG, problem))
                    return
                counters = _counters(await self._slots(_IMPATIENT) or [])  # our own request is no use

    async def refresh(self, limit: float) -> None:
        """For `status`: the slots as they are now, or as they last were when it doesn't answer in time."""
        if time.monotonic() - self._refreshed < _FRESH:
            return
        slots, counters = await asyncio.gather(self._slots(limit), self._counted(limit))
        if slots is not None:
            self.slots = slots
        if counters is not None:
            self.counters = counters
        self._refreshed = time.monotonic()

    async def _slots(self, limit: float) -> list[dict[str, Any]] | None:
        try:
            answer = await self._endpoint.get("/slots", limit)
            data = answer.json() if answer.status == 200 else []
        except NoAnswer:
            return None
        return data if isinstance(data, list) else []

    async def _inside_batch(self) -> tuple[bytes, ...]:
        """What moves within one long batch (0008): finished parts of it, on a GPU too, and on the CPU graph nodes."""
        if "--kv-telemetry" not in self.spec.argv:
            return ()
        try:
            answer = await self._endpoint.get("/metrics", _IMPATIENT)
        except NoAnswer:
            return ()
        return tuple(_INSIDE_BATCH.findall(answer.body))

    async def _counted(self, limit: float) -> dict[str, int] | None:
        """The engine's own counters. It prints six digits of them, so only their rate means something."""
        if "--metrics" not in self.spec.argv:
            return None
        try:
            answer = await self._endpoint.get("/metrics", limit)
        except NoAnswer:
            return None
        found = {name.decode(): int(float(value)) for name, value in _COUNTER.findall(answer.body)}
        if len(found) < len(_COUNTED):
            return None
        return {ours: found[theirs] for ours, theirs in _COUNTED.items()}

    async def _probe(self, movement: Movement) -> str | None:
        """A token from an idle engine, three times asked for. In words when none came and nothing moved."""
        problem: str | None = None
        for _ in range(_TRIES):
            try:
                problem = await one_token(self._endpoint, _PATIENCE)
            except NoAnswer as error:
                problem = str(error)
                if movement.look(loading=False) < _PATIENCE / 2:
                    return None  # slow, but alive
                continue
            if problem is None:
                return None
            await asyncio.sleep(1)
        return f"idle, and asked for one token {_TRIES} times: {problem}"


def _is_stopped(pid: int) -> bool:
    return proc.state(pid) == "T"  # t: by a debugger, which may hold one thread only


def _counters(slots: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """All that grows while tokens are processed."""
    numbers: list[int] = []
    for slot in slots:
        following = slot.get("next_token") or [{}]
        decoded = following[0].get("n_decoded", 0) if isinstance(following, list) else 0
        numbers += [slot.get("id_task", -1), slot.get("n_prompt_tokens_processed", 0), decoded]
    return tuple(numbers)
