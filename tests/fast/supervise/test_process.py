from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launcher.bench.instance import gone
from launcher.supervise import proc
from launcher.supervise.classes import Exit
from launcher.supervise.process import Keeper, clean_environment, spawn


def run(argv: list[str], act: str = "") -> tuple[Exit, bytes]:
    """Spawn, do something to it, wait for its end; its exit and output."""

    async def live() -> tuple[Exit, bytes]:
        keeper = Keeper()
        ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        child = spawn(argv, {"PATH": os.environ["PATH"]}, "/", keeper, ended.set_result)
        if act:
            await asyncio.sleep(0.2)
            child.allow_group(0.3)
            getattr(child, act)()
        end = await asyncio.wait_for(ended, 10)
        output = os.read(child.output, 1 << 16) if child.output else b""
        os.close(child.output)
        keeper.close()
        return end, output

    return asyncio.run(live())


def test_code_signal_and_output() -> None:
    assert run(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]) == (Exit(code=7), b"out\nerr\n")
    assert run(["/bin/sh", "-c", "kill -ILL $$"])[0] == Exit(signal=signal.SIGILL)


def test_what_cannot_be_executed_says_so() -> None:
    end, output = run(["/nowhere/x"])
    assert end == Exit(code=127)
    assert output.startswith(b"error: cannot execute /nowhere/x: ")


def test_a_session_of_its_own_with_a_death_signal() -> None:
    code = (
        "import os, ctypes; s = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(s)); "
        "print(os.getsid(0) == os.getpid(), s.value)"
    )
    assert run([sys.executable, "-c", code])[1] == b"True 9\n"


def test_term_goes_once_to_each_of_the_group_and_the_rest_is_killed() -> None:
    script = "trap 'echo one; exit 0' TERM; (trap '' TERM; exec sleep 60) & while :; do sleep 0.05; done"
    end, output = run(["/bin/sh", "-c", script], "terminate")
    assert end == Exit(code=0)
    assert output.count(b"one") == 1


def test_only_the_main_thread_may_spawn() -> None:
    problems: list[BaseException] = []

    def elsewhere() -> None:
        try:
            spawn(["/bin/true"], {}, "/", Keeper(), lambda end: None)
        except RuntimeError as error:
            problems.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(problems[0])


HOLDER = """
import sys, time
from launcher.supervise.process import Keeper
keeper = Keeper()
keeper.check()
for group in map(int, sys.argv[1:]):
    keeper.hold(group)
keeper.release(int(sys.argv[1]))
print("held", keeper.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kill_keeper_first", [False, True])
def test_the_keeper_kills_what_is_held_when_its_holder_is_killed(kill_keeper_first: bool, tmp_path: Path) -> None:
    released = subprocess.Popen(["sleep", "60"], start_new_session=True)
    held = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"], start_new_session=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(released.pid), str(held.pid)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        keeper = int(holder.stdout.readline().split()[1])
        family = proc.descendants(held.pid)
        if kill_keeper_first:
            os.kill(keeper, signal.SIGKILL)
        holder.kill()
        holder.wait()
        if kill_keeper_first:
            assert proc.is_alive(held.pid)  # then only the death signal is left, which these had not
        else:
            assert len(family) == 2
            assert all(gone(pid) for pid in family)
        assert proc.is_alive(released.pid)
    finally:
        for process in (released, held):
            process.kill()
            process.wait()
        subprocess.run(["pkill", "-9", "-s", str(held.pid)], check=False)


def test_the_environment_has_no_options_for_the_engine() -> None:
    inherited = {
        "PATH": "/bin",
        "LLAMA_ARG_PORT": "1",
        "GGML_X": "1",
        "AIP_MODE": "PREDICTION",
        "XDG_CONFIG_HOME": "/h",
    }
    env = clean_environment(inherited, {"LLAMA_SERVER_SLOTS_DEBUG": "1"}, "/own")
    assert "LLAMA_ARG_PORT" not in env
    assert "GGML_X" not in env
    assert "AIP_MODE" not in env
    assert env["LLAMA_SERVER_SLOTS_DEBUG"] == "1"  # the profile's own word is taken
    assert env["XDG_CONFIG_HOME"] == "/own"
    assert env["PATH"] == "/bin"
