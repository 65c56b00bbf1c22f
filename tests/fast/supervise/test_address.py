"""Where our probes reach an engine: a socket that survives a log-out."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.supervise.address import Address
from launcher.supervise.files import InstanceFiles

if TYPE_CHECKING:
    from conftest import Stage


def test_the_private_socket_lies_in_the_state_folder(stage: Stage) -> None:
    spec = stage.spec()
    address = Address(spec, InstanceFiles(Path(spec.state_dir)))
    first, second = address.private(), address.private()
    assert Path(first).parent == Path(spec.state_dir)
    assert first != second


def test_a_state_path_too_long_for_a_socket(stage: Stage) -> None:
    spec = stage.spec(state_dir=str(stage.home / ("long" * 30)))
    address = Address(spec, InstanceFiles(Path(spec.state_dir)))
    assert Path(address.private()).parent == Path(spec.socket).parent / "engine"


def test_no_place_but_the_temporary_folder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = Path(os.path.realpath(stage.home)) / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (stage.home / "engine").write_text("in the way")
    spec = stage.spec(state_dir=str(stage.home / ("long" * 30)))
    address = Address(spec, InstanceFiles(Path(spec.state_dir)))
    assert Path(address.private()).parent.parent == temporary
    address.close()
    assert list(temporary.iterdir()) == []


def test_a_log_out_takes_the_runtime_directory_away(stage: Stage) -> None:
    runtime = stage.home / "run"
    runtime.mkdir()
    instance = stage.launch(socket=str(runtime / "f.sock"), backoff=(0.0,), hang_timeout=2.0)
    instance.ready()
    engine = instance.engine
    shutil.rmtree(runtime)
    runtime.write_text("")  # nobody can make it again
    instance.client.path = Path(instance.spec.state_dir) / "control.sock"
    instance.until("ready", limit=5)
    os.kill(engine, signal.SIGKILL)
    assert instance.ready(but_not=engine)["state"] == "ready"


def test_a_saved_port_that_is_none_is_passed_over(stage: Stage) -> None:
    spec = stage.spec(port=0)
    files = InstanceFiles(Path(spec.state_dir))
    for saved in ("x", -1, 70000, None):
        files.write("port", {"port": saved})
        address = Address(spec, files)
        assert address.hold() and address.port > 0
        address.close()
