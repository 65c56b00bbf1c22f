"""Clients that connect anew for each request, all the time, and count what came of it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter

_LIMIT = 60.0


class Clients:
    """`count` threads against one port. Every request is a connection of its own: what is refused is seen."""

    def __init__(self, port: int, count: int = 8, *, pause: float = 0.01, body: object = None) -> None:
        self.answered = 0
        self.failed: Counter[str] = Counter()
        self.longest = 0.0
        self._port = port
        self._pause = pause
        self._body = json.dumps(body) if body is not None else None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def refused(self) -> int:
        """Connections that nobody took, and answers of 503. Not: requests that died with the engine they were in."""
        return sum(n for what, n in self.failed.items() if what not in ("ConnectionResetError", "RemoteDisconnected"))

    def finish(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_LIMIT + 5)

    def _run(self) -> None:
        while not self._over.is_set():
            begin = time.monotonic()
            problem = self._ask()
            took = time.monotonic() - begin
            with self._lock:
                self.longest = max(self.longest, took)
                if problem is None:
                    self.answered += 1
                else:
                    self.failed[problem] += 1
            self._over.wait(self._pause)

    def _ask(self) -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_LIMIT)
        try:
            if self._body is None:
                connection.request("GET", "/props")
            else:
                connection.request("POST", "/completion", self._body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()
        return None if answer.status == 200 else str(answer.status)
