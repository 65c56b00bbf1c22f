"""Models in several files: any shard names them all, paths stay as given, a missing one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.model.shape import read_shape
from launcher.model.shards import shard_paths


def _write_shards(folder: Path, gguf, tiny, count: int = 3) -> list[Path]:
    paths = []
    for number in range(count):
        made = tiny(blocks=4) if number == 0 else gguf()
        if number:
            made.key("general.architecture", "str", "llama").tensor(f"blk.{number}.ffn_up.weight", [64, 8])
        made.key("split.no", "u16", number).key("split.count", "u16", count)
        paths.append(folder / f"big-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(made.bytes())
    return paths


def test_any_shard_gives_the_whole_model(tmp_path, gguf, tiny):
    paths = _write_shards(tmp_path, gguf, tiny)
    shapes = [read_shape(path) for path in paths]
    assert {shape.files for shape in shapes} == {tuple(paths)}
    assert [tensor.file for tensor in shapes[0].tensors if tensor.name == "blk.2.ffn_up.weight"] == [2]
    assert shapes[0].size == sum(path.stat().st_size for path in paths)
    assert shapes[2].path == paths[0]  # the keys are in the first


def test_missing_shards_are_named(tmp_path, gguf, tiny):
    paths = _write_shards(tmp_path, gguf, tiny, 4)
    paths[1].unlink()
    paths[3].unlink()
    with pytest.raises(ProfileError, match=r"2 of its 4 shards are missing: big-00002-of-00004.gguf, big-00004"):
        read_shape(paths[0])


def test_links_keep_their_names(tmp_path, gguf, tiny):
    """A hub's cache: the blobs have names of their own, only the links say which shard they are."""
    blobs, links = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    links.mkdir()
    for number, path in enumerate(_write_shards(tmp_path, gguf, tiny)):
        path.rename(blobs / f"blob{number}")
        (links / path.name).symlink_to(blobs / f"blob{number}")
    shape = read_shape(links / "big-00002-of-00003.gguf")
    assert [path.parent for path in shape.files] == [links] * 3


def test_a_shard_without_its_name(tmp_path, gguf, tiny):
    path = _write_shards(tmp_path, gguf, tiny)[0]
    path.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ProfileError, match="is one of 3 shards, but its name does not say which"):
        read_shape(tmp_path / "renamed.gguf")


def test_swapped_shards(tmp_path, gguf, tiny):
    one, two, _ = _write_shards(tmp_path, gguf, tiny)
    one.rename(tmp_path / "kept")
    two.rename(one)
    (tmp_path / "kept").rename(two)
    with pytest.raises(ProfileError, match="its name says shard 1 of 3, the file itself says 2 of 3"):
        read_shape(one)


@pytest.mark.parametrize("name", ["a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a-00001-of-99999.gguf", "a.gguf"])
def test_other_names_are_one_file(name):
    assert shard_paths(Path(name)) == (Path(name),)
