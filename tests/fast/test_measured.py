from __future__ import annotations

import json
from pathlib import Path

from launcher.measured import measured_file, read_measured
from launcher.supervise.measured import keep_measured
from launcher.supervise.spec import LaunchSpec


def _spec(tmp_path: Path, file: str) -> LaunchSpec:
    return LaunchSpec(
        "a", "/bin/true", (), state_dir=str(tmp_path), log_dir=str(tmp_path), socket=str(tmp_path / "s"),
        measured_file=file,
    )  # fmt: skip


def test_what_the_supervisor_keeps_the_next_plan_reads(tmp_path: Path) -> None:
    file = tmp_path / "measured" / "x.json"
    keep_measured(_spec(tmp_path, str(file)), {("kv", "host"): 188743680, ("compute", "CUDA0"): 7})
    assert read_measured(file) == {("kv", "host"): 188743680, ("compute", "CUDA0"): 7}
    assert [left.name for left in file.parent.iterdir()] == ["x.json"]


def test_nowhere_to_keep_it_is_no_fault(tmp_path: Path) -> None:
    keep_measured(_spec(tmp_path, ""), {("kv", "host"): 1})
    (tmp_path / "blocked").write_text("")
    keep_measured(_spec(tmp_path, str(tmp_path / "blocked" / "x.json")), {("kv", "host"): 1})
    assert read_measured(tmp_path / "blocked" / "x.json") == {}


def test_damaged_figures_are_no_figures(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ("", "[]", '{"memory": 1}', '{"memory": [{"item": "kv"}]}', json.dumps({"memory": [{"bytes": "x"}]})):
        file.write_text(text)
        assert read_measured(file) == {}


def test_only_what_changes_memory_is_in_the_key(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    base = {"context": 8192, "port": 8080, "model": str(model)}
    first = measured_file(tmp_path, "k", model, base)
    assert measured_file(tmp_path, "k", model, {**base, "port": 9090, "threads": 4}) == first
    assert measured_file(tmp_path, "k", model, {**base, "context": 4096}) != first
    assert measured_file(tmp_path, "other", model, base) != first
    model.write_bytes(b"GGUF2")
    assert measured_file(tmp_path, "k", model, base) != first
