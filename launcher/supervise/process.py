"""One engine process: spawned so that it cannot outlive us, watched by pidfd, ended once.

Two independent ties hold it to the supervisor. The kernel's death signal is set between fork and exec; it belongs to
the forking thread, so only the main thread may spawn. And a keeper, a shell of 1 MiB in a session of its own, reads a
pipe whose other end only we hold: at its end of file it kills what is left of the engine's process group, which also
catches the grandchildren that no death signal reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from launcher.supervise import proc
from launcher.supervise.classes import Exit

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # resolved before any fork: nothing is loaded between fork and exec
_PIPE_BYTES = 1 << 20
"""The engine blocks when its log pipe is full (64 KiB by default); unprivileged users may take 1 MiB (man 7 pipe)."""
_EXEC_FAILED = 127
_FOREIGN = ("LLAMA_", "GGML_", "AIP_", "LISTEN_", "NOTIFY_", "WATCHDOG_")
"""~150 variables that the engine reads as options (AIP_MODE even replaces the port); and what systemd told us alone."""
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""malloc asks for huge pages (glibc 2.35; others ignore it), which most kernels give only where they are asked for. A
cache that is read whole for every token misses the TLB at each small page: a fifth of the time of reading it."""

# `kill -s KILL -- -PID` is the only spelling that dash and bash both take
_KEEPER = """
trap '' HUP INT QUIT TERM
groups=
while read -r op group; do
  if [ "$op" = + ]; then groups="$groups $group"
  else
    left=
    for g in $groups; do [ "$g" = "$group" ] || left="$left $g"; done
    groups=$left
  fi
done
for g in $groups; do kill -s KILL -- "-$g" 2>/dev/null; done
"""


def clean_environment(inherited: Mapping[str, str], own: Mapping[str, str], config_home: str) -> dict[str, str]:
    """The engine's environment: what is inherited less what it would read as options, and the profile's `[env]`."""
    env = HUGE_PAGES | {key: value for key, value in inherited.items() if not key.startswith(_FOREIGN)}
    # it reads llama.cpp/config.ini below this before its command line
    env["XDG_CONFIG_HOME"] = config_home
    # with gdb installed an abort would stop for seconds to print a backtrace of every thread
    env["GGML_NO_BACKTRACE"] = "1"
    # CUDA0, CUDA1, … as the probe counts them; CUDA's own default puts the fastest first
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env.update(own)
    return env


class Keeper:
    """The process that kills the engine's group when we are gone. It is made again when somebody kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def hold(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def release(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"- {group}\n")

    def check(self) -> None:
        """Make it again where it is gone."""
        if self._process is None or self._process.poll() is not None:
            self._start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", 'eval "$kvlaunch_keeper"'],  # a script there would fill every list of processes
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"kvlaunch_keeper": _KEEPER},
            bufsize=0,
        )
        for group in self._groups:
            self._write(f"+ {group}\n")

    def _tell(self, line: str) -> None:
        if self._process is None or not self._write(line):
            self._start()  # tells it all that we hold, this one included

    def _write(self, line: str) -> bool:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except OSError:
            return False
        return True


class Child:
    """A running engine. `on_exit` is called once, in the event loop, when it and its whole group have ended."""

    def __init__(self, pid: int, output: int, keeper: Keeper, on_exit: Callable[[Exit], None]) -> None:
        self.pid = pid
        self.started = time.monotonic()
        self.birth = proc.start_time(pid)
        self.output = output
        """The read end of its standard output and error, non-blocking. Whoever reads it closes it."""
        self.exit: Exit | None = None
        self._keeper = keeper
        self._on_exit = on_exit
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._ended)
        self._deadline: float | None = None

    def terminate(self) -> None:
        """TERM, once to each of the group: a second one makes the engine exit at once, in the middle of a save."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self._deadline = self._loop.time()
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To the whole group; to the process alone while it has not made its session yet."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def allow_group(self, seconds: float) -> None:
        """How long the rest of the group may go on after its leader (a wrapper) has ended."""
        self._deadline = self._loop.time() + seconds

    def _ended(self) -> None:
        # the leader stays a zombie until its group is empty, so that neither pid nor group can be taken by another
        info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return
        self._loop.remove_reader(self._pidfd)
        if info.si_code == os.CLD_EXITED:
            self.exit = Exit(code=info.si_status)
        else:
            self.exit = Exit(signal=info.si_status)
        self._settle()

    def _settle(self) -> None:
        left = proc.group_members(self.pid)
        if left and (self._deadline is None or self._loop.time() >= self._deadline):
            self.signal(signal.SIGKILL)
            self._deadline = self._loop.time() + 1.0
        if left:
            self._loop.call_later(0.02, self._settle)
            return
        os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)
        self._keeper.release(self.pid)
        assert self.exit is not None
        self._on_exit(self.exit)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    keeper: Keeper,
    on_exit: Callable[[Exit], None],
    *,
    inherit: Sequence[int] = (),
    cgroup: str | None = None,
) -> Child:
    """Start `argv` in a session of its own. `inherit` are descriptors that it keeps under their own numbers; `cgroup`
    is the cgroup.procs by which it leaves ours."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("the death signal belongs to the thread that forks: spawn on the main thread")
    keeper.check()
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # over the user's pipe budget: the default size then
        fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(read_end, False)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(list(argv), dict(env), cwd, parent, write_end, inherit, cgroup)
    os.close(write_end)
    keeper.hold(pid)
    return Child(pid, read_end, keeper, on_exit)


def _become(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    parent: int,
    output: int,
    inherit: Sequence[int],
    cgroup: str | None,
) -> None:  # pragma: no cover - runs in the forked child
    """The stub between fork and exec. It takes no lock and imports nothing: the log's thread may have held any of them.

    Why not a stub program: a second Python would cost the spawn 20 ms.
    """
    try:
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(_EXEC_FAILED)
        if cgroup is not None:
            try:
                door = os.open(cgroup, os.O_WRONLY)
                os.write(door, b"0")
                os.close(door)
            except OSError:
                pass  # it stays in ours; whether that matters is asked when it is ready
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in inherit:
            os.set_inheritable(descriptor, True)
        os.chdir(cwd)
        os.execve(argv[0], argv, env)
    except BaseException as error:
        os.write(output, f"error: cannot execute {argv[0]}: {error}\n".encode())
    os._exit(_EXEC_FAILED)
