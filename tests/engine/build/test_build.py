"""What the store holds after a real build, and what an edit of a patch does to the kept tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from launcher.engine import verify
from launcher.engine.builder import build_engine
from launcher.engine.capability import parse_help
from launcher.engine.report import Silent
from launcher.engine.request import BuildRequest
from launcher.engine.series import read_series, select
from launcher.engine.store import Engine
from launcher.paths import Places, shipped


def test_version_names_pin_and_patches(engine: Engine) -> None:
    said = subprocess.run([engine.server, "--version"], capture_output=True, text=True, check=True, timeout=30)
    ids = [patch.id for patch in select(read_series(), "default")]
    assert f"(build {engine.manifest.number}, commit {'-'.join(['kvlaunch', *ids])})" in said.stdout + said.stderr


def test_props_name_pin_and_patches(engine: Engine, smollm2: Path, tmp_path: Path) -> None:
    listen = tmp_path / "s.sock"
    command = [
        str(engine.server),
        "-m",
        str(smollm2),
        "--host",
        str(listen),
        "-c",
        "256",
        "-np",
        "1",
        "--fit",
        "off",
        "--no-warmup",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            client = httpx.Client(transport=httpx.HTTPTransport(uds=str(listen)), base_url="http://engine")
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None and time.monotonic() < deadline
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
            assert client.get("/props").json()["build_info"] == f"b{engine.manifest.number}-{engine.manifest.commit}"
        finally:
            process.kill()


def test_the_manifest_is_what_the_engine_says_of_itself(engine: Engine) -> None:
    told = engine.manifest
    capability = parse_help(engine.help_text.read_text(), "its help")
    assert set(told.engine_options) == capability.options
    assert {"f16", "q8_0", "q4_0"} <= set(told.cache_types)
    for patch in told.patches:
        lacking = [option for option in patch.options if not capability.has(option)]
        assert lacking == [], f"{patch.id} promises {lacking}"
    assert json.loads((engine.path / "manifest.json").read_text())["key"] == engine.key == engine.path.name
    engine.check_cpu()


def test_no_library_of_ours_is_shared(engine: Engine) -> None:
    """Nothing but the system's: the folder can be moved."""
    for binary in (engine.server, engine.rpc_server, engine.fit_params):
        needed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
        assert not [line for line in needed.splitlines() if "llama" in line or "ggml" in line or "not found" in line]


def test_a_second_build_is_a_lookup(engine: Engine, engine_places: Places) -> None:
    begin = time.monotonic()
    assert build_engine(BuildRequest(backend="cpu"), engine_places, Silent()).key == engine.key
    assert time.monotonic() - begin < 0.3


@pytest.mark.skipif(not os.environ.get("KVLAUNCH_TEST_SLOW"), reason="compiles for a minute: set KVLAUNCH_TEST_SLOW=1")
@pytest.mark.timeout(900)
def test_an_edited_header_rebuilds_what_includes_it(engine: Engine, engine_places: Places, tmp_path: Path) -> None:
    """A field in the middle of a struct that four files share: one stale object, and a request dies of it."""
    folder = shutil.copytree(shipped("patches"), tmp_path / "patches")
    source = engine_places.cache / "trees" / f"{engine.manifest.pin}-cpu" / "src"
    header = (source / "tools/server/server-task.h").read_text().splitlines()
    at = next(i for i, line in enumerate(header) if line.startswith("struct task_params {"))
    body = "\n".join(
        ["--- a/tools/server/server-task.h", "+++ b/tools/server/server-task.h", f"@@ -{at + 1},1 +{at + 1},2 @@",
         " struct task_params {", "+    char kvlaunch_test[4096] = {0};", ""]
    )  # fmt: skip
    (folder / "9990-test.patch").write_text(f"Technique: a test\nDepends: none\nOptions: none\n---\n{body}")
    with (folder / "series").open("a") as file:
        file.write("9990-test.patch\n")
    begin = time.monotonic()
    built = build_engine(BuildRequest(backend="cpu", patches_dir=folder), engine_places, Silent())
    assert built.key != engine.key
    assert verify.verify(built.binaries, gpu=False, version=built.manifest.version_text) is None
    print(f"rebuild after an edited header: {time.monotonic() - begin:.1f} s")
