"""The control socket: one JSON object a line, in both directions; the user's alone.

A client sends one request and reads answers until the end of file:
  {"do": "status"}                      -> {"ok": true, "status": {…}}
  {"do": "stop" | "kill" | "restart"}   -> {"ok": true}, once it is under way
  {"do": "events", "follow": true}      -> one event a line, the kept ones first
  {"do": "logs", "follow": true, "lines": 50, "level": "warn"}
  {"do": "reload", "spec": {…}}         -> {"ok": true, "reload": {…}}
A follower that does not read loses the oldest lines; it is told how many.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

_REQUEST_LIMIT = 1 << 20
_FOLLOWER_LINES = 2000
_LOOK = 2.0

Reply = dict[str, Any]
Handler = Callable[[Reply], Awaitable[Reply]]


class Feed:
    """Lines for one follower: bounded, the oldest go first."""

    def __init__(self, kept: Sequence[Reply] = ()) -> None:
        self._lines: deque[Reply] = deque(kept, _FOLLOWER_LINES)
        self._ready = asyncio.Event()
        self._dropped = 0
        self._closed = False
        self.when_closed: Callable[[], None] = lambda: None
        self._ready.set()

    def put(self, line: Reply) -> None:
        if len(self._lines) == _FOLLOWER_LINES:
            self._dropped += 1
        self._lines.append(line)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()
        self.when_closed()

    async def batch(self) -> list[Reply] | None:
        """What has come since; None at the end."""
        await self._ready.wait()
        self._ready.clear()
        lines = list(self._lines)
        self._lines.clear()
        if self._dropped:
            lines.insert(0, {"dropped": self._dropped})
            self._dropped = 0
        if self._closed:
            self._ready.set()
        return lines if lines or not self._closed else None


class Control:
    """Listens on the socket and makes it again when its file is gone (a log-out removes XDG_RUNTIME_DIR)."""

    def __init__(self, path: Path, fallback: Path, answer: Handler, subscribe: Callable[[Reply], Feed | None]) -> None:
        self._paths = (path, fallback)
        self._answer = answer
        self._subscribe = subscribe
        self._server: asyncio.Server | None = None
        self.path: Path | None = None

    async def open(self) -> None:
        """On the first of the two places that works. None of them: the instance runs on without."""
        await self.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.unlink(missing_ok=True)  # ours: the instance lock says that nobody else lives here
                before = os.umask(0o177)
                try:
                    self._server = await asyncio.start_unix_server(self._serve, str(path), limit=_REQUEST_LIMIT)
                finally:
                    os.umask(before)
                self.path = path
                return

    async def keep(self) -> None:
        """For as long as the instance lives."""
        while True:
            await asyncio.sleep(_LOOK)
            if self.path is None or not self.path.is_socket():
                await self.open()

    async def stop_listening(self) -> None:
        """Nobody new; who is connected hears the end."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self.path = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                raw = await reader.readline()
            request = json.loads(raw)
            if not isinstance(request, dict):
                raise ValueError("a request is one JSON object")
            feed = self._subscribe(request)
            if feed is None:
                _send(writer, await self._answer(request))
                await writer.drain()
            else:
                await self._stream(feed, reader, writer)
        except ValueError as error:
            _send(writer, {"ok": False, "error": f"not understood: {error}"})
        except (OSError, TimeoutError):
            pass  # the client has gone
        finally:
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

    async def _stream(self, feed: Feed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.create_task(reader.read())  # ends when the client hangs up
        gone.add_done_callback(lambda _: feed.close())
        try:
            while (lines := await feed.batch()) is not None and not gone.done():
                for line in lines:
                    _send(writer, line)
                await writer.drain()
        finally:
            gone.cancel()
            feed.close()


def _send(writer: asyncio.StreamWriter, data: Reply) -> None:
    writer.write(json.dumps(data, ensure_ascii=False).encode() + b"\n")
