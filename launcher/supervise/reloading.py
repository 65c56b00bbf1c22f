"""Takes a changed launch, by the way that reload.py judges to interrupt least.

For a hand-over a second engine loads beside the first on the same listener and proves itself on its private socket.
Until it has, nothing of the first is touched; when it fails, the first goes on. Then the first takes no more (SIGUSR1),
finishes what it has begun, and ends.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.errors import KvlaunchError
from launcher.supervise.classes import Exit
from launcher.supervise.control import Reply
from launcher.supervise.http1 import NoAnswer
from launcher.supervise.reload import judge
from launcher.supervise.spec import LaunchSpec, SpecError
from launcher.supervise.startup import Movement, doze
from launcher.supervise.states import Checked, Fault, Message

if TYPE_CHECKING:
    from launcher.supervise.running import Running
    from launcher.supervise.supervisor import Supervisor

_ADAPTERS_PATIENCE = 30.0
"""They are scaled between two batches."""
_LOOK = 2.0


class Reloader:
    def __init__(self, supervisor: Supervisor) -> None:
        self.old: set[Running] = set()
        """Handed over: they answer what they have begun, and end."""
        self._supervisor = supervisor
        self._candidate: _Candidate | None = None

    @property
    def busy(self) -> bool:
        return self._candidate is not None

    async def answer(self, request: Reply) -> Reply:
        """The control request `reload`: says how, and unless it is a dry run begins it."""
        here = self._supervisor
        try:
            fresh = LaunchSpec.from_json(request["spec"])
        except (KeyError, SpecError) as error:
            return {"ok": False, "error": f"no launch to take: {error}"}
        how = judge(here.spec, fresh, serving=here.serves, beside=bool(request.get("beside")))
        if not request.get("dry_run"):
            if self.busy:
                return {"ok": False, "error": "a reload is under way"}
            try:
                await self._scale_adapters(how.scales)
            except NoAnswer as error:
                return {"ok": False, "error": f"the engine does not take the new scales: {error}"}
            self._take(how.way, how.adopt(here.spec, fresh))
        return {"ok": True, "seq": here.journal.last, "reload": how.as_json()}

    def end(self, how: Callable[[Running], None]) -> None:
        """The instance ends its engine: nobody takes over, and those that finish are ended too."""
        if self._candidate is not None:
            self._candidate.cancel()
        for engine in self.old:
            how(engine)

    def has_ended(self, engine: Running, end: Exit) -> bool:
        """Whether this was one that had been handed over. Otherwise it was the one to take over from: that is off."""
        if engine in self.old:
            self.old.discard(engine)
            self._supervisor.journal.add("reload", stage="old-ended", pid=engine.pid, exit=str(end))
            return True
        if self._candidate is not None:
            self._candidate.cancel()
        return False

    async def _scale_adapters(self, scales: tuple[float, ...]) -> None:
        """Raises NoAnswer."""
        if not scales:
            return
        engine = self._supervisor.engine
        if engine is None:
            raise NoAnswer("it has just ended")
        data = [{"id": n, "scale": scale} for n, scale in enumerate(scales)]
        answer = await engine.endpoint.post("/lora-adapters", data, _ADAPTERS_PATIENCE)
        if answer.status != 200:
            raise NoAnswer(f"/lora-adapters says {answer.status}")

    def _take(self, way: str, fresh: LaunchSpec) -> None:
        here = self._supervisor
        here.journal.add("reload", stage="begin", way=way)
        if way == "hand-over":
            self._candidate = _Candidate(here, fresh)
            here.go(self._hand_over(self._candidate, fresh))
        elif way == "restart":
            here.restart_as(fresh)
        else:
            here.adopt(fresh)
            if here.engine is not None:
                here.engine.take(fresh)
            here.journal.add("reload", stage="done", way=way)

    async def _hand_over(self, candidate: _Candidate, fresh: LaunchSpec) -> None:
        here = self._supervisor
        verdict = await candidate.prove()
        self._candidate = None
        if isinstance(verdict, str):
            here.say("error", f"reload failed, the old engine goes on: {verdict}")
            here.journal.add("reload", stage="failed", reason=verdict)
            return
        assert candidate.engine is not None
        here.adopt(fresh)
        old = here.switch(candidate.engine, verdict)
        here.journal.add("reload", stage="switched", pid=candidate.engine.pid)
        if old is not None:
            old.unwatch()
            self.old.add(old)
            old.child.signal(signal.SIGUSR1)
            await self._see_off(old)

    async def _see_off(self, old: Running) -> None:
        """It may take as long as it likes for what it has begun, while it moves."""
        movement = Movement(old.pid)
        while old in self.old and movement.look(loading=False) < old.spec.hang_timeout:
            movement.forgive(await doze(_LOOK))
        if old in self.old:
            old.terminate()
            await asyncio.sleep(old.spec.stop_timeout)
        if old in self.old:
            old.kill()


class _Candidate:
    """The second engine until it is ours, or gone."""

    def __init__(self, supervisor: Supervisor, fresh: LaunchSpec) -> None:
        self.engine: Running | None = None
        self._supervisor = supervisor
        self._fresh = fresh
        loop = asyncio.get_running_loop()
        self._verdict: asyncio.Future[Checked | Fault] = loop.create_future()
        self._ended: asyncio.Future[Exit] = loop.create_future()

    async def prove(self) -> Checked | str:
        """It answers and is what was planned; or, in words, why it won't do (it is gone then)."""
        try:
            self.engine = self._supervisor.start_engine(self._fresh, self._hear, self._end)
        except (OSError, KvlaunchError) as error:
            return str(error)
        await asyncio.wait((self._verdict, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            errors = self.engine.facts.errors
            return errors[0] if errors else str(self._ended.result())
        verdict = self._verdict.result()
        if isinstance(verdict, Checked) and not (verdict.shortfalls and self._fresh.strict):
            return verdict
        self.engine.kill()
        await self._ended
        return verdict.line if isinstance(verdict, Fault) else "; ".join(verdict.shortfalls)

    def cancel(self) -> None:
        if self.engine is not None and not self._ended.done():
            self.engine.kill()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Checked | Fault) and not self._verdict.done():
            self._verdict.set_result(message)

    def _end(self, engine: Running, end: Exit) -> None:
        """Called whenever it ends, also long after it has become ours."""
        if not self._ended.done():
            self._ended.set_result(end)
        if engine is self._supervisor.engine or self._supervisor.is_old(engine):
            self._supervisor.engine_ended(engine, end)
