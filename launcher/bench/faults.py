"""The faults of the chaos run, one function each: do it, and return when what must follow has followed.

A fault raises Broken when the instance did not do what it promises. What holds after every fault (no orphan, ready
again, nothing grown) is checked by chaos.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from launcher.bench import freeze
from launcher.bench.instance import Instance, gone
from launcher.errors import KvlaunchError
from launcher.supervise import proc
from launcher.supervise.spec import LaunchSpec

TRUTH = 3.0
"""Seconds within which `status` must tell what is."""


class Broken(Exception):
    """A promise was not kept: which."""


@dataclass(slots=True)
class Arena:
    """One instance under fire, and what faults may bend."""

    spec: LaunchSpec
    model: Path
    """A copy that may be damaged."""
    limits: Path
    """Shell words that the engine's wrapper reads before it starts: `ulimit -v …`."""
    instance: Instance
    ahead: Path
    """The seconds by which the supervisor's wall clock is ahead (jumpy.py)."""
    cgroup: Path | None
    """Of version 1, made for this run: the supervisor lives in it alone. None: there is none to be had."""
    random: Random
    slowest_status: float = 0.0
    """While the engine stood still."""

    def start(self) -> None:
        self.instance = Instance(self.spec, program=("launcher.bench.jumpy", str(self.ahead)), cgroup=self.cgroup)
        self.instance.ready()

    def time_status(self) -> None:
        """`kvlaunch status`, as its question to the instance, while the engine stands still."""
        begin = time.monotonic()
        self.instance.status  # noqa: B018
        self.slowest_status = max(self.slowest_status, time.monotonic() - begin)

    def truthful(self, *states: str, limit: float = TRUTH) -> None:
        """`status` says one of these within the limit."""
        end = time.monotonic() + limit
        status = ""
        while time.monotonic() < end:
            with contextlib.suppress(KvlaunchError):
                status = self.instance.status["state"]
                if status in states:
                    return
            time.sleep(0.02)
        raise Broken(f"status says {status} after {limit:g} s, not {' or '.join(states)}")


Fault = Callable[[Arena], float | None]
"""Returns the seconds from the fault to ready again, where that is a time to repair."""


def _kill_engine(arena: Arena, number: int = signal.SIGKILL) -> float:
    engine = arena.instance.engine
    begin = time.monotonic()
    os.kill(engine, number)
    arena.instance.ready(but_not=engine)
    return time.monotonic() - begin


def kill_engine(arena: Arena) -> float:
    return _kill_engine(arena)


def crash_engine(arena: Arena) -> float:
    return _kill_engine(arena, arena.random.choice([signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE]))


def illegal_instruction(arena: Arena) -> None:
    """Deterministic: not retried; a person's restart brings it back."""
    os.kill(arena.instance.engine, signal.SIGILL)
    arena.truthful("failed")
    restarts = arena.instance.status["restarts"]
    time.sleep(0.5)
    if arena.instance.status["restarts"] != restarts:
        raise Broken("an illegal instruction was retried")
    arena.instance.client.restart()
    arena.instance.ready()


def kill_supervisor(arena: Arena) -> None:
    engine = arena.instance.engine
    arena.instance.process.kill()
    arena.instance.process.wait()
    if not gone(engine, 2.0):
        raise Broken(f"the engine {engine} lives 2 s after its supervisor was killed")
    arena.start()


