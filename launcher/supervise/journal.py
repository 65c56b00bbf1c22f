"""Events: numbered, kept for a while, given to followers, to the view of the foreground and to `on_event` commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from launcher.supervise.clock import now
from launcher.supervise.control import Feed, Reply

_KEPT = 500
_COMMAND_LIMIT = 30.0


class Journal:
    def __init__(self, name: str, on_event: tuple[str, ...] = ()) -> None:
        self.watchers: list[Callable[[Reply], None]] = []
        self.last = 0
        self._name = name
        self.on_event = on_event
        self._kept: deque[Reply] = deque(maxlen=_KEPT)
        self._feeds: set[Feed] = set()
        self._commands: set[asyncio.Task[None]] = set()

    def add(self, kind: str, *, keep: bool = True, **fields: Any) -> None:
        """`keep=False` for what only means something now (the load bar)."""
        self.last += 1
        event: Reply = {"schema": 1, "seq": self.last, "at": now(), "name": self._name, "event": kind, **fields}
        if keep:
            self._kept.append(event)
            if self.on_event:
                task = asyncio.create_task(_run(self.on_event, event))
                self._commands.add(task)
                task.add_done_callback(self._commands.discard)
        for listener in (*self.watchers, *(feed.put for feed in self._feeds)):
            listener(event)

    def feed(self, *, follow: bool, since: int) -> Feed:
        feed = Feed([event for event in self._kept if event["seq"] > since])
        if follow:
            self._feeds.add(feed)
            feed.when_closed = lambda: self._feeds.discard(feed)
        else:
            feed.close()
        return feed

    async def close(self) -> None:
        """The last events reach followers and commands before the instance goes."""
        for feed in list(self._feeds):
            feed.close()
        await asyncio.sleep(0.02)
        if self._commands:
            await asyncio.wait(self._commands, timeout=2)


async def _run(command: tuple[str, ...], event: Reply) -> None:
    """`supervise.on_event`: the event on its standard input; not waited for beyond 30 s, its failure is nobody's."""
    with contextlib.suppress(OSError):
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.communicate(json.dumps(event).encode() + b"\n"), _COMMAND_LIMIT)
        except TimeoutError:
            process.kill()
            await process.wait()
