"""As PID 1 of a PID namespace, the way a container runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.instance import free_port
from launcher.errors import KvlaunchError
from launcher.supervise.client import Client
from launcher.supervise.spec import Expected, LaunchSpec

_FAKE = Path(__file__).resolve().parents[1] / "fast" / "supervise" / "fake_engine.py"


def test_orphans_are_reaped_and_a_stop_ends_the_namespace() -> None:
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("a PID namespace is not to be had here")
    home = Path(tempfile.mkdtemp(prefix="kvc-"))
    engine = home / "llama-server"
    # each start leaves an orphan that ends soon: its parent is gone, so it becomes PID 1's
    engine.write_text(
        f'#!/bin/sh\n(setsid sh -c "sleep 0.2" >/dev/null 2>&1 &)\nexec "{sys.executable}" -I -S "{_FAKE}" "$@"\n'
    )
    engine.chmod(0o755)
    spec = LaunchSpec(
        "c", str(engine), ("-c", "512", "--alias", "c"), str(home / "s"), str(home / "l"), str(home / "c.sock")
    )
    spec = replace(
        spec, port=free_port(), listen_fd=True, env={"FAKE_FOLDER": str(home)}, expected=Expected(slots=1, alias="c")
    )
    command = [sys.executable, "-m", "launcher.supervise", str(spec.write(home / "spec.json"))]
    outer = subprocess.Popen([*namespace, *command], stdout=subprocess.DEVNULL)
    try:
        client = Client(Path(spec.socket), "c")
        _until(lambda: client.status()["state"] == "ready")
        assert client.status()["pid"] == 1
        inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])

        def zombies() -> int:
            children = Path(f"/proc/{inner}/task/{inner}/children").read_text().split()
            return sum(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z" for pid in children)

        _until(lambda: zombies() == 1)
        _until(lambda: zombies() == 0, limit=15)
        assert client.status()["state"] == "ready"
        client.stop()
        assert outer.wait(10) == 0
    finally:
        outer.kill()
        outer.wait()
        shutil.rmtree(home, ignore_errors=True)


def _until(holds: object, limit: float = 10) -> None:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            if holds():  # type: ignore[operator]
                return
        except KvlaunchError:
            pass
        time.sleep(0.02)
    raise AssertionError("not within the limit")
