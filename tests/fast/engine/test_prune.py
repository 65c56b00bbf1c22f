from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from launcher.engine import manifest
from launcher.engine.manifest import Manifest, PatchRecord
from launcher.engine.pins import read_pin
from launcher.engine.prune import candidates, remove
from launcher.engine.store import Store
from launcher.paths import Places

BASE = Manifest(
    key="", pin="b1", number=1, source="", backend="cpu", patches=(), options={}, compiler="c", arch="x86_64", cpu="x",
    extensions=(), features=(), dropped=(), unity=True, engine_options=(), cache_types=(), verified=(), built_at="",
    seconds=1.0, cmake_cache="",
)  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> Places:
    config, cache, data, state, logs = (tmp_path / name for name in ("config", "cache", "data", "state", "logs"))
    return Places(config, cache, data, state, logs, runtime=None)


def add(places: Places, key: str, day: int, **more: object) -> None:
    folder = places.engines / key
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "llama-server").write_bytes(b"x" * 1000)
    manifest.write(replace(BASE, key=key, built_at=f"2026-01-{day:02}", **more), folder)  # type: ignore[arg-type]


def names(places: Places, **more: bool) -> list[str]:
    return sorted(item.path.name for item in candidates(places, **more))


def test_an_engine_goes_when_a_newer_one_of_its_kind_is_there(places: Places) -> None:
    patch = (PatchRecord("0006", "x", "t", (), "d"),)
    add(places, "old", 1)
    add(places, "new", 2)
    add(places, "other-patches", 1, patches=patch)
    add(places, "other-backend", 1, backend="cuda")
    assert names(places) == ["old"]
    assert candidates(places)[0].bytes > 1000


def test_an_engine_that_an_instance_uses_stays(places: Places) -> None:
    add(places, "old", 1)
    add(places, "new", 2)
    (places.state / "agents").mkdir(parents=True)
    (places.state / "agents" / "status.json").write_text(json.dumps({"engine": "old"}))
    (places.state / "broken").mkdir()
    (places.state / "broken" / "status.json").write_text("{")
    assert names(places) == []


def test_what_an_interruption_left_goes_but_not_a_build_that_runs(places: Places) -> None:
    add(places, "good", 1)
    (places.engines / ".half.new").mkdir()
    (places.engines / "half").mkdir()
    assert names(places) == [".half.new", "half"]
    with FileLock(places.engines / ".half.lock"):
        assert names(places) == []


def test_sources_and_trees_of_other_pins_go_the_rest_only_when_all_is_asked(places: Places) -> None:
    pin = read_pin().name
    for folder in (f"trees/{pin}-cpu", "trees/b1-cpu", f"sources/{pin}-abc", "sources/b1-abc", "trees/other"):
        (places.cache / folder).mkdir(parents=True)
    (places.cache / "downloads").mkdir()
    (places.cache / "downloads" / "a.tar.gz").write_bytes(b"a")
    assert names(places) == ["b1-abc", "b1-cpu"]
    assert names(places, everything=True) == sorted(
        ["b1-abc", "b1-cpu", f"{pin}-abc", f"{pin}-cpu", "a.tar.gz", "other"]
    )


def test_removing(places: Places) -> None:
    add(places, "old", 1)
    add(places, "new", 2)
    remove(candidates(places))
    assert [engine.key for engine in Store.of(places).all()] == ["new"]
    assert names(places) == []
