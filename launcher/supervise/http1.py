"""The smallest HTTP/1.1 client that the probes need: one request, one answer, over TCP or a unix socket.

Why not httpx: 20 MiB in a process that may have 32. Every call has a limit; the connection is closed after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

_LARGEST = 8 << 20  # an answer of a probe; /props carries the chat template


class NoAnswer(Exception):
    """Refused, reset, cut short or too late. The text says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise NoAnswer("the answer is no JSON") from None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the engine answers us: a unix socket of its own, or its public address. And the key that it asks for."""

    host: str
    port: int = 0
    key: str | None = None
    other: Endpoint | None = None
    """Asked instead when the socket's file is gone: somebody has cleaned up, and the engine doesn't make it again."""

    async def get(self, path: str, limit: float) -> Answer:
        return await self.ask("GET", path, None, limit)

    async def post(self, path: str, data: object, limit: float) -> Answer:
        return await self.ask("POST", path, json.dumps(data).encode(), limit)

    async def ask(self, method: str, path: str, body: bytes | None, limit: float) -> Answer:
        try:
            async with asyncio.timeout(limit):
                return await self._exchange(method, path, body)
        except TimeoutError:
            raise NoAnswer(f"no answer to {path} within {limit:g} s") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise NoAnswer(f"{path}: {error}") from None

    async def _exchange(self, method: str, path: str, body: bytes | None) -> Answer:
        if self.host.startswith("/"):
            try:
                reader, writer = await asyncio.open_unix_connection(self.host)
            except FileNotFoundError:
                if self.other is None:
                    raise
                return await self.other._exchange(method, path, body)
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
            if self.key:
                head.append(f"Authorization: Bearer {self.key}")
            if body is not None:
                head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + (body or b""))
            return await _answer(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    if len(words) < 2:
        raise ValueError(f"{status_line[:40]!r} is no answer")
    status = int(words[1])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(status, await _chunks(reader))
    if "content-length" in headers:
        length = int(headers["content-length"])
        if length > _LARGEST:
            raise ValueError(f"an answer of {length} bytes")
        return Answer(status, await reader.readexactly(length))
    return Answer(status, await reader.read(_LARGEST))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        if size + sum(map(len, parts)) > _LARGEST:
            raise ValueError("an answer without end")
        parts.append((await reader.readexactly(size + 2))[:-2])
    return b"".join(parts)
