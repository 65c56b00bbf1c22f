"""Stop one thread of a process, leave the others: an engine whose queue hangs while its health route says ok.

`python freeze.py PID` holds the main thread by ptrace until it is killed; the tracer's end lets it go on.
"""

from __future__ import annotations

import ctypes
import os
import sys

_SEIZE, _INTERRUPT, _WALL = 0x4206, 0x4207, 0x40000000  # linux/ptrace.h, linux/wait.h


def main(pid: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (_SEIZE, _INTERRUPT):
        if libc.ptrace(request, pid, None, None) != 0:
            print(f"cannot trace {pid}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return 1
    os.waitpid(pid, _WALL)  # until it has stopped
    print("frozen", flush=True)
    os.waitpid(pid, _WALL)  # only its death comes now; unless the tracer takes note, nobody else hears of it
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
