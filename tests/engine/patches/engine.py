"""A llama-server for one test: starts it with a clean environment, talks to it over HTTP, ends it.

Knows nothing of kvlaunch: what these tests find out must be true of the binary alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The engine reads config files and a hundred variables before its command line: none of ours may reach it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "GGML_", "AIP_"))}
    return kept | {"XDG_CONFIG_HOME": "/nonexistent", "GGML_NO_BACKTRACE": "1"} | dict(extra)


@dataclass
class Engine:
    binary: Path
    log: Path

    def start(
        self,
        model: Path,
        *args: object,
        port: int | None = None,
        wait: bool = True,
        env: Mapping[str, str] = {},
        pass_fds: Sequence[int] = (),
        threads: int = 1,
    ) -> Server:
        number = port if port is not None else free_port()
        argv = [str(self.binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(number)]
        argv += ["-t", str(threads), "--no-warmup", "--fit", "off", *map(str, args)]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment(env), pass_fds=pass_fds
            )
        server = Server(process, number, self.log)
        if wait:
            server.wait_ready()
        return server


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    timings: list[dict[str, Any]] = field(default_factory=list)

    def wait_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.text()[-3000:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not ready within {seconds} s:\n{self.text()[-3000:]}")

    def request(
        self, method: str, path: str, body: Json = None, headers: Mapping[str, str] = {}, timeout: float = 120
    ) -> tuple[int, Json]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            raw = answer.read().decode("utf-8", "replace")
            try:
                return answer.status, json.loads(raw)
            except ValueError:
                return answer.status, raw
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, Json]:
        return self.request("GET", path, timeout=30)

    def post(self, path: str, body: Json, headers: Mapping[str, str] = {}) -> tuple[int, Json]:
        return self.request("POST", path, body, headers)

    def complete(self, prompt: str | list[int], n: int = 8, **fields: Json) -> Json:
        status, answer = self.post(
            "/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "ignore_eos": True, **fields}
        )
        assert status == 200, answer
        return answer

    def metrics(self) -> dict[str, str]:
        status, text = self.get("/metrics")
        assert status == 200, text
        return dict(line.rsplit(" ", 1) for line in str(text).splitlines() if line and not line.startswith("#"))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)

    def stop(self, seconds: float = 20) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "this",
    "are",
    "at",
    "from",
    "or",
    "have",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "all",
    "her",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "no",
    "more",
    "if",
    "out",
    "so",
    "up",
    "said",
    "what",
    "its",
    "about",
    "than",
    "into",
    "them",
    "can",
    "only",
    "other",
    "time",
    "new",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "man",
    "me",
    "even",
    "most",
    "made",
    "after",
    "also",
    "did",
    "many",
    "must",
    "before",
    "back",
    "years",
    "where",
    "much",
    "your",
    "way",
    "well",
    "down",
    "should",
    "because",
    "each",
    "just",
    "those",
    "people",
    "how",
    "too",
    "little",
    "state",
    "good",
    "very",
    "make",
    "world",
    "still",
    "own",
    "see",
    "men",
    "work",
    "long",
    "get",
    "here",
    "between",
    "both",
    "life",
    "being",
    "under",
    "never",
    "day",
    "same",
]


def words(n: int, seed: int = 0) -> str:
    """n plain English words, about one token each, the same for the same seed."""
    pick = random.Random(seed)
    return " ".join(pick.choice(WORDS) for _ in range(n))
