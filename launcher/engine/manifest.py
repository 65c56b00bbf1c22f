"""What one built engine is: written beside its binaries when it has been verified, the last thing a build does."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from launcher.errors import BuildError

FILE = "manifest.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PatchRecord:
    """One patch as it was when the engine was built."""

    id: str
    name: str
    technique: str
    options: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """`features`: the CPU flags it needs. `dropped`: extensions that the CPU lists and a build showed not to work."""

    key: str
    pin: str
    number: int
    source: str
    backend: str
    patches: tuple[PatchRecord, ...]
    options: Mapping[str, str]
    compiler: str
    arch: str
    cpu: str
    extensions: tuple[str, ...]
    features: tuple[str, ...]
    dropped: tuple[str, ...]
    unity: bool
    engine_options: tuple[str, ...]
    cache_types: tuple[str, ...]
    verified: tuple[str, ...]
    built_at: str
    seconds: float
    cmake_cache: str
    """sha256 of the final CMakeCache: what cmake found by itself."""
    launcher: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def patch_ids(self) -> frozenset[str]:
        return frozenset(patch.id for patch in self.patches)

    @property
    def commit(self) -> str:
        """What stands for the commit in `--version` and `/props`: the ids of the patches."""
        return commit_name([patch.id for patch in self.patches])

    @property
    def version_text(self) -> str:
        """What `--version` of the engine says of pin and patches."""
        return f"(build {self.number}, commit {self.commit})"

    def missing_features(self, flags: Collection[str]) -> tuple[str, ...]:
        """The CPU flags that it needs and this CPU lacks."""
        return tuple(flag for flag in self.features if flag not in flags)

    def as_json(self) -> dict[str, object]:
        return {"schema": _SCHEMA, **asdict(self)}


def commit_name(ids: Sequence[str]) -> str:
    """The ids of the patches as one word that a version line can carry."""
    return "-".join(["kvlaunch", *ids] if ids else ["unpatched"])


def write(manifest: Manifest, folder: Path) -> None:
    """Whole or not at all: an engine without a manifest is no engine."""
    fresh = folder / f".{FILE}.new"
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(manifest.as_json(), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / FILE)


def read(folder: Path) -> Manifest:
    """The manifest in an engine's folder. Raises BuildError when it cannot be understood."""
    path = folder / FILE
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if data.pop("schema") != _SCHEMA:
            raise ValueError("written by another version of kvlaunch")
        data["patches"] = tuple(PatchRecord(**(p | {"options": tuple(p["options"])})) for p in data["patches"])
        known = {entry.name for entry in fields(Manifest)}  # a later version may say more
        return Manifest(**{name: _frozen(value) for name, value in data.items() if name in known})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"{path} cannot be read: {error}", help=f"Remove {folder}; it is built anew.") from error


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
