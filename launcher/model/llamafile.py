"""Finds the GGUF that a llamafile carries: a program with a zip archive at its end, weights stored in it unpacked."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from launcher.errors import ProfileError

if TYPE_CHECKING:
    import zipfile

_PROGRAMS = (b"MZ", b"\x7fELF", b"#!", b"PK\x03\x04", b"\xcf\xfa\xed\xfe", b"jartsr='")
_LOCAL_HEADER = 30  # bytes of a zip local file header before the name (APPNOTE 4.3.7)
_MAX_ARGS = 1 << 16
_MAX_MEMBERS = 1 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """A stored member of the archive: its bytes lie at `offset` of the file, `size` of them."""

    name: str
    offset: int
    size: int


def find_member(path: Path, file: BinaryIO, head: bytes, wanted: str | None = None) -> Member | None:
    """The GGUF member of the archive at the end of `file`, None where there is no such archive or no GGUF in it.

    With several, the one that the llamafile's own `.args` names with `-m`; else `wanted`; else an error that lists
    them. A compressed member is an error: the engine reads weights where they lie.
    """
    if not head.startswith(_PROGRAMS):
        return None
    import zipfile  # 10 ms, and hardly any model needs it

    try:
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_MEMBERS:
                return None
            models = [entry for entry in entries if entry.filename.lower().endswith(".gguf")]
            if not models:
                return None
            entry = _choose(path, archive, models, wanted)
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ProfileError(
                f"{path}: its member {entry.filename} is compressed",
                help=f"unpack it: unzip '{path}' '{entry.filename}'",
            )
        return Member(entry.filename, _data_offset(path, file, entry), entry.file_size)
    except (zipfile.BadZipFile, OSError, NotImplementedError, struct.error, ValueError, EOFError, UnicodeError):
        return None  # no archive, or a broken one: the caller says what the file looks like instead


def _choose(path: Path, archive: zipfile.ZipFile, models: list[zipfile.ZipInfo], wanted: str | None) -> zipfile.ZipInfo:
    names = [entry.filename for entry in models]
    if wanted is None and len(models) > 1:
        wanted = _default_model(archive)
    if wanted is None and len(models) == 1:
        return models[0]
    for entry in models:
        if wanted is not None and entry.filename in (wanted, wanted.removeprefix("/zip/")):
            return entry
    raise ProfileError(
        f"{path}: carries {len(names)} GGUF files ({', '.join(names[:8])}) and does not say which one is the model",
        help="take the one you mean out of it with unzip, and name that file",
    )


def _default_model(archive: zipfile.ZipFile) -> str | None:
    """What the llamafile runs when it is started bare: the value of `-m` in its `.args` member."""
    try:
        info = archive.getinfo(".args")
    except KeyError:
        return None
    if info.file_size > _MAX_ARGS:
        return None
    with archive.open(info) as stream:  # a bounded read: the size that a zip claims is not to be trusted
        words = stream.read(_MAX_ARGS).decode("utf-8", "replace").split()
    for flag, value in itertools.pairwise(words):
        if flag in ("-m", "--model"):
            return value.removeprefix("/zip/")
    return None


def _data_offset(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the member's bytes begin: behind its local header, whose name and extra field have their own lengths."""
    file.seek(entry.header_offset)
    local = file.read(_LOCAL_HEADER)
    if local[:4] != b"PK\x03\x04":
        raise ProfileError(f"{path}: the archive at its end is damaged", help="get the file again")
    name_length, extra_length = struct.unpack_from("<HH", local, 26)
    offset: int = entry.header_offset + _LOCAL_HEADER + name_length + extra_length
    file.seek(0, 2)
    if offset + entry.file_size > file.tell():
        raise ProfileError(f"{path}: the archive at its end is damaged", help="get the file again")
    return offset
