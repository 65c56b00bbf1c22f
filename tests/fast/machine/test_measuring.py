"""Which way each device is measured, and that one that fails costs only its own figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import EngineRefused
from launcher.machine import measuring
from launcher.machine.bandwidth import Copy
from launcher.machine.cuda_copies import CudaCopies, CudaUnavailable
from launcher.machine.engine_copies import EngineCopies, HostRead
from launcher.machine.figures import Identity, recall
from launcher.machine.measuring import Program, measure
from launcher.machine.tree import Tree
from launcher.machine.types import Cpu, Device, DeviceKind, Machine

MIB = 1 << 20
CARD = Device(id="CUDA0", name="RTX", address="0000:01:00.0", uuid="GPU-1", driver="nvidia 580")
RPC = Device(id="RPC0", name="h:1", kind=DeviceKind.REMOTE)
MACHINE = Machine(devices=(CARD, RPC), cpu=Cpu(model="EPYC", threads=2), kernel="6.1")
FIGURES = (Copy(64 * MIB, "h2d", "pageable", 3.0, 3.1, 5),)
PROGRAM = Program(Path("/nowhere/kvlaunch-bandwidth"), "abc123")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Both ways to measure, replaced; what they are to give can be set."""
    state = SimpleNamespace(cuda=CudaCopies(FIGURES, 9.0), engine=(EngineCopies("RPC0", "h:1", FIGURES, 50.0),))
    state.host = HostRead(34.0, 2)

    def cuda(driver: Any, address: str, **facts: Any) -> CudaCopies:
        facts["while_busy"]()
        if isinstance(state.cuda, Exception):
            raise state.cuda
        result: CudaCopies = state.cuda
        return result

    def engine(program: Path, **facts: Any) -> Any:
        if isinstance(state.engine, Exception):
            raise state.engine
        return state.engine, state.host

    monkeypatch.setattr(measuring.cuda_copies, "measure", cuda)
    monkeypatch.setattr(measuring.engine_copies, "measure", engine)
    return state


def run(cache: Path, program: Program | None = PROGRAM, **facts: Any) -> measuring.Measured:
    return measure(MACHINE, cache, program=program, cuda=lambda: object(), **facts)


def test_both_ways_and_the_host(tmp_path: Path, ways: SimpleNamespace) -> None:
    said: list[str] = []
    measured = run(tmp_path, say=said.append)
    assert [(b.device, b.conditions.method) for b, _ in measured.results] == [
        ("CUDA0", "cuda-driver"),
        ("RPC0", "engine abc123"),
        ("host", "engine abc123, 2 threads"),
    ]
    assert measured.notes == ()
    assert len(said) == 2
    assert measured.machine.devices[0].copy_gbps == 3.0
    assert measured.machine.devices[1].copy_latency_us == 50.0
    assert measured.machine.memory.gbps == 34.0
    kept = recall(tmp_path, Identity.of(CARD))
    assert kept is not None
    assert (kept.conditions.driver, kept.conditions.kernel, kept.conditions.threads) == ("nvidia 580", "6.1", 2)


def test_the_link_is_read_while_it_is_busy(tmp_path: Path, ways: SimpleNamespace, box: Any) -> None:
    box.function(
        "pci0000:00/0000:01:00.0", vendor=0x10DE, speed=("16.0 GT/s", "16.0 GT/s"), width=(16, 16), driver="nvidia"
    )
    measured = run(tmp_path, tree=Tree(box.root))
    assert measured.results[0][0].conditions.link == "gen 4 x16"


def test_cuda_that_fails_leaves_the_card_to_the_engine(tmp_path: Path, ways: SimpleNamespace) -> None:
    ways.cuda = CudaUnavailable("no driver", help="install it")
    ways.engine = (EngineCopies("CUDA0", "RTX", FIGURES, 1.0), *ways.engine)
    measured = run(tmp_path)
    assert [b.device for b, _ in measured.results] == ["CUDA0", "RPC0", "host"]
    assert measured.notes == ("CUDA0: no driver (install it)",)


def test_a_mig_instance_is_left_to_the_engine(tmp_path: Path, ways: SimpleNamespace) -> None:
    """By its address the driver would give the whole card."""
    ways.engine = (EngineCopies("CUDA0", "A100 MIG", FIGURES, 1.0),)
    machine = replace(MACHINE, devices=(replace(CARD, mig="GPU-whole"),))
    measured = measure(machine, tmp_path, program=PROGRAM, cuda=lambda: object())
    assert [b.conditions.method for b, _ in measured.results if b.device == "CUDA0"] == ["engine abc123"]


def test_a_card_is_not_measured_twice(tmp_path: Path, ways: SimpleNamespace) -> None:
    ways.engine = (EngineCopies("CUDA0", "RTX", FIGURES, 1.0), *ways.engine)
    assert [b.device for b, _ in run(tmp_path).results] == ["CUDA0", "RPC0", "host"]


def test_without_an_engine(tmp_path: Path, ways: SimpleNamespace) -> None:
    measured = run(tmp_path, program=None)
    assert [b.device for b, _ in measured.results] == ["CUDA0"]
    assert "RPC0 and host RAM: not measured, since no engine is built yet" in measured.notes[0]


def test_an_engine_that_refuses_costs_only_its_own(tmp_path: Path, ways: SimpleNamespace) -> None:
    ways.engine = EngineRefused("no worker answers", help="start it")
    measured = run(tmp_path)
    assert [b.device for b, _ in measured.results] == ["CUDA0"]
    assert measured.notes == ("no worker answers (start it)",)


def test_a_device_that_fails_or_is_not_seen(tmp_path: Path, ways: SimpleNamespace) -> None:
    ways.engine = (EngineCopies("RPC0", "h:1", error="cannot allocate"),)
    assert run(tmp_path).notes == ("RPC0: cannot allocate",)
    ways.engine = ()
    assert run(tmp_path).notes == ("RPC0: the engine does not see it",)


def test_a_cache_that_cannot_be_written_keeps_the_figures(tmp_path: Path, ways: SimpleNamespace) -> None:
    (tmp_path / "file").write_text("")
    measured = run(tmp_path / "file")
    assert len(measured.results) == 3
    assert all("cannot keep the measurement" in note for note in measured.notes)
    assert len(measured.notes) == 3
