"""Talk to a running instance over its control socket. Standard library, synchronous: for the command line."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.errors import KvlaunchError, NotRunning

_ANSWER = 5.0


class Client:
    """One instance, by its socket. Every call is one connection; NotRunning when nobody listens there."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def status(self) -> dict[str, Any]:
        status = self._ask({"do": "status"})["status"]
        assert isinstance(status, dict)
        return status

    def spec(self) -> dict[str, Any]:
        """The launch spec that it runs by."""
        spec = self._ask({"do": "spec"})["spec"]
        assert isinstance(spec, dict)
        return spec

    def stop(self, *, wait: float = 60.0) -> None:
        """Stop it and wait until it is gone."""
        self._ask({"do": "stop", "by": "down"})
        self._wait_gone(wait)

    def kill(self, *, wait: float = 10.0) -> None:
        self._ask({"do": "kill", "by": "down --now"})
        self._wait_gone(wait)

    def restart(self) -> int:
        """Stop and start it; the tally begins anew. Returns the number of the last event before it."""
        seq = self._ask({"do": "restart", "by": "restart"})["seq"]
        assert isinstance(seq, int)
        return seq

    def last_exit(self) -> dict[str, Any] | None:
        """The last end that we had not asked for, with the 200 log lines before it."""
        answer = self._ask({"do": "last-exit"})["last_exit"]
        return answer if isinstance(answer, dict) else None

    def events(self, *, follow: bool = False, since: int = 0) -> Iterator[dict[str, Any]]:
        """The kept events, and with `follow` those that come, until it ends."""
        return self._stream({"do": "events", "follow": follow, "since": since})

    def logs(self, *, follow: bool = False, lines: int = 200, level: str = "debug") -> Iterator[dict[str, Any]]:
        """The last lines of the log (at most 200 are kept in memory), and with `follow` those that come."""
        return self._stream({"do": "logs", "follow": follow, "lines": lines, "level": level})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, one answer (control.py lists them)."""
        return self._ask(request)

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(_ANSWER)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            raise NotRunning(f"{self.name} is not running", help="`kvlaunch ps` lists what is") from None
        return sock

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        for answer in self._stream(request):
            if answer.get("ok"):
                return answer
            raise KvlaunchError(f"{self.name}: {answer.get('error', 'no answer')}")
        raise NotRunning(f"{self.name} ended before it answered")

    def _stream(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._connect() as sock:
            try:
                sock.sendall(json.dumps(request).encode() + b"\n")
                if request.get("follow"):
                    sock.settimeout(None)
                with sock.makefile("rb") as lines:
                    for line in lines:
                        if line.endswith(b"\n"):  # else its writer was killed in the middle of it
                            yield json.loads(line)
            except TimeoutError:
                raise KvlaunchError(
                    f"{self.name} does not answer on its control socket ({self.path})",
                    help=f"its supervisor hangs; `kill -9 {_listener(sock)}` ends it, and its engine with it",
                ) from None
            except ConnectionError:
                return

    def _wait_gone(self, limit: float) -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(1)
                sock.connect(str(self.path))
                time.sleep(0.05)
                continue
            return
        raise KvlaunchError(f"{self.name} has not ended within {limit:g} s", help=f"`kvlaunch status {self.name}`")


def _listener(sock: socket.socket) -> int:
    """The pid of who listens at the other end (man 7 unix, SO_PEERCRED)."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid
