"""Unified diffs onto files, in memory: every patch is tried wholly before anything is written.

Strict: context must match to the byte, only its line numbers may have moved. So no patch lands in a wrong place in
silence, and neither git nor patch(1) is needed. Every hunk that fails is found in one run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
Read = Callable[[str], bytes | None]
"""A path in the tree to its bytes, None where there is no such file."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """`old` and `new`: the lines before and after, with their line ends. `line` is where `old` should stand."""

    line: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The change of one file. A side that is None does not exist (created, deleted)."""

    source: str | None
    target: str | None
    hunks: tuple[Hunk, ...]
    mode: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A hunk (counted from 1; 0 for the file as a whole) that does not apply."""

    patch: str
    file: str
    hunk: int
    line: int
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.patch}: {where}: " + (f"hunk {self.hunk}: " if self.hunk else "") + self.reason


@dataclass(slots=True)
class Tree:
    """The files as the patches so far leave them. `files` holds what was touched; None is a file that is gone."""

    read: Read
    files: dict[str, bytes | None] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def get(self, path: str) -> bytes | None:
        return self.files[path] if path in self.files else self.read(path)


def apply(tree: Tree, patch: str, diff: bytes) -> list[Failure]:
    """Apply one patch onto `tree`. What fails is left as it was and returned; the rest is applied."""
    failures: list[Failure] = []
    changes = parse(diff)
    if not changes:
        failures.append(Failure(patch, "(empty)", 0, 0, "there is no diff in it"))
    for change in changes:
        failures += _apply_file(tree, patch, change)
    return failures


def _apply_file(tree: Tree, patch: str, change: FilePatch) -> list[Failure]:
    name = change.target or change.source or "?"

    def failed(reason: str) -> list[Failure]:
        return [Failure(patch, name, 0, 0, reason)]

    if change.fault:
        return failed(change.fault)
    if change.source is None:
        if tree.get(name) is not None:
            return failed("is to be created, and is there already")
        before = b""
    else:
        found = tree.get(change.source)
        if found is None:
            return failed("no such file in the pin")
        before = found
    lines, failures = _apply_hunks(_lines(before), patch, name, change.hunks)
    if change.source is not None and change.source != change.target:
        tree.files[change.source] = None
    if change.target is None:
        if lines and not failures:
            return failed("is to be deleted, but has more lines than the patch knows")
        tree.files[name] = None
    else:
        tree.files[change.target] = b"".join(lines)
        if change.mode is not None:
            tree.modes[change.target] = change.mode
    return failures


def _apply_hunks(lines: list[bytes], patch: str, name: str, hunks: Sequence[Hunk]) -> tuple[list[bytes], list[Failure]]:
    failures: list[Failure] = []
    result: list[bytes] = []
    taken, moved = 0, 0  # lines of the old file that are done; how far the last hunk stood from its number
    for number, hunk in enumerate(hunks, 1):
        # an insertion without context names the line it comes after, any other hunk its first line
        start = max(hunk.line - 1, 0) if hunk.old else hunk.line
        at = _find(lines, hunk, taken, start + moved)
        if at is None:
            failures.append(Failure(patch, name, number, hunk.line, _why(lines, hunk, start + moved)))
            continue
        moved = at - start
        result += lines[taken:at]
        result += hunk.new
        taken = at + len(hunk.old)
    return result + lines[taken:], failures


def _find(lines: list[bytes], hunk: Hunk, lowest: int, expected: int) -> int | None:
    """Where `hunk.old` stands, the nearest to where it should."""
    size = len(hunk.old)
    if size == 0:
        return expected if lowest <= expected <= len(lines) else None
    highest = len(lines) - size
    for distance in range(max(abs(expected - lowest), abs(highest - expected)) + 1):
        for at in (expected - distance, expected + distance):
            if lowest <= at <= highest and lines[at] == hunk.old[0] and tuple(lines[at : at + size]) == hunk.old:
                return at
    return None


def _why(lines: list[bytes], hunk: Hunk, start: int) -> str:
    """The first line that differs where the hunk should stand, by what the ones before it moved."""
    for offset, expected in enumerate(hunk.old):
        found = lines[start + offset] if start + offset < len(lines) else None
        if found != expected:
            shown = "the end of the file" if found is None else repr(found.decode("utf-8", "replace").rstrip("\n"))
            wanted = repr(expected.decode("utf-8", "replace").rstrip("\n"))
            return f"expected {wanted} at line {start + offset + 1}, found {shown}"
    return "its place is taken by an earlier hunk"


def parse(diff: bytes) -> list[FilePatch]:
    """The file changes of a `git diff` (or a plain unified diff with a/ and b/)."""
    starts = [m.start() for m in re.finditer(rb"^diff --git ", diff, re.MULTILINE)]
    if not starts:
        starts = [m.start() for m in re.finditer(rb"^--- (?=\S+.*\n\+\+\+ )", diff, re.MULTILINE)]
    ends = [*starts[1:], len(diff)] if starts else []
    return [_parse_file(_lines(diff[start:end])) for start, end in zip(starts, ends, strict=True)]


def _parse_file(lines: list[bytes]) -> FilePatch:
    source, target = _git_names(lines[0])
    mode, fault = None, ""
    position = 0
    for position, line in enumerate(lines):  # noqa: B007  the position after the loop is where the hunks begin
        if line.startswith(b"--- "):
            source = _side(line[4:])
        elif line.startswith(b"+++ "):
            target = _side(line[4:])
        elif line.startswith(b"rename from "):
            source = line[12:].decode().rstrip("\n")
        elif line.startswith(b"rename to "):
            target = line[10:].decode().rstrip("\n")
        elif line.startswith((b"new file mode ", b"new mode ")):
            mode = int(line.split()[-1], 8) & 0o777
            source = None if line.startswith(b"new file") else source
        elif line.startswith(b"deleted file mode "):
            target = None
        elif line.startswith((b"GIT binary patch", b"Binary files ")):
            fault = "is a binary change, which the series does not take"
        elif line.startswith(b"@@ "):
            break
    else:
        position += 1
    hunks: list[Hunk] = []
    while position < len(lines) and not fault:
        match = _HUNK.match(lines[position])
        if match is None:
            break  # what follows the last hunk: a signature, empty lines
        hunk, position = _parse_hunk(lines, position, match)
        if hunk is None:
            fault = f"hunk {len(hunks) + 1} is cut off or miscounted"
        else:
            hunks.append(hunk)
    return FilePatch(source, target, tuple(hunks), mode, fault)


def _parse_hunk(lines: list[bytes], position: int, header: re.Match[bytes]) -> tuple[Hunk | None, int]:
    old_left, new_left = (int(header[g]) if header[g] is not None else 1 for g in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    position += 1
    while position < len(lines) and (old_left or new_left or lines[position].startswith(b"\\")):
        line = lines[position]
        kind, text = line[:1], line[1:]
        if kind == b"\\":  # "\ No newline at end of file" speaks of the line before
            last = lines[position - 1][:1]
            for side in [old] if last == b"-" else [new] if last == b"+" else [old, new]:
                side[-1] = side[-1].rstrip(b"\n")
        elif kind in (b" ", b"\n"):
            context = text if kind == b" " else b"\n"
            old.append(context)
            new.append(context)
            old_left, new_left = old_left - 1, new_left - 1
        elif kind == b"-":
            old.append(text)
            old_left -= 1
        elif kind == b"+":
            new.append(text)
            new_left -= 1
        else:
            break
        position += 1
    whole = old_left == 0 and new_left == 0
    return (Hunk(int(header[1]), tuple(old), tuple(new)) if whole else None), position


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends, split at newlines alone: a carriage return belongs to its line."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _git_names(line: bytes) -> tuple[str | None, str | None]:
    match = re.fullmatch(rb"diff --git a/(.+) b/(.+)\n?", line)
    return (match[1].decode(), match[2].decode()) if match else (None, None)


def _side(text: bytes) -> str | None:
    name = text.split(b"\t", 1)[0].rstrip(b"\r\n").decode()
    if name == "/dev/null":
        return None
    return re.sub(r"^[ab]/", "", name)
