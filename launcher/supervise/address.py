"""The public address of an instance, for as long as the supervisor lives.

With an engine that takes `--listen-fd` we bind it ourselves: it can't be stolen, keeps its number across restarts, and
new connections wait in the backlog while no engine takes them. While none will for long, we answer 503; while the
engine sleeps, the first connection is noticed, and left in the backlog for the engine that it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from launcher.errors import KvlaunchError
from launcher.supervise import ports
from launcher.supervise.files import InstanceFiles
from launcher.supervise.spec import LaunchSpec

_HEAD = 16 << 10
_PATIENCE = 5.0


class Address:
    def __init__(self, spec: LaunchSpec, files: InstanceFiles) -> None:
        self.asked = spec.port
        """As in the profile: 0 is a free one."""
        self.port = spec.port
        self.hosts = spec.hosts
        self._name = spec.name
        self._control = Path(spec.socket)
        self._files = files
        self._listeners: list[socket.socket] = inherited(spec) if spec.listen_fd else []
        self._temporary: Path | None = None
        self._engines = 0
        self._desk: list[asyncio.Server] = []
        self._watched = False

    @property
    def url(self) -> str | None:
        host = self.hosts[0]
        if ports.is_unix(host):
            return f"unix:{host}"
        if not self.port:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def hold(self) -> list[int]:
        """Descriptors to hand to an engine. Bound at the first call; raises PortTaken and AddressUnusable."""
        if not self._listeners:
            self._listeners = self._bind()
        return [listener.fileno() for listener in self._listeners]

    def test(self) -> None:
        """For an engine that binds by itself: whether it could. Raises PortTaken (by whom), and AddressUnusable."""
        self.close()
        for listener in self._bind():
            listener.close()
        for host in filter(ports.is_unix, self.hosts):
            ports.clear_stale(host)

    def private(self) -> str:
        """A socket path for our probes, another for each engine.

        Under the state, not the runtime directory: that one goes at log-out, and an engine whose probes find nobody
        would be taken for hung. Elsewhere when no socket can be made there: a path too long, a full disk.
        """
        self._engines += 1
        name = f"{self._name}.{self._engines}.sock"
        for folder in (self._files.folder, self._control.parent / "engine"):
            if _takes_socket(folder / name):
                return str(folder / name)
        if self._temporary is None or not self._temporary.is_dir():
            import tempfile  # seldom needed, and dear to import before a spawn

            self._temporary = Path(tempfile.mkdtemp(prefix="kvlaunch-"))
        return str(self._temporary / name)

    async def open_desk(self, reason: str, retry_after: int) -> None:
        """Answer 503 to everybody until `close_desk`."""
        await self.close_desk()
        answer = _unavailable(reason, retry_after)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_PATIENCE):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(answer)
                    await writer.drain()
            writer.close()

        for listener in self._listeners:
            # a copy of the descriptor, since a server closes its own; the backlog is the socket's, so it is said again
            self._desk.append(
                await asyncio.start_server(serve, sock=listener.dup(), limit=_HEAD, backlog=ports.BACKLOG)
            )

    async def close_desk(self) -> None:
        for server in self._desk:
            server.close()
        self._desk = []

    def watch(self, when_somebody_comes: Callable[[], None]) -> None:
        """Once, at the next connection; it is not accepted here."""
        loop = asyncio.get_running_loop()

        def come() -> None:
            self.unwatch()
            when_somebody_comes()

        for listener in self._listeners:
            loop.add_reader(listener.fileno(), come)
        self._watched = True

    def unwatch(self) -> None:
        if self._watched:
            for listener in self._listeners:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            self._watched = False

    def close(self) -> None:
        self.unwatch()
        for listener in self._listeners:
            listener.close()
        for host in self.hosts if self._listeners else ():
            if ports.is_unix(host):
                Path(host).unlink(missing_ok=True)
        self._listeners = []
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _bind(self) -> list[socket.socket]:
        saved = self._files.read("port")
        preferred = saved.get("port") if isinstance(saved, dict) else 0
        if not isinstance(preferred, int) or not 0 < preferred < 1 << 16:
            preferred = 0
        bound: list[socket.socket] = []
        try:
            for host in self.hosts:
                bound.append(ports.bind(host, self.port, preferred=preferred))
                if not ports.is_unix(host):
                    self.port = bound[-1].getsockname()[1]
        except KvlaunchError:
            for listener in bound:
                listener.close()
            raise
        if self.asked == 0:
            self._files.write("port", {"port": self.port})
        return bound


def _takes_socket(path: Path) -> bool:
    """Whether a socket can be bound there; what an engine before left in the way is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
        path.unlink()
    except OSError:
        return False
    return True


def inherited(spec: LaunchSpec) -> list[socket.socket]:
    """The sockets that a systemd socket unit has bound for us (man sd_listen_fds)."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(os.environ.get("LISTEN_FDS", "0"))
    found = [socket.socket(fileno=descriptor) for descriptor in range(3, 3 + count)]
    for listener in found:
        listener.setblocking(False)
        os.set_inheritable(listener.fileno(), False)
    return found


def _unavailable(reason: str, retry_after: int) -> bytes:
    body = json.dumps({"error": {"code": 503, "message": reason, "type": "unavailable_error"}}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Retry-After: {retry_after}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
