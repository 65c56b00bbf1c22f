"""The whole chain on a stand-in for the engine: real cmake, ninja and compiler, a second a build."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.engine import chain, compiling, verify
from launcher.engine import resolve as resolving
from launcher.engine.builder import build_engine
from launcher.engine.pins import GitSource, Pin
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.resolve import find_engine, resolve
from launcher.engine.store import Store
from launcher.errors import BuildError
from launcher.paths import Places

FAKE = Path(__file__).parent / "fake"
FLAGS = ("sse4_2", "avx", "avx2")

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler here")


class Recorder(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, detail: str, size: int | None = None) -> None:
        self.lines.append(name)

    def note(self, text: str) -> None:
        self.lines.append(f"note: {text}")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    config, cache, data, state, logs = (tmp_path / name for name in ("config", "cache", "data", "state", "logs"))
    return Places(config, cache, data, state, logs, runtime=None)


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    folder = tmp_path / "patches"
    folder.mkdir()
    return folder


@pytest.fixture
def request_(patches: Path) -> BuildRequest:
    return BuildRequest(backend="cpu", patches_dir=patches, cpu_flags=FLAGS, jobs=2)


@pytest.fixture(autouse=True)
def fake_pin(monkeypatch: pytest.MonkeyPatch, places: Places, tmp_path: Path) -> Pin:
    archive = places.cache / "downloads" / "fake-1.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(FAKE, "fake-1/llama.cpp")
        evil = tarfile.TarInfo("fake-1/llama.cpp/../../../../escaped")
        tar.addfile(evil)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    pin = Pin("b7", 7, "fake", "1", archive.name, archive.stat().st_size, digest, "llama.cpp", (), None)
    monkeypatch.setattr(resolving, "read_pin", lambda name: pin)
    monkeypatch.setattr(verify, "CASES", {"q4_0": ("f16", "f16"), "f16": ("f16", "f16")})
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setattr(chain, "_NEEDS", 1)
    return pin


def add_patch(folder: Path, number: str, body: str) -> None:
    (folder / f"{number}-x.patch").write_text(f"Technique: t{number}\nOptions: --x{number}\nDepends: none\n---\n{body}")
    with (folder / "series").open("a") as file:
        file.write(f"{number}-x.patch\n")


ANSWER = (
    '--- a/answer.h\n+++ b/answer.h\n@@ -1,2 +1,2 @@\n-#define LOGPROB "-1.5"\n+#define LOGPROB "{value}"\n'
    " const char * answer(void);\n"
)
VISION = (
    "--- a/tools/mtmd/models/models.h\n+++ b/tools/mtmd/models/models.h\n@@ -1,2 +1,2 @@\n"
    ' #define MTMD_INTERNAL\n-#define MTMD_WORD "vision 1"\n+#define MTMD_WORD "vision {value}"\n'
)
BROKEN = (
    "--- a/answer.c\n+++ b/answer.c\n@@ -2,1 +2,1 @@\n-const char * answer(void) {\n+const char * answer(void) { oops\n"
)


def test_an_engine_is_built_verified_and_found_again(places: Places, request_: BuildRequest, patches: Path) -> None:
    add_patch(patches, "0001", ANSWER.format(value="-2.5"))
    recorder = Recorder()
    engine = build_engine(request_, places, recorder)
    assert recorder.lines == ["fetch", "unpack", "patch", "compile", "verify"]
    told = engine.manifest
    assert (told.number, told.backend, told.features) == (7, "cpu", ("avx2", "avx", "sse4_2"))
    assert [p.id for p in told.patches] == ["0001"] and told.patches[0].options == ("--x0001",)
    assert told.cache_types == ("f16", "q8_0") and "--ctx-size" in told.engine_options
    said = subprocess.run([engine.server, "--version"], capture_output=True, text=True, check=True).stdout
    assert "(build 7, commit kvlaunch-0001)" in said
    again = Recorder()
    assert build_engine(request_, places, again).key == engine.key
    assert again.lines == []
    assert not list(places.engines.glob(".*.new")) and not list(places.engines.glob(".*.old"))
    assert not (places.cache.parent / "escaped").exists()


def test_every_input_is_in_the_key(places: Places, request_: BuildRequest, patches: Path) -> None:
    keys = {resolve(request_).key, resolve(replace(request_, cpu_flags=(*FLAGS, "fma"))).key}
    keys.add(resolve(replace(request_, dev=True)).key)
    keys.add(resolve(replace(request_, patches="none")).key)  # no patches yet: the same as the first
    add_patch(patches, "0001", ANSWER.format(value="-2"))
    keys.add(resolve(request_).key)
    (patches / "0001-x.patch").write_text((patches / "0001-x.patch").read_text().replace("-2", "-3"))
    keys.add(resolve(request_).key)
    keys.add(resolve(request_, {"PATH": os.environ["PATH"], "CXX": "g++ -v"}).key)
    assert len(keys) == 6


@pytest.mark.skipif(shutil.which("ccache") is None, reason="no ccache here")
def test_an_edit_rebuilds_what_includes_it_and_no_stale_object_is_left(
    places: Places, request_: BuildRequest, patches: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A header, and one behind a precompiled header; there and back, so that the cache has an object of each."""
    monkeypatch.delenv("CCACHE_DISABLE")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    for value in ("-2.5", "-3.5", "-2.5", "-1.5"):
        (patches / "series").unlink(missing_ok=True)
        add_patch(patches, "0001", "--- /dev/null\n+++ b/with-mtmd\n@@ -0,0 +1 @@\n+yes\n")
        if value != "-1.5":
            add_patch(patches, "0002", ANSWER.format(value=value))
            add_patch(patches, "0003", VISION.format(value=value))
        engine = build_engine(replace(request_, force=True), places, Silent())
        assert f'"logprob": {value}'.encode() in engine.server.read_bytes()
        said = subprocess.run([engine.server, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.splitlines()[1] == (f"vision {value}" if value != "-1.5" else "vision 1")
    hits = subprocess.run(["ccache", "--print-stats"], capture_output=True, text=True, check=True).stdout
    assert int(re.search(r"direct_cache_hit\t(\d+)", hits)[1]) > 0, "the cache was not used at all"  # type: ignore[index]


def test_the_store_can_be_moved(places: Places, request_: BuildRequest, tmp_path: Path) -> None:
    engine = build_engine(request_, places, Silent())
    moved = tmp_path / "elsewhere"
    places.engines.rename(moved)
    shutil.rmtree(places.cache)
    found = Store(moved).find(engine.key)
    assert found is not None
    assert verify.verify(found.binaries, gpu=False, version=found.manifest.version_text) is None


def test_a_compile_error_names_file_line_and_log_and_leaves_the_last_good_engine(
    places: Places, request_: BuildRequest, patches: Path
) -> None:
    good = build_engine(request_, places, Silent())
    add_patch(patches, "0001", BROKEN)
    with pytest.raises(BuildError) as caught:
        build_engine(request_, places, Silent())
    assert "the engine does not compile: answer.c:2: " in caught.value.message
    log = next(part for part in caught.value.help.split() if part.endswith(".log."))[:-1]
    assert "oops" in Path(log).read_text()
    assert [e.key for e in Store.of(places).all()] == [good.key]
    assert Store.of(places).unfinished() == []


def test_patches_that_do_not_apply_are_all_named_before_anything_compiles(
    places: Places, request_: BuildRequest, patches: Path
) -> None:
    add_patch(patches, "0001", BROKEN.replace("-const", "-konst"))
    add_patch(patches, "0002", ANSWER.format(value="x").replace("-1.5", "-9"))
    recorder = Recorder()
    with pytest.raises(BuildError) as caught:
        build_engine(request_, places, recorder)
    assert "0001-x.patch: answer.c:2: hunk 1" in caught.value.message
    assert "0002-x.patch: answer.h:1: hunk 1" in caught.value.message
    assert "compile" not in recorder.lines


def test_an_illegal_instruction_drops_the_suspect_extension_and_is_remembered(
    places: Places, request_: BuildRequest, patches: Path
) -> None:
    flags = (*FLAGS, "amx_tile", "amx_int8", "amx_bf16", "avx512_bf16")
    recorder = Recorder()
    engine = build_engine(replace(request_, cpu_flags=flags), places, recorder)
    assert engine.manifest.dropped == ("amx", "avx512_bf16")
    assert engine.manifest.options["GGML_AMX_TILE"] == "OFF" and engine.manifest.options["GGML_AVX2"] == "ON"
    assert "amx_tile" not in engine.manifest.features
    notes = [line for line in recorder.lines if line.startswith("note: ")]
    assert len(notes) == 2 and "SIGILL" in notes[0] and "amx" in notes[0]
    # the next engine on this CPU does not try it again
    add_patch(patches, "0001", ANSWER.format(value="-2"))
    recorder = Recorder()
    build_engine(replace(request_, cpu_flags=flags), places, recorder)
    assert recorder.lines.count("compile") == 1
    assert "note: left out, as an earlier build showed: amx, avx512_bf16" in recorder.lines


def test_an_engine_that_computes_nonsense_is_not_taken(places: Places, request_: BuildRequest, patches: Path) -> None:
    add_patch(patches, "0001", ANSWER.format(value="null"))
    with pytest.raises(BuildError, match=r"does not work: inference with .* computes no finite numbers"):
        build_engine(request_, places, Silent())
    assert list(Store.of(places).all()) == []
    assert Store.of(places).unfinished() == []


def test_a_forced_build_that_fails_gives_the_old_engine_back(
    places: Places, request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = build_engine(request_, places, Silent())
    monkeypatch.setattr(verify, "verify", lambda *args, **more: verify.Fault("x", "y"))
    with pytest.raises(BuildError, match="x: y"):
        build_engine(replace(request_, force=True), places, Silent())
    found = Store.of(places).find(good.key)
    assert found is not None and found.manifest == good.manifest and found.server.is_file()


def test_a_build_path_in_a_binary_is_a_fault(places: Places, request_: BuildRequest, patches: Path) -> None:
    place = str(places.cache / "trees")
    leak = ANSWER.format(value=f'\\"" "{place}/b7-cpu')
    add_patch(patches, "0001", leak)
    with pytest.raises(BuildError, match="relocation"):
        build_engine(request_, places, Silent())


def test_without_a_compiler_an_engine_that_is_here_is_used(
    places: Places, request_: BuildRequest, patches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(request_, places, Silent())
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_engine(request_, places, Silent()).key == engine.key
    add_patch(patches, "0001", ANSWER.format(value="-2"))
    with pytest.raises(BuildError, match="no cc here: the engine is compiled on this machine") as caught:
        build_engine(request_, places, Silent())
    assert "g++" in caught.value.help


def test_an_engine_of_another_cpu_is_refused_by_the_feature(places: Places, request_: BuildRequest) -> None:
    engine = build_engine(request_, places, Silent())
    with pytest.raises(BuildError, match=f"engine {engine.key} needs avx2, which this CPU does not have"):
        engine.check_cpu({"sse4_2", "avx"})
    engine.check_cpu(FLAGS)


def test_a_full_disk_is_told_as_such(
    places: Places, request_: BuildRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chain, "_NEEDS", 1 << 60)
    with pytest.raises(BuildError, match=r"free for .*, a build takes about"):
        build_engine(request_, places, Silent())
    monkeypatch.setattr(chain, "_NEEDS", 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(chain.shutil, "copy2", full)  # type: ignore[attr-defined]
    with pytest.raises(BuildError, match="no space left for"):
        build_engine(request_, places, Silent())
    assert Store.of(places).unfinished() == []


def test_the_compilers_own_full_disk_is_told_as_such(tmp_path: Path) -> None:
    place = compiling.BuildPlace(tmp_path, tmp_path, tmp_path / "log")
    lines = ["FAILED: a.o", "/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device"]
    assert "no space left" in compiling._compile_fault(lines, place, 2).message
    killed = ["c++: fatal error: Killed signal terminated program cc1plus"]
    assert "not enough memory for 2 jobs" in compiling._compile_fault(killed, place, 2).message


def test_two_builds_of_one_key_wait_on_one_lock(places: Places, request_: BuildRequest) -> None:
    recorders = [Recorder(), Recorder()]
    engines: list[str] = []
    threads = [
        threading.Thread(target=lambda r=r: engines.append(build_engine(request_, places, r).key)) for r in recorders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(engines)) == 1 and len(engines) == 2
    assert sum("compile" in r.lines for r in recorders) == 1


SCRIPT = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background is born deaf to it
sys.path.insert(0, {tests!r})
from launcher.engine import builder, chain, resolve
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.pins import Pin
from launcher.paths import Places
root = Path({root!r})
pin = Pin("b7", 7, "fake", "1", "fake-1.tar.gz", {size}, {sha!r}, "llama.cpp", (), None)
resolve.read_pin = lambda name: pin
places = Places(*(root / n for n in ("config", "cache", "data", "state", "logs")), runtime=None)
chain._NEEDS = 1
builder.build_engine(
    BuildRequest(backend="cpu", patches_dir=root / "patches", cpu_flags={flags!r}, jobs=1), places, Silent()
)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_half_and_no_compiler(
    places: Places, request_: BuildRequest, patches: Path, tmp_path: Path, fake_pin: Pin, number: signal.Signals
) -> None:
    slow = '--- a/tool.c\n+++ b/tool.c\n@@ -1,1 +1,2 @@\n int main(void) { return 0; }\n+#include "/dev/stdin"\n'
    add_patch(patches, "0001", slow)
    # a compiler that never ends: a wrapper that sleeps on tool.c
    wrapper = tmp_path / "cc"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *tool.c*) echo $$ >> {tmp_path}/compilers; exec sleep 60;; esac\nexec cc "$@"\n'
    )
    wrapper.chmod(0o755)
    script = SCRIPT.format(
        tests=str(Path(__file__).parents[3]), root=str(tmp_path), size=fake_pin.size, sha=fake_pin.sha256, flags=FLAGS
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "CC": str(wrapper)}, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    started = tmp_path / "compilers"
    while not (started.exists() and started.read_text()) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(10) != 0
    pids = [int(line) for line in started.read_text().split()]
    assert pids
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_alive(pid) for pid in pids)
    assert list(Store.of(places).all()) == [] and Store.of(places).unfinished() == []
    # and the next build goes through
    (patches / "series").write_text("")
    assert build_engine(request_, places, Silent()).server.is_file()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_build_folder_that_a_killed_verification_left_away_is_taken_back(
    places: Places, request_: BuildRequest
) -> None:
    build_engine(request_, places, Silent())
    root = places.cache / "trees" / "b7-cpu"
    (root / "build").rename(root / "build.away")
    stamp = (root / "build.away" / "bin" / "llama-server").stat().st_mtime_ns
    build_engine(replace(request_, force=True), places, Silent())
    assert (root / "build" / "bin" / "llama-server").stat().st_mtime_ns == stamp
    assert not (root / "build.away").exists()


def test_a_git_tag_is_the_other_source(
    places: Places, request_: BuildRequest, fake_pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = shutil.copytree(FAKE, tmp_path / "upstream")
    identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "x"], ["tag", "b7"]):
        subprocess.run(["git", "-C", upstream, *command], check=True)
    pin = replace(fake_pin, git=GitSource(upstream.as_uri(), "b7"))
    monkeypatch.setattr(resolving, "read_pin", lambda name: pin)
    shutil.rmtree(places.cache / "downloads")
    engine = build_engine(replace(request_, from_git=True), places, Silent())
    assert engine.manifest.source == "git" and engine.key != resolve(request_).key
    gone = replace(pin, git=GitSource(upstream.as_uri(), "b8"), name="b8")
    monkeypatch.setattr(resolving, "read_pin", lambda name: gone)
    with pytest.raises(BuildError, match=r"cannot clone .* at b8"):
        build_engine(replace(request_, from_git=True), places, Silent())


def test_a_folder_that_cannot_be_written_is_told_in_words(places: Places, request_: BuildRequest) -> None:
    places.data.write_text("a file where a folder should be")
    with pytest.raises(BuildError, match=r"cannot write in .*data/engines: Not a directory"):
        build_engine(request_, places, Silent())


def test_an_engine_that_a_killed_build_put_aside_is_taken_back(places: Places, request_: BuildRequest) -> None:
    good = build_engine(request_, places, Silent())
    good.path.rename(good.path.with_name(f".{good.key}.old"))
    (good.path / "bin").mkdir(parents=True)  # the new one, not verified when the power went
    recorder = Recorder()
    assert build_engine(request_, places, recorder).manifest == good.manifest
    assert "compile" not in recorder.lines
    assert Store.of(places).unfinished() == []


def test_a_broken_manifest_is_no_engine(places: Places, request_: BuildRequest) -> None:
    engine = build_engine(request_, places, Silent())
    (engine.path / "manifest.json").write_text("{")
    assert list(Store.of(places).all()) == []
    assert find_engine(request_, places) is None
    data = json.loads((build_engine(request_, places, Silent()).path / "manifest.json").read_text())
    assert data["schema"] == 1
