"""A llamafile: a program with a zip at its end that carries the GGUF as it is."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.model.gguf import read_header
from launcher.model.shape import read_shape


def _llamafile(
    path: Path, members: dict[str, bytes], *, args: str = "", stored: bool = True, head: bytes = b"MZqFpD='"
) -> Path:
    path.write_bytes(head + b"\0" * 4096)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
        if args:
            archive.writestr(".args", args)
    return path


@pytest.mark.parametrize("head", [b"MZqFpD='", b"\x7fELF\x02\x01"])
def test_the_only_member_is_the_model(tmp_path, tiny, head):
    path = _llamafile(tmp_path / "a.llamafile", {"model.gguf": tiny().bytes(), "readme": b"x"}, head=head)
    header = read_header(path)
    assert header.start > 4096
    # offsets count from the start of the file that is there
    last = header.tensors[-1]
    assert path.read_bytes()[header.start : header.start + 4] == b"GGUF"
    assert last.offset + last.size == header.start + header.size
    assert read_shape(path).arch == "llama"


def test_args_say_which_of_several(tmp_path, tiny):
    members = {"one.gguf": tiny(blocks=1).bytes(), "two.gguf": tiny(blocks=2).bytes()}
    path = _llamafile(tmp_path / "a", members, args="-m\n/zip/two.gguf\n--host\n0.0.0.0\n")
    assert read_shape(path).block_count == 2
    assert read_shape(path, member="one.gguf").block_count == 1


def test_several_and_nothing_says_which(tmp_path, tiny):
    members = {"one.gguf": tiny().bytes(), "two.gguf": tiny().bytes()}
    with pytest.raises(ProfileError, match=r"carries 2 GGUF files \(one.gguf, two.gguf\)"):
        read_header(_llamafile(tmp_path / "a", members))


def test_a_compressed_member_is_refused(tmp_path, tiny):
    with pytest.raises(ProfileError, match=r"its member m\.gguf is compressed"):
        read_header(_llamafile(tmp_path / "a", {"m.gguf": tiny().bytes()}, stored=False))


def test_without_a_gguf_it_is_just_a_program(tmp_path):
    with pytest.raises(ProfileError, match="a program, and no llamafile"):
        read_header(_llamafile(tmp_path / "a", {"readme": b"x"}))


def test_a_checkpoint_in_a_zip(tmp_path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x")
    with pytest.raises(ProfileError, match="without a GGUF in it"):
        read_header(path)


def test_a_cut_llamafile_is_a_fault_in_words(tmp_path, tiny):
    path = _llamafile(tmp_path / "a", {"m.gguf": tiny().bytes()})
    body = path.read_bytes()
    for length in range(len(body) - 1, 4096, -97):
        path.write_bytes(body[:length])
        with pytest.raises(ProfileError):
            read_header(path)


def test_a_member_that_is_no_gguf(tmp_path):
    with pytest.raises(ProfileError, match="does not begin with GGUF"):
        read_header(_llamafile(tmp_path / "a", {"m.gguf": b"not it, really, but long enough"}))
