"""The pinned sources of the engine (`build/pins.toml`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomli

from launcher.errors import UsageError
from launcher.paths import shipped


@dataclass(frozen=True, slots=True)
class GitSource:
    """The alternative: a tag of a repository."""

    url: str
    tag: str


@dataclass(frozen=True, slots=True)
class Pin:
    """One source: a file of a package, its hash, and the folder in it that is the engine's tree."""

    name: str
    number: int
    package: str
    version: str
    filename: str
    size: int
    sha256: str
    folder: str
    omit: tuple[str, ...]
    git: GitSource | None


def read_pin(name: str | None = None, file: Path | None = None) -> Pin:
    """The pin of that name, else the default one."""
    path = file or shipped("build") / "pins.toml"
    table = tomli.loads(path.read_text("utf-8"))
    name = name or table["default"]
    if name not in table or name == "default":
        known = ", ".join(key for key in table if key != "default")
        raise UsageError(f"no pin {name!r} in {path}", help=f"Known: {known}.")
    entry = table[name]
    git = entry.get("git")
    return Pin(
        name=name,
        number=entry["number"],
        package=entry["package"],
        version=entry["version"],
        filename=entry["filename"],
        size=entry["size"],
        sha256=entry["sha256"],
        folder=entry["folder"],
        omit=tuple(entry.get("omit", ())),
        git=GitSource(git["url"], git["tag"]) if git else None,
    )
