"""The resident process under a wall clock that jumps, without touching the machine's.

`python -m launcher.bench.jumpy FILE SPEC.json`: its clock is ahead by the seconds written in FILE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launcher.supervise import __main__ as resident
from launcher.supervise import clock


def main(ahead: Path, spec: str) -> int:
    # empty for the moment in which it is written
    clock.wall = lambda: time.time() + float(ahead.read_text() or 0)
    return resident.main([spec])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
