"""Where each key of a TOML text stands: the second reader beside tomli, which alone decides what is valid.

It reads only text that tomli has accepted, so it checks nothing; it must only never disagree about which keys
there are (a property test holds it to that). It knows nothing of profiles.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import tomli

Path = tuple[str | int, ...]
"""A key as written, one part each; an element of an array is its index."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|("(?:\\.|[^"\\\n])*"|'[^'\n]*'))[ \t]*""")
# three quotes close the string, and up to two more before them belong to its text
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\])*"|'[^']*\'''',
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}#\n]+")


DEEPEST = 40
"""Places deeper than this are not kept apart; no profile nests half as deep, and paths cost their length squared."""


def scan(text: str) -> dict[Path, tuple[int, int]]:
    """The line and column (from 1) of each key and array element of `text`, whose line ends are `\\n` alone."""
    return _Scanner(text).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.offsets: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}
        """How many tables each array of tables has so far."""

    def run(self) -> dict[Path, tuple[int, int]]:
        prefix: Path = ()
        while self._blank() < len(self.text):
            if self.text.startswith("[[", self.at):
                prefix = self._header(2, array=True)
            elif self.text[self.at] == "[":
                prefix = self._header(1, array=False)
            else:
                self._pair(prefix)
        starts = [0, *(m.end() for m in re.finditer("\n", self.text))]
        places = {}
        for path, offset in self.offsets.items():
            line = bisect_right(starts, offset)
            places[path] = (line, offset - starts[line - 1] + 1)
        return places

    def _blank(self) -> int:
        self.at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]  # matches the empty string too
        return self.at

    def _parts(self) -> list[tuple[str, int]]:
        """A dotted key: each part and where it begins. Leaves `at` behind it."""
        parts = []
        while True:
            match = _PART.match(self.text, self.at)
            if match is None:
                raise ValueError(f"no key at offset {self.at}")
            bare, quoted = match.groups()
            # quoted keys are rare: let tomli undo their escapes
            name = bare if bare is not None else str(tomli.loads(f"k={quoted}")["k"])
            parts.append((name, match.start(1 if bare is not None else 2)))
            self.at = match.end()
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def _header(self, brackets: int, *, array: bool) -> Path:
        self.at += brackets
        parts = self._parts()
        self.at += brackets
        path: Path = ()
        for index, (name, offset) in enumerate(parts):
            if len(path) < DEEPEST:
                path += (name,)
            last = index == len(parts) - 1
            self._found(path, offset, again=last and not array)
            if array and last:
                self.tables[path] = self.tables.get(path, 0) + 1
            if path in self.tables:
                path += (self.tables[path] - 1,)
                self._found(path, offset)
        return path

    def _pair(self, prefix: Path) -> None:
        path = prefix
        for name, offset in self._parts():
            if len(path) < DEEPEST:
                path += (name,)
            self._found(path, offset)
        self.at += 1  # the equals sign
        self._value(path)

    def _found(self, path: Path, offset: int, *, again: bool = False) -> None:
        """The first mention is a key's place; but a table's own header beats one that only passed through it."""
        if again or path not in self.offsets:
            self.offsets[path] = offset

    def _value(self, path: Path) -> None:
        start = self._blank()
        match self.text[start]:
            case "[":
                self.at += 1
                index = 0
                while self.text[self._blank()] != "]":
                    element = (*path, index)
                    self._found(element, self.at)
                    self._value(element)
                    index += 1
                    self._comma()
                self.at += 1
            case "{":
                self.at += 1
                while self.text[self._blank()] != "}":
                    self._pair(path)
                    self._comma()
                self.at += 1
            case '"' | "'":
                self.at = _STRING.match(self.text, start).end()  # type: ignore[union-attr]  # tomli saw its end
            case _:
                self.at = _BARE.match(self.text, start).end()  # type: ignore[union-attr]  # tomli saw a value here

    def _comma(self) -> None:
        if self.text[self._blank()] == ",":
            self.at += 1
