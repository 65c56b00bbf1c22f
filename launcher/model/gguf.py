"""Reads the header of a GGUF file: key/value pairs and the tensor table. Never reads or maps a weight.

A header is hostile until it is read: every count is held against the bytes that are left and against a limit before
anything is allocated, arrays of strings (vocabularies) are stepped over, and what is kept is bounded.
Format: ggml/include/gguf.h of the pin; the checks are those of ggml/src/gguf.cpp:465-810.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from launcher.errors import ProfileError
from launcher.model.foreign import NOT_A_MODEL_HELP, describe
from launcher.model.llamafile import Member, find_member
from launcher.model.types import gguf_type
from launcher.units import MIB, format_bytes

MAGIC = b"GGUF"
_CHUNK = 1 * MIB
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17  # the largest known models have a few thousand
_MAX_KEPT = 32 * MIB  # keys, values and numeric arrays together; a large vocabulary's scores and types take 4
_MAX_STRING = 1 * MIB  # longer ones (a whole tokenizer.json) are stepped over
_MAX_STRINGS = 4 << 20  # elements of string arrays, together; a vocabulary with merges has under a million
_MAX_NAME = 63  # GGML_MAX_NAME - 1
_MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# GGUF value types: number → (struct format, array typecode)
_NUMBERS: dict[int, tuple[struct.Struct, str]] = {
    0: (struct.Struct("<B"), "B"),
    1: (struct.Struct("<b"), "b"),
    2: (struct.Struct("<H"), "H"),
    3: (struct.Struct("<h"), "h"),
    4: (_U32, "I"),
    5: (struct.Struct("<i"), "i"),
    6: (struct.Struct("<f"), "f"),
    7: (struct.Struct("<?"), "B"),
    10: (_U64, "Q"),
    11: (struct.Struct("<q"), "q"),
    12: (struct.Struct("<d"), "d"),
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Skipped:
    """A value that was stepped over: an array of strings (`count` of them) or one very long string (`count` bytes)."""

    count: int


Scalar: TypeAlias = int | float | bool | str
# of int or float; compact, since a vocabulary has a score for every token
Numbers: TypeAlias = "array[int] | array[float]"
Value: TypeAlias = "Scalar | Numbers | Skipped"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the tensor table. `offset` counts from the start of its file, `file` from the first shard (0)."""

    name: str
    type: str
    dims: tuple[int, ...]
    offset: int
    size: int
    file: int = 0

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        total = 1
        for dim in self.dims:
            total *= dim
        return total

    @property
    def layer(self) -> int | None:
        """The block that the tensor belongs to (`blk.7.attn_q.weight` → 7), None for input, output and the rest."""
        if not self.name.startswith("blk."):
            return None
        number = self.name[4:].partition(".")[0]
        # a layer number has few digits; int() refuses very long ones and takes signs and underscores
        return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else None


@dataclass(frozen=True, slots=True)
class Header:
    """What one GGUF file says about itself. `start` is where the GGUF begins (inside a llamafile not at 0)."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    start: int
    data: int
    size: int

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without the padding between them."""
        return sum(tensor.size for tensor in self.tensors)


def read_header(path: Path, *, member: str | None = None) -> Header:
    """The header of a GGUF file, or of the GGUF inside a llamafile (`member` names which, where there are several).

    Raises ProfileError in plain words: missing, no GGUF (and what it is instead), damaged, cut short.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(512)
        start, end = 0, size
        if not head.startswith(MAGIC):
            found: Member | None = find_member(path, file, head, member)
            if found is None:
                raise ProfileError(f"{path}: {describe(head, size)}", help=NOT_A_MODEL_HELP)
            start, end = found.offset, found.offset + found.size
        return _Parser(path, file, start, end).parse()


def open_regular(path: Path) -> BinaryIO:
    """Opens a plain file for reading; a folder, a pipe or a missing file is an error for people."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ProfileError(
                f"{path}: is a folder, not a model file", help="name the .gguf file in it, or its first shard"
            )
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError(f"{path}: is not a plain file", help="name a .gguf file")
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        dangling = path.is_symlink()
        raise ProfileError(
            f"{path}: {'is a link to a file that is gone' if dangling else 'there is no such file'}",
            help="check the path; a relative one is relative to the profile that wrote it",
        ) from None
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise ProfileError(f"{path}: cannot be read: {reason}") from None


