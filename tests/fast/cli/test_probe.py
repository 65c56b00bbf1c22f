"""`kvlaunch probe` as a person and a script see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import probe as command
from launcher.cli.app import run
from launcher.machine.types import (
    Cpu,
    Device,
    DeviceKind,
    GpuProcess,
    LinkState,
    Machine,
    Memory,
    PcieLink,
    Rebar,
)

GIB = 1 << 30


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without engines and without measurements."""
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_json_is_the_machine(home: Path) -> None:
    """As a process: what a script gets on stdout is JSON and nothing else."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3])}
    command_line = [sys.executable, "-m", "launcher", "probe", "--json"]
    done = subprocess.run(command_line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    machine = Machine.from_json(json.loads(done.stdout))
    assert machine.memory.total is not None
    assert machine.cpu.threads == len(os.sched_getaffinity(0))


def test_the_table_has_the_host(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe"]) == 0
    shown = capsys.readouterr()
    assert "available of" in shown.out
    assert "\033" not in shown.out  # no colour into a pipe
    assert shown.err == ""


def test_bandwidth_without_an_engine_says_what_stays_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--bandwidth", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["bandwidth_notes"]
    assert any("host RAM: not measured, since no engine is built yet" in note for note in notes)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--rpc", "127.0.0.1:50052"], 12, "no engine is built yet that could be asked"),
        (["--engine", "/nowhere/llama-server"], 12, "there is no /nowhere/llama-server"),
        (["--engine", sys.executable, "--rpc", "nonsense"], 2, "'nonsense' is no rpc worker's address"),
        (["--engine", "/bin/false"], 13, "false --list-devices ended with 1: it said nothing"),
    ],
)
def test_faults_are_said(
    home: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, words: str
) -> None:
    assert run(["probe", *args]) == code
    assert words in capsys.readouterr().err
    assert run(["probe", *args, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_full_machine_is_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state of a link, names that look like markup, unknowns."""
    monkeypatch.setenv("COLUMNS", "220")

    def link(**facts: object) -> PcieLink:
        base = {"gen": 4, "gen_max": 4, "width": 16, "width_max": 16, "state": LinkState.ACTIVE, "gbps_max": 31.51}
        return PcieLink(**(base | facts))  # type: ignore[arg-type]

    def device(number: int, **facts: object) -> Device:
        return Device(id=f"CUDA{number}", name=f"Model {number}", kind=DeviceKind.DISCRETE, **facts)  # type: ignore[arg-type]

    machine = Machine(
        devices=(
            device(0, memory_total=24 * GIB, memory_free=20 * GIB, pcie=link(), rebar=Rebar.ON, processes=()),
            device(1, pcie=link(gen=1, state=LinkState.IDLE), processes=(GpuProcess(7, 2 * GIB), GpuProcess(8, None))),
            device(2, pcie=link(width=4, state=LinkState.NARROW, gbps_max=7.88, bottleneck="0000:00:01.0")),
            device(3, pcie=PcieLink(state=LinkState.SUSPENDED), suspended=True),
            device(4, pcie=link(gbps=26.25), usable=False),
            Device(id="RPC0", name="AMD GPU [1002:744c]", copy_gbps=1.5),
        ),
        memory=Memory(64 * GIB, 30 * GIB, 32 * GIB, "/user.slice"),
        cpu=Cpu("EPYC", 8, ("avx2",), "x86_64", 16, 4, 2.5, 2),
        notes=("a note with [brackets]",),
    )
    command._draw(machine, None)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "30.0 GiB available of 64.0 GiB, limited to 32.0 GiB by /user.slice" in lines["memory"]
    assert "8 cores, 4 of them fast, 16 threads, at most 2.5 processors' worth of time, 2 NUMA nodes" in lines["CPU"]
    assert "gen 4 x16, ≤ 31.5 GB/s" in lines["CUDA0"]
    assert "24.0 GiB" in lines["CUDA0"]
    assert "gen 4 x16 (idle at gen 1), ≤ 31.5 GB/s" in lines["CUDA1"]
    assert "7 (2.0 GiB), 8 (?)" in lines["CUDA1"]
    assert "gen 4 x4 of x16 at 0000:00:01.0, ≤ 7.9 GB/s" in lines["CUDA2"]
    assert "asleep" in lines["CUDA3"]
    assert "suspended" in lines["CUDA3"]
    assert "26.2 GB/s measured" in lines["CUDA4"]
    assert "this engine can't use it" in lines["CUDA4"]
    assert "AMD GPU [1002:744c]" in lines["RPC0"]
    assert "1.5 GB/s measured" in lines["RPC0"]
    assert lines["note:"].rstrip() == "note: a note with [brackets]"
