from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.supervise.spec import Expected, LaunchSpec, MemoryLine, SpecError

SPEC = LaunchSpec(
    name="agents",
    binary="/e/llama-server",
    argv=("-m", "/m.gguf", "-c", "2048"),
    state_dir="/s/agents",
    log_dir="/l/agents",
    socket="/r/agents.sock",
    host=("127.0.0.1", "/tmp/a.sock"),
    env={"CUDA_VISIBLE_DEVICES": "0"},
    expected=Expected(total=2048, per_slot=1024, slots=2, alias="a", techniques={"affinity": True}),
    memory=(MemoryLine("kv", "host", 1024),),
    fallback=("tier", "context"),
)


def test_a_spec_survives_its_json(tmp_path: Path) -> None:
    path = SPEC.write(tmp_path / "new" / "spec.json")
    assert LaunchSpec.read(path) == SPEC
    assert path.stat().st_mode & 0o077 == 0


def test_one_host_and_several() -> None:
    assert SPEC.hosts == ("127.0.0.1", "/tmp/a.sock")
    assert LaunchSpec.from_json({**SPEC.as_json(), "host": "::1"}).hosts == ("::1",)


def test_what_is_unknown_is_left_alone_and_what_is_newer_is_refused() -> None:
    assert LaunchSpec.from_json({**json.loads(json.dumps(SPEC.as_json())), "later": 1}) == SPEC
    with pytest.raises(SpecError, match="schema 2"):
        LaunchSpec.from_json({**SPEC.as_json(), "schema": 2})
    with pytest.raises(SpecError, match="no launch spec"):
        LaunchSpec.from_json({"name": "x"})
    with pytest.raises(SpecError, match="missing"):
        LaunchSpec.from_json({"schema": 1, "name": "x"})


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "spec.json"
    bad.write_text("{")
    with pytest.raises(SpecError, match=r"spec\.json"):
        LaunchSpec.read(bad)
