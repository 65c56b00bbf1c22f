"""As PID 1 of a container every orphan is ours to reap, and a table full of zombies takes no new process.

Our own children have their owners (pidfds, asyncio, subprocess), who must find their status: so only a zombie that
nobody has asked for between two looks is reaped.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from launcher.supervise import proc


class Orphans:
    def __init__(self) -> None:
        self._needed = os.getpid() == 1
        self._seen: set[int] = set()

    def reap(self, ours: Collection[int]) -> list[int]:
        """Reap the zombies of the last look that are zombies still. Returns their pids. `ours`: engines and keeper."""
        if not self._needed:
            return []
        zombies = set(proc.zombie_children(os.getpid())) - set(ours)
        old, self._seen = zombies & self._seen, zombies
        for pid in old:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        return sorted(old)
