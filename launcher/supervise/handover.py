"""A second engine loads beside the first on the same listener, proves itself, and takes over.

Until it has proved itself nothing of the first is touched; when it fails, the first goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from launcher.errors import PortTaken
from launcher.supervise.classes import Exit
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.states import Checked, Fault, Message

if TYPE_CHECKING:
    from launcher.supervise.running import Running
    from launcher.supervise.supervisor import Supervisor


class Handover:
    def __init__(self, supervisor: Supervisor, fresh: LaunchSpec) -> None:
        self._supervisor = supervisor
        self._fresh = fresh
        self._verdict: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._engine: Running | None = None

    async def run(self) -> None:
        try:
            self._engine = self._supervisor.start_engine(self._fresh, self._hear, self._end)
        except (OSError, PortTaken) as error:
            self._supervisor.handover_failed(str(error))
            return
        await asyncio.wait((self._verdict, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            line = self._engine.facts.errors[0] if self._engine.facts.errors else str(self._ended.result())
            self._supervisor.handover_failed(line)
            return
        verdict = self._verdict.result()
        if isinstance(verdict, Checked) and not (verdict.shortfalls and self._fresh.strict):
            self._supervisor.adopt(self._fresh)
            self._supervisor.switch(self._engine, verdict)
            return
        words = verdict.line if isinstance(verdict, Fault) else "; ".join(getattr(verdict, "shortfalls", ()))
        self._engine.kill()
        await self._ended
        self._supervisor.handover_failed(words)

    def cancel(self) -> None:
        """The first engine is gone or is being ended: there is nothing to take over."""
        if self._engine is not None and not self._ended.done():
            self._engine.kill()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Checked | Fault) and not self._verdict.done():
            self._verdict.set_result(message)

    def _end(self, engine: Running, end: Exit) -> None:
        if self._ended.done():
            return
        if self._supervisor.owns(engine):
            self._supervisor.engine_ended(engine, end)
        else:
            self._ended.set_result(end)
