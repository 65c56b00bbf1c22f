"""The patch series: `patches/series`, the header of each patch, and which patches an engine gets.

The header is DEP-3 in kind: `Field: text`, continuation lines begin with a space, `---` ends it. Nothing here applies
a patch (patching.py does).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.errors import ProfileError
from launcher.paths import shipped

Choice = Literal["default", "none"] | Sequence[str]
"""Which patches: all but the experimental ones, none at all, or these (and what they depend on)."""

FIELDS = ("Technique", "Why", "Options", "Off-path", "Bench", "Depends", "Upstream", "Stage")
_NAME = re.compile(r"(\d{4})-([a-z0-9][a-z0-9-]*)\.patch")
_FIELD = re.compile(r"([A-Z][A-Za-z-]*):(?:\s+(.*))?")


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch. `id` is its number as text (`"0006"`), `depends` are ids."""

    id: str
    name: str
    path: Path
    fields: Mapping[str, str]
    text: bytes

    @property
    def technique(self) -> str:
        return self.fields.get("Technique", self.name)

    @property
    def options(self) -> tuple[str, ...]:
        """The command-line options that it adds, without their values: `("--rest-kv-eviction", …)`."""
        return tuple(dict.fromkeys(re.findall(r"--[a-z][a-z0-9-]*", self.fields.get("Options", ""))))

    @property
    def depends(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\b\d{4}\b", self.fields.get("Depends", "")))

    @property
    def experimental(self) -> bool:
        return self.fields.get("Stage", "").split(maxsplit=1)[:1] == ["experimental"]

    @property
    def digest(self) -> str:
        """Of the diff alone: a better sentence in the header builds no new engine."""
        return hashlib.sha256(split_header(self.text)[1]).hexdigest()


def split_header(text: bytes) -> tuple[str, bytes]:
    """The header and the diff of a patch file. The diff begins at its first `diff --git` or `--- a/`."""
    match = re.search(rb"^(?:diff --git |--- (?:a/|/dev/null))", text, re.MULTILINE)
    if match is None:
        return text.decode("utf-8", "replace"), b""
    head = text[: match.start()].decode("utf-8", "replace")
    return re.sub(r"^---\n\Z", "", head, flags=re.MULTILINE), text[match.start() :]


def parse_fields(header: str) -> dict[str, str]:
    """`Field: text` with continuation lines; anything else is left out."""
    fields: dict[str, str] = {}
    current = None
    for line in header.splitlines():
        if line.startswith((" ", "\t")) and current is not None:
            fields[current] = f"{fields[current]}\n{line[1:]}".lstrip("\n")
        elif match := _FIELD.fullmatch(line):
            current = match[1]
            fields[current] = match[2] or ""
        else:
            current = None
    return fields


def read_series(folder: Path | None = None) -> tuple[Patch, ...]:
    """All patches in the order of `series`. A folder without one is an empty series. Raises ProfileError."""
    folder = folder or shipped("patches")
    listing = folder / "series"
    if not folder.is_dir():  # else a slip in the path would build an engine without any patch
        raise ProfileError(f"{folder}: there is no such folder with a series")
    if not listing.is_file():
        return ()
    names = [line.split("#", 1)[0].strip() for line in listing.read_text("utf-8").splitlines()]
    patches = tuple(_read_patch(folder / name, listing) for name in names if name)
    seen: set[str] = set()
    for patch in patches:
        if patch.id in seen:
            raise ProfileError(f"{listing}: {patch.id} is listed twice")
        for needed in patch.depends:
            if needed not in seen:
                raise ProfileError(f"{patch.path}: depends on {needed}, which does not stand before it in {listing}")
        seen.add(patch.id)
    return patches


def _read_patch(path: Path, listing: Path) -> Patch:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ProfileError(f"{listing}: {path.name!r} is no name of a patch", help="NNNN-some-words.patch")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{listing} names {path.name}: {error.strerror}") from error
    return Patch(match[1], match[2], path, parse_fields(split_header(text)[0]), text)


def select(series: Sequence[Patch], choice: Choice) -> tuple[Patch, ...]:
    """The patches of that choice, in the order of the series, with all they depend on. Raises ProfileError."""
    if choice == "none":
        return ()
    by_id = {patch.id: patch for patch in series}
    if choice == "default":
        wanted = [patch.id for patch in series if not patch.experimental]
    else:
        wanted = [choice] if isinstance(choice, str) else list(choice)
        unknown = [name for name in wanted if name not in by_id]
        if unknown:
            raise ProfileError(
                f"no patch {', '.join(unknown)} in the series",
                help=f"Known: {', '.join(by_id) or 'none'}. `kvlaunch patches list` shows them.",
            )
    chosen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in chosen:
            chosen.add(name)
            wanted.extend(by_id[name].depends)
    return tuple(patch for patch in series if patch.id in chosen)