def kill_both(arena: Arena) -> None:
    """Supervisor, keeper and engine at once."""
    for pid in [arena.instance.pid, *reversed(proc.descendants(arena.instance.pid))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    arena.instance.process.wait()
    arena.start()


def kill_keeper(arena: Arena) -> None:
    """It is made again; and while it is gone the death signal holds."""
    for pid in proc.descendants(arena.instance.pid)[1:]:
        if proc.command(pid).startswith("/bin/sh -c"):
            os.kill(pid, signal.SIGKILL)
    if arena.random.random() < 0.5:
        kill_supervisor(arena)


def stop_engine(arena: Arena) -> None:
    """SIGSTOP, then CONT: degraded meanwhile, and no restart."""
    engine = arena.instance.engine
    os.kill(engine, signal.SIGSTOP)
    try:
        arena.time_status()
        arena.truthful("degraded")
        arena.time_status()
    finally:
        os.kill(engine, signal.SIGCONT)
    arena.truthful("ready", limit=TRUTH + 1)
    if arena.instance.engine != engine:
        raise Broken("an engine that was only stopped for a moment was restarted")


def stop_engine_for_good(arena: Arena) -> None:
    engine = arena.instance.engine
    os.kill(engine, signal.SIGSTOP)
    arena.truthful("degraded")
    arena.instance.ready(but_not=engine)


def pause_all(arena: Arena) -> None:
    """A paused container, a saved machine: all of it stands still for longer than the hang limit, and goes on."""
    engine, supervisor = arena.instance.engine, arena.instance.pid
    answers: list[int] = []
    client = threading.Thread(target=lambda: answers.append(arena.instance.complete(n_predict=400)[0]))
    client.start()
    time.sleep(0.3)
    for pid in (supervisor, engine):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(arena.spec.hang_timeout + 2)
    for pid in (supervisor, engine):
        os.kill(pid, signal.SIGCONT)
    client.join(60)
    arena.truthful("ready")
    if arena.instance.engine != engine or answers != [200]:
        raise Broken(f"a pause of everything cost an engine (a request meanwhile: {answers})")


def hang_queue(arena: Arena) -> None:
    """The main thread hangs, the health route goes on saying ok."""
    engine = arena.instance.engine
    command = [sys.executable, freeze.__file__, str(engine)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline().strip() != b"frozen":
                raise Broken("could not freeze the engine's main thread (ptrace)")
            arena.time_status()
            arena.truthful("degraded")
            arena.time_status()
            # a traced thread takes no TERM: the kill at the stop limit ends it
            arena.instance.until("ready", limit=60, but_not=engine)
        finally:
            holder.kill()
    if arena.instance.status["last_exit"]["class"] != "hung":
        raise Broken(f"a hung queue was classed as {arena.instance.status['last_exit']['class']}")


def signal_storm(arena: Arena) -> None:
    """50 signals within a second that mean nothing here; state and engine stay."""
    engine = arena.instance.engine
    for _ in range(50):
        number = arena.random.choice([signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT, signal.SIGCHLD])
        os.kill(arena.instance.pid, number)
        time.sleep(0.01)
    arena.truthful("ready")
    if arena.instance.engine != engine:
        raise Broken("a storm of signals cost an engine")


def terminate_storm(arena: Arena) -> None:
    """50 times TERM: one stop, exit code 0, the engine ended by itself."""
    engine = arena.instance.engine
    for _ in range(50):
        with contextlib.suppress(ProcessLookupError):
            os.kill(arena.instance.pid, signal.SIGTERM)
        time.sleep(0.005)
    if (code := arena.instance.ended(20)) != 0:
        raise Broken(f"TERM ended it with {code}")
    if not gone(engine):
        raise Broken("the engine lives after a stop")
    arena.start()


def reset_connections(arena: Arena) -> None:
    """Connections that are opened and reset, with half a request or none."""
    port = arena.spec.port
    for n in range(50):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if n % 2:
                sock.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
    if arena.instance.complete()[0] != 200:
        raise Broken("no answer after connections were reset")


def port_theft(arena: Arena) -> float:
    """Somebody tries for the port all through a restart."""
    engine = arena.instance.engine
    begin = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    while True:
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                thief.bind(("127.0.0.1", arena.spec.port))
                thief.listen()
                raise Broken("the port was stolen while the engine restarted")
        status = arena.instance.status
        if status["state"] == "ready" and status["engine_pid"] != engine:
            return time.monotonic() - begin
        time.sleep(0.005)


def memory_at_load(arena: Arena) -> None:
    """The next start finds no memory: failed with the class, no loop; with memory again it comes back."""
    arena.limits.write_text("ulimit -v 260000\n")
    try:
        os.kill(arena.instance.engine, signal.SIGKILL)
        arena.truthful("failed", limit=TRUTH + 5)
        if (kind := arena.instance.status["last_exit"]["class"]) != "oom-load":
            raise Broken(f"no memory at load was classed as {kind}")
    finally:
        arena.limits.write_text("")
    arena.instance.client.restart()
    arena.instance.ready()


def memory_later(arena: Arena) -> None:
    """The address space is closed while it serves: whatever becomes of it, it serves again."""
    engine = arena.instance.engine
    resource.prlimit(engine, resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    with contextlib.suppress(OSError, ValueError):
        arena.instance.http("POST", "/completion", {"prompt": "word " * 1500, "n_predict": 8}, limit=20)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(engine, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    arena.instance.ready()


def memory_limit_of_a_cgroup(arena: Arena) -> None:
    """The engine's own group is closed: it alone is killed for it, that is known as such, and it serves again."""
    engine = arena.instance.engine
    assert arena.cgroup is not None
    (group,) = [path.parent for path in arena.cgroup.glob("engine-*/cgroup.procs") if str(engine) in path.read_text()]
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + (1 << 20)))
    # a prompt of its own: one that is held already would need no memory
    prompt = f"{arena.random.random()} " + "word " * 1500
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        arena.instance.http("POST", "/completion", {"prompt": prompt, "n_predict": 8}, limit=20)
    if not gone(engine, 1.0):
        raise Broken("the engine was not killed at its cgroup's limit")
    arena.instance.ready(but_not=engine)
    if (kind := arena.instance.status["last_exit"]["class"]) != "host-oom":
        raise Broken(f"a kill at the cgroup's limit was classed as {kind}")


def disk_full(arena: Arena) -> float:
    """No file takes a byte: a crash is survived all the same."""
    supervisor = arena.instance.pid
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        return _kill_engine(arena)
    finally:
        resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        # the engine has inherited the limit: the next one must not
        _kill_engine(arena)


def log_flood(arena: Arena) -> None:
    """200,000 lines through the engine's own pipe; `status` answers meanwhile."""
    with Path(f"/proc/{arena.instance.engine}/fd/2").open("wb", buffering=1 << 16) as pipe:
        for n in range(200_000):
            pipe.write(b"the same again\n" if n % 2 else b"flood %d\n" % n)
    begin = time.monotonic()
    arena.truthful("ready")
    if time.monotonic() - begin > 1:
        raise Broken("status was slow under a flood of log lines")


def model_replaced(arena: Arena) -> None:
    """The file is another when the engine restarts: said as such, not retried."""
    kept = arena.model.with_suffix(".kept")
    arena.model.rename(kept)
    arena.model.write_bytes(b"<html>moved</html>")
    try:
        os.kill(arena.instance.engine, signal.SIGKILL)
        arena.truthful("failed", limit=TRUTH + 3)
        if (kind := arena.instance.status["last_exit"]["class"]) != "model-corrupt":
            raise Broken(f"a page instead of a model was classed as {kind}")
    finally:
        kept.replace(arena.model)
    arena.instance.client.restart()
    arena.instance.ready()


def socket_removed(arena: Arena) -> None:
    Path(arena.spec.socket).unlink()
    arena.truthful("ready", limit=7)


def state_removed(arena: Arena) -> float:
    """Somebody cleans up under us, the socket of our own probes too: the engine serves on, and a crash is survived."""
    engine = arena.instance.engine
    shutil.rmtree(arena.spec.state_dir)
    time.sleep(TRUTH)
    if (status := arena.instance.status)["state"] != "ready" or status["engine_pid"] != engine:
        raise Broken(f"{status['state']} ({status['reason']}) after the state folder was removed")
    return _kill_engine(arena)


def logs_removed(arena: Arena) -> None:
    """What is said afterwards stands in a file again."""
    file = Path(arena.spec.log_dir) / "log.jsonl"
    shutil.rmtree(file.parent)
    end = time.monotonic() + TRUTH
    while not file.exists() or not file.stat().st_size:
        if arena.instance.complete()[0] != 200:
            raise Broken("no answer after the log folder was removed")
        if time.monotonic() > end:
            raise Broken("nothing is written after the log folder was removed")
        time.sleep(0.1)


def clock_jump(arena: Arena) -> float:
    """Years ahead, or back: nothing is restarted, the times that are told are the new clock's, a crash is mended."""
    engine = arena.instance.engine
    arena.ahead.write_text(str(arena.random.choice([-5e8, -86400.0, 3600.0, 86400.0, 5e8])))
    try:
        arena.truthful("ready")
        if arena.instance.engine != engine:
            raise Broken("a clock that jumped cost an engine")
        off = abs(datetime.fromisoformat(arena.instance.status["since"]).timestamp() - time.time())
        if abs(off - abs(float(arena.ahead.read_text()))) > 3600.0:
            raise Broken(f"since is off by {off:.0f} s after the clock had jumped")
        return _kill_engine(arena)
    finally:
        arena.ahead.write_text("0")


FAULTS: dict[str, Fault] = {
    "kill -9 engine": kill_engine,
    "crash engine": crash_engine,
    "illegal instruction": illegal_instruction,
    "kill -9 supervisor": kill_supervisor,
    "kill -9 all": kill_both,
    "kill -9 keeper": kill_keeper,
    "SIGSTOP, SIGCONT": stop_engine,
    "SIGSTOP for good": stop_engine_for_good,
    "all is paused": pause_all,
    "hung queue": hang_queue,
    "50 signals": signal_storm,
    "50 × TERM": terminate_storm,
    "reset connections": reset_connections,
    "port theft": port_theft,
    "no memory at load": memory_at_load,
    "no memory later": memory_later,
    "cgroup's limit": memory_limit_of_a_cgroup,
    "disk full": disk_full,
    "log flood": log_flood,
    "clock jump": clock_jump,
    "model replaced": model_replaced,
    "control socket removed": socket_removed,
    "state folder removed": state_removed,
    "log folder removed": logs_removed,
}
