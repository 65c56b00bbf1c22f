"""The supervisor's own counters as a Prometheus page, with the engine's page after them.

Written by hand rather than with prometheus-client: a dozen lines against some MiB in a process that may have 32.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import KvlaunchError
from launcher.supervise import ports
from launcher.supervise.http1 import Endpoint, NoAnswer
from launcher.supervise.logs import Counts
from launcher.supervise.states import State

_ENGINE_LIMIT = 1.0
_PATIENCE = 5.0
_HEAD = 16 << 10

Labels = tuple[tuple[str, str], ...]


def page(status: Mapping[str, Any], deaths: Counter[str], counts: Counts, starts: int) -> str:
    """The text of our half. Pure."""
    lines: list[str] = []

    def metric(name: str, kind: str, help: str, samples: Sequence[tuple[Labels, float]]) -> None:
        lines.append(f"# HELP kvlaunch_{name} {help}")
        lines.append(f"# TYPE kvlaunch_{name} {kind}")
        base: Labels = (("name", str(status["name"])),)
        lines.extend(f"kvlaunch_{name}{{{_labels((*base, *labels))}}} {value:.17g}" for labels, value in samples)

    state = status["state"]
    metric("state", "gauge", "1 for the state it is in", [((("state", s),), float(s == state)) for s in State])
    metric("starts_total", "counter", "engines started", [((), float(starts))])
    metric("restarts_total", "counter", "starts after the first", [((), float(status["restarts"]))])
    metric("deaths_total", "counter", "ends that were not asked for", [((("class", k),), n) for k, n in deaths.items()])
    metric("log_lines_total", "counter", "lines of engine and supervisor", [((), counts.lines)])
    metric("log_lines_lost_total", "counter", "lines the disk did not take or that came too fast",
           [((("why", "disk"),), counts.unwritten), ((("why", "rate"),), counts.dropped)])  # fmt: skip
    slots = status["slots"]
    metric("slot_tokens_used", "gauge", "tokens in a slot", [(_slot(slot), float(slot["used"] or 0)) for slot in slots])
    metric("slot_tokens", "gauge", "size of a slot", [(_slot(slot), float(slot["size"] or 0)) for slot in slots])
    for which in ("planned", "actual"):
        known = [line for line in status["memory"] if line[which] is not None]
        samples = [((("item", line["item"]), ("device", line["device"])), float(line[which])) for line in known]
        metric(f"memory_{which}_bytes", "gauge", f"memory, {which}", samples)
    return "\n".join(lines) + "\n"


def _slot(slot: Mapping[str, Any]) -> Labels:
    return (("slot", str(slot["id"])),)


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def engines_page(endpoint: Endpoint) -> str:
    """The engine's own metrics; a comment where it gives none in time."""
    try:
        answer = await endpoint.get("/metrics", _ENGINE_LIMIT)
    except NoAnswer as error:
        return f"# the engine: {error}\n"
    if answer.status != 200:
        return f"# the engine: /metrics says {answer.status}\n"
    return answer.body.decode(errors="replace")


class Page:
    """Answers every GET with the page, on a socket path or `host:port`; nowhere, to begin with."""

    def __init__(self, text: Callable[[], Awaitable[str]]) -> None:
        self._where = ""
        self._text = text
        self._server: asyncio.Server | None = None

    async def move(self, where: str) -> str | None:
        """Listen there from now on; empty: nowhere. In words why it can't be: an instance runs without as well."""
        if where == self._where:
            return None
        self.close()
        self._where = where
        try:
            self._server = await self._listen() if where else None
        except (OSError, KvlaunchError) as error:
            return f"no metrics page on {where}: {error}"
        return None

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            if ports.is_unix(self._where):
                Path(self._where).unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        if ports.is_unix(self._where):
            return await asyncio.start_unix_server(self._answer, sock=ports.bind(self._where, 0), limit=_HEAD)
        host, _, port = self._where.rpartition(":")
        return await asyncio.start_server(self._answer, sock=ports.bind(host.strip("[]"), int(port)), limit=_HEAD)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE):
                await reader.readuntil(b"\r\n\r\n")
                body = (await self._text()).encode()
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()
