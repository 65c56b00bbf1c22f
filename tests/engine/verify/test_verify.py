"""Verification on real engines: it passes a good one, and catches what a machine does not grant."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from launcher.engine import verify
from launcher.engine.builder import build_engine
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.store import Engine
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree
from launcher.paths import Places


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_good_engine_passes_every_case(engine: Engine) -> None:
    seen: list[str] = []
    fault = verify.verify(
        engine.binaries,
        gpu=False,
        version=engine.manifest.version_text,
        on_case=lambda number, total, name: seen.append(name),
    )
    assert fault is None
    assert {"version", "exceptions", *verify.CASES} <= set(seen)


def test_an_engine_of_other_patches_is_told_by_its_version(engine: Engine) -> None:
    fault = verify.verify(engine.binaries, gpu=False, version="(build 1, commit kvlaunch-9999)")
    assert fault is not None and fault.check == "version" and "kvlaunch-9999" in fault.reason


def test_it_runs_from_any_folder(engine: Engine, tmp_path: Path) -> None:
    moved = shutil.copytree(engine.binaries, tmp_path / "some where" / "bin")
    assert verify.verify(moved, gpu=False, version=engine.manifest.version_text) is None


@pytest.mark.skipif(not os.environ.get("KVLAUNCH_TEST_SLOW"), reason="builds two engines: set KVLAUNCH_TEST_SLOW=1")
@pytest.mark.timeout(1200)
def test_an_extension_that_this_cpu_lacks_dies_and_is_dropped(engine_places: Places) -> None:
    """As with AMX that a kernel does not grant: the flags list it, the first matrix product dies of it."""
    have = set(read_cpu(Tree()).features)
    base = {flag for flag in have if not flag.startswith(("avx512", "amx"))}
    if "avx_vnni" in have or "avx2" not in have:
        pytest.skip("needs a CPU with AVX2 and without AVX-VNNI")
    notes = Notes()
    request = BuildRequest(backend="cpu", cpu_flags=sorted(base | {"avx_vnni"}), force=True)
    built = build_engine(request, engine_places, notes)
    assert built.manifest.dropped == ("avx_vnni",)
    assert "avx_vnni" not in built.manifest.features and "avx2" in built.manifest.features
    assert any("SIGILL" in note and "avx_vnni" in note for note in notes.notes)
    built.check_cpu()
