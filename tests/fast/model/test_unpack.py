from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from launcher.errors import BuildError
from launcher.model import unpack
from launcher.model.llamafile import Member
from launcher.model.shape import read_shape


def _container(path: Path, body: bytes) -> Path:
    path.write_bytes(b"MZqFpD='" + b"\0" * 4096)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("model.gguf", body)
    return path


def test_the_model_comes_out_as_it_went_in(tmp_path, tiny):
    body = tiny().bytes()
    path = _container(tmp_path / "a.llamafile", body)
    member = unpack.model_member(path)
    assert member is not None
    target = unpack.place_for(path, member, tmp_path / "cache")
    seen: list[int] = []
    unpack.take_out(path, member, target, lambda done, total: seen.append(done))
    assert target.read_bytes() == body
    assert seen[-1] == len(body)
    assert read_shape(target).arch == read_shape(path).arch
    assert [file.name for file in target.parent.iterdir()] == [target.name]


def test_a_model_is_its_own_file(tmp_path, tiny):
    (tmp_path / "m.gguf").write_bytes(tiny().bytes())
    assert unpack.model_member(tmp_path / "m.gguf") is None


def test_a_changed_container_is_another_model(tmp_path, tiny):
    path = _container(tmp_path / "a.llamafile", tiny(blocks=1).bytes())
    member = unpack.model_member(path)
    assert member is not None
    before = unpack.place_for(path, member, tmp_path)
    _container(path, tiny(blocks=2).bytes())
    assert unpack.place_for(path, member, tmp_path) != before


def test_no_room_is_said_before_anything_is_written(tmp_path):
    path = _container(tmp_path / "a.llamafile", b"GGUF")
    target = tmp_path / "cache" / "m.gguf"
    with pytest.raises(BuildError, match="carries a model of"):
        unpack.take_out(path, Member("model.gguf", 0, 1 << 60), target, lambda done, total: None)
    assert not target.exists()


def test_a_container_that_shrinks_leaves_nothing_half(tmp_path):
    path = _container(tmp_path / "a.llamafile", b"GGUF")
    target = tmp_path / "cache" / "m.gguf"
    with pytest.raises(BuildError, match="is being changed"):
        unpack.take_out(path, Member("model.gguf", 0, path.stat().st_size + 10), target, lambda done, total: None)
    assert list(target.parent.iterdir()) == []