class _Parser:
    """One pass over one header. Holds a window of the file; `_base` is the file offset of the window's first byte."""

    def __init__(self, path: Path, file: BinaryIO, start: int, end: int) -> None:
        self._path = path
        self._file = file
        self._start = start
        self._end = end
        self._base = start
        self._window = b""
        self._at = 0
        self._kept = 0
        self._strings = 0
        self._doing = "its first bytes"

    def parse(self) -> Header:
        version = self._preamble()
        self._doing = "the number of tensors"
        tensor_count = self._u64()
        self._doing = "the number of keys"
        key_count = self._u64()
        self._limit("keys", key_count, _MAX_KEYS, 8 + 4 + 1)
        self._limit("tensors", tensor_count, _MAX_TENSORS, 8 + 4 + 8 + 4 + 8)
        metadata = self._metadata(key_count)
        tensors, data = self._tensors(tensor_count, _alignment(self, metadata))
        return Header(self._path, version, metadata, tensors, self._start, data, self._end - self._start)

    def _preamble(self) -> int:
        self._need(8)
        if self._window[:4] != MAGIC:
            raise self.fault("the member inside the archive does not begin with GGUF")
        self._at = 4
        version = self._u32()
        if version & 0xFFFF == 0 and version:
            raise self.fault(
                "is a big-endian GGUF, for another kind of processor",
                "get the little-endian file, or convert it with gguf-py's gguf_convert_endian.py",
            )
        if version in (0, 1):
            raise self.fault(f"is GGUF version {version}, which the engine no longer reads", "convert the model again")
        if version > 3:
            raise self.fault(
                f"is GGUF version {version}; the pinned engine reads versions 2 and 3",
                "get a file of version 3, or use an engine that reads this one ([engine] binary)",
            )
        return version

    def _limit(self, what: str, count: int, most: int, least_bytes: int) -> None:
        left = self._end - (self._base + self._at)
        if count > most or count * least_bytes > left:
            raise self.fault(
                f"claims {count} {what}, which {'no model has' if count > most else 'do not fit in the file'}",
                "the file is damaged: get it again",
            )

    def _metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for number in range(count):
            self._doing = f"key {number + 1} of {count}"
            key = self._string()
            if not isinstance(key, str) or not key:
                raise self.fault(f"key {number + 1} has {'no name' if key == '' else 'an absurdly long name'}")
            if key in found:
                raise self.fault(f"has the key {printable(key)!r} twice")
            self._doing = f"the value of {printable(key)}"
            found[key] = self._value(self._u32(), key)
        return found

    def _value(self, kind: int, key: str) -> Value:
        number = _NUMBERS.get(kind)
        if number is not None:
            form = number[0]
            self._need(form.size)
            value: Scalar = form.unpack_from(self._window, self._at)[0]
            self._at += form.size
            self._keep(32)
            return value
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._u32(), self._u64(), key)
        raise self.fault(f"{printable(key)} has a value of type {kind}, which GGUF does not have")

    def _array(self, kind: int, count: int, key: str) -> Value:
        left = self._end - (self._base + self._at)
        if kind == _STRING:
            self._strings += count
            if count * 8 > left or self._strings > _MAX_STRINGS:
                raise self.fault(f"{printable(key)} claims {count} strings, more than the file can hold or a model has")
            self._skip_strings(count)
            return Skipped(count)
        number = _NUMBERS.get(kind)
        if number is None:
            raise self.fault(f"{printable(key)} is an array of type {kind}, which GGUF does not have")
        form, code = number
        length = count * form.size
        if length > left:
            raise self.fault(f"{printable(key)} claims {count} numbers, more than the file can hold")
        self._keep(length)
        self._need(length)
        values: array[int] | array[float] = array(code)
        values.frombytes(memoryview(self._window)[self._at : self._at + length])
        if sys.byteorder == "big":
            values.byteswap()
        self._at += length
        return values

    def _tensors(self, count: int, alignment: int) -> tuple[tuple[TensorInfo, ...], int]:
        table: list[tuple[str, str, tuple[int, ...], int, int]] = []
        seen: set[str] = set()
        expected = 0
        for number in range(count):
            self._doing = f"line {number + 1} of {count} of the tensor table"
            name = self._string()
            if not isinstance(name, str) or len(name) > _MAX_NAME:
                raise self.fault(f"tensor {number + 1} has a name of over {_MAX_NAME} letters")
            if name in seen:
                raise self.fault(f"has the tensor {printable(name)!r} twice")
            seen.add(name)
            dims = self._dims(name)
            size, type_name = self._tensor_size(name, dims)
            offset = self._u64()
            if offset != expected:
                raise self.fault(
                    f"tensor {printable(name)} lies at offset {offset}; after the one before it must be {expected}"
                )
            expected += -(-size // alignment) * alignment
            table.append((name, type_name, dims, offset, size))
        here = self._base + self._at - self._start
        data = self._start + -(-here // alignment) * alignment
        self._complete(table, data)
        return tuple(
            TensorInfo(name, kind, dims, data + offset, size) for name, kind, dims, offset, size in table
        ), data

    def _dims(self, name: str) -> tuple[int, ...]:
        count = self._u32()
        if count > _MAX_DIMS:
            raise self.fault(f"tensor {printable(name)} claims {count} dimensions; there are at most {_MAX_DIMS}")
        dims = tuple(self._u64() for _ in range(count))
        total = 1
        for dim in dims:
            total *= dim
        if total >= 1 << 63 or max(dims, default=0) >= 1 << 63:
            raise self.fault(
                f"tensor {printable(name)} claims the shape {'×'.join(map(str, dims))}, larger than anything"
            )
        return dims

    def _tensor_size(self, name: str, dims: tuple[int, ...]) -> tuple[int, str]:
        number = self._u32()
        kind = gguf_type(number)
        if kind is None:
            raise self.fault(
                f"tensor {printable(name)} has the storage type {number}, which the pinned engine does not know",
                "use an engine that knows it ([engine] binary), or another quantization of the model",
            )
        row = dims[0] if dims else 1
        if row % kind.block:
            raise self.fault(
                f"tensor {printable(name)} has rows of {row} numbers, no multiple of {kind.block} ({kind.name})"
            )
        rows = 1
        for dim in dims[1:]:
            rows *= dim
        return kind.row_bytes(row) * rows, kind.name

    def _complete(self, table: list[tuple[str, str, tuple[int, ...], int, int]], data: int) -> None:
        """Does the file hold what the table says? Names the first tensor that is cut."""
        for name, _, _, offset, size in table:
            end = data + offset + size
            if end > self._end:
                short = f"{end - self._end} bytes are missing" if end - self._end < MIB else ""
                raise self.fault(
                    f"is cut short: tensor {printable(name)} ends at {end}, the file at {self._end}"
                    f" ({short or format_bytes(end - self._end) + ' of it are missing'})",
                    "get the rest of the file: most downloads can be resumed",
                )

    # the window

    def _need(self, count: int) -> None:
        """Makes `count` bytes readable at `_at`. Callers have held `count` against the file and the budget."""
        if self._at + count <= len(self._window):
            return
        here = self._base + self._at
        if here + count > self._end:
            raise self.fault(f"ends in the middle of {self._doing}", "the file is cut short or damaged: get it again")
        self._file.seek(here)
        wanted = min(max(count, _CHUNK), self._end - here)
        pieces: list[bytes] = []
        while wanted > 0 and (piece := self._file.read(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        self._window, self._base, self._at = b"".join(pieces), here, 0
        if len(self._window) < count:
            raise self.fault(f"ends in the middle of {self._doing}", "something is writing the file, or its disk fails")

    def _u32(self) -> int:
        self._need(4)
        value: int = _U32.unpack_from(self._window, self._at)[0]
        self._at += 4
        return value

    def _u64(self) -> int:
        self._need(8)
        value: int = _U64.unpack_from(self._window, self._at)[0]
        self._at += 8
        return value

    def _string(self) -> str | Skipped:
        length = self._u64()
        if length > self._end - (self._base + self._at):
            raise self.fault(f"ends in the middle of {self._doing}", "the file is cut short or damaged: get it again")
        if length > _MAX_STRING:
            self._at += length
            self._settle()
            return Skipped(length)
        self._keep(length + 64)
        self._need(length)
        text = self._window[self._at : self._at + length].decode("utf-8", "replace")
        self._at += length
        return text

    def _skip_strings(self, count: int) -> None:
        unpack = _U64.unpack_from
        while count:
            self._need(8)
            window, at, last = self._window, self._at, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self._at = at
            self._settle()

    def _settle(self) -> None:
        """After a jump: if `_at` lies behind the window, move the window there (empty: the next read fills it)."""
        here = self._base + self._at
        if here > self._end:
            raise self.fault(f"ends in the middle of {self._doing}", "the file is cut short or damaged: get it again")
        if self._at > len(self._window):
            self._window, self._base, self._at = b"", here, 0

    def _keep(self, count: int) -> None:
        self._kept += count
        if self._kept > _MAX_KEPT:
            raise self.fault(f"has more than {format_bytes(_MAX_KEPT)} of keys and values, which no model has")

    def fault(self, message: str, help: str = "the file is damaged: get it again") -> ProfileError:
        return ProfileError(f"{self._path}: {message}", help=help)


def _alignment(parser: _Parser, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise parser.fault(f"general.alignment is {printable(str(value))}; it must be a power of two")
    return value


def printable(text: str) -> str:
    """A name from a file, fit for a terminal: control characters shown, not obeyed, and no longer than a line."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:96])
