"""The engine's lines on their way to disk: a ring for the post-mortem, folding of repeats, rotated JSON lines.

The event loop only appends to a bounded queue; a thread of its own writes. So neither a slow nor a full disk holds up
the loop, and with it the engine, which blocks when nobody reads its pipe. What does not fit is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from launcher.supervise.clock import now

_FILE_BYTES = 10 << 20
_FILES = 5
_QUEUE_BYTES = 2 << 20
"""A record that waits costs about its text and 500 bytes: this process may have 32 MiB in all."""
_RECORD_BYTES = 500
_TEXT = 4096
_CLOSING = 5.0
_RING = 200
_LOOK = 1.0
"""How often the writer asks whether its file still stands where it was made: somebody may clean up under us."""

Record = dict[str, Any]


@dataclass(slots=True)
class Counts:
    lines: int = 0
    dropped: int = 0
    unwritten: int = 0
    """Lines that the disk did not take."""
    taken_bytes: int = 0


class Log:
    """All lines of one instance: the engine's, and our own (`source`)."""

    def __init__(self, folder: Path, *, echo: IO[str] | None = None) -> None:
        self.ring: deque[Record] = deque(maxlen=_RING)
        self.counts = Counts()
        self.listeners: list[Callable[[Record], None]] = []
        self._fold: Record | None = None
        self._queue: queue.Queue[Record | None] = queue.Queue()
        self._put_bytes = 0
        self._writer = threading.Thread(target=_Writer(folder, self._queue, self.counts, echo).run, daemon=True)
        self._writer.start()

    def add(self, source: str, level: str, text: str, **more: object) -> None:
        """Never blocks."""
        self.counts.lines += 1
        if len(text) > _TEXT:
            text = text[:_TEXT] + " …"
        last = self.ring[-1] if self.ring else None
        if last and last["text"] == text and last["source"] == source and not more:
            last["repeated"] = last.get("repeated", 1) + 1
            self._fold = last
            return
        self.flush_fold()
        record: Record = {"at": now(), "source": source, "level": level, "text": text, **more}
        self.ring.append(record)
        self._put(dict(record))  # a copy: the count of repeats is added to ours while the thread writes its own
        for listener in self.listeners:
            listener(record)

    def last(self, count: int) -> list[Record]:
        """The newest lines in memory, the oldest of them first."""
        return list(self.ring)[-count:] if count > 0 else []

    def forget(self, listener: Callable[[Record], None]) -> None:
        with contextlib.suppress(ValueError):
            self.listeners.remove(listener)

    def flush_fold(self) -> None:
        """Write down how often the last line came, once it has stopped coming."""
        if self._fold is not None:
            self._put({**self._fold, "at": now()})
            self._fold = None

    def close(self) -> None:
        self.flush_fold()
        self._queue.put(None)
        self._writer.join(_CLOSING)

    def _put(self, record: Record) -> None:
        # two counters, each written by one thread alone: their difference is what waits
        if self._put_bytes - self.counts.taken_bytes > _QUEUE_BYTES:
            self.counts.dropped += 1
            return
        self._put_bytes += _cost(record)
        self._queue.put(record)


def _cost(record: Record) -> int:
    return len(record["text"]) + _RECORD_BYTES


class _Writer:
    """The thread's side: renders with structlog's JSON processor, rotates, and goes on when the disk is full."""

    def __init__(self, folder: Path, source: queue.Queue[Record | None], counts: Counts, echo: IO[str] | None) -> None:
        self._path = folder / "log.jsonl"
        self._queue = source
        self._counts = counts
        self._echo = echo
        self._file: IO[bytes] | None = None
        self._size = 0
        self._looked = 0.0

    def run(self) -> None:
        # a signal goes to any thread that does not block it: at the end the main thread does, and we must not take it
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # imported here: it costs 40-80 ms, and the spawn should not wait for it
        from structlog.processors import JSONRenderer

        render = JSONRenderer(ensure_ascii=False)
        while (record := self._queue.get()) is not None:
            self._counts.taken_bytes += _cost(record)
            line = render(None, "", record)
            text = line.decode() if isinstance(line, bytes) else line
            self._write(text.encode(errors="replace") + b"\n")
            if self._echo is not None:
                with contextlib.suppress(OSError, ValueError):
                    print(text, file=self._echo, flush=self._queue.empty())
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None or self._is_lost():
                self._open()
            assert self._file is not None
            if self._size + len(data) > _FILE_BYTES:
                self._rotate()
            self._file.write(data)
            self._size += len(data)
        except OSError:
            self._counts.unwritten += 1
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            self._file = None

    def _is_lost(self) -> bool:
        """The file, or its folder, was removed or moved away: what is written to it nobody would find."""
        if self._file is None or time.monotonic() - self._looked < _LOOK:
            return False
        self._looked = time.monotonic()
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

    def _open(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._size = os.fstat(descriptor).st_size

    def _rotate(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        for n in range(_FILES - 1, 0, -1):
            older = self._path.with_suffix(f".jsonl.{n}")
            newer = self._path if n == 1 else self._path.with_suffix(f".jsonl.{n - 1}")
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._open()
