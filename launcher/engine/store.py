"""The engines that are built: one folder a key, complete when its manifest is there."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.engine import manifest as manifests
from launcher.engine.manifest import Manifest
from launcher.errors import BuildError
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree
from launcher.paths import Places


@dataclass(frozen=True, slots=True)
class Engine:
    """One built engine."""

    path: Path
    key: str
    manifest: Manifest

    @property
    def binaries(self) -> Path:
        return self.path / "bin"

    @property
    def server(self) -> Path:
        return self.binaries / "llama-server"

    @property
    def rpc_server(self) -> Path:
        return self.binaries / "ggml-rpc-server"

    @property
    def fit_params(self) -> Path:
        return self.binaries / "llama-fit-params"

    @property
    def help_text(self) -> Path:
        return self.path / "help.txt"

    def check_cpu(self, flags: Collection[str] | None = None) -> None:
        """Refuse an engine that was built for another CPU, by the name of what this one lacks. Raises BuildError."""
        missing = self.manifest.missing_features(read_cpu(Tree()).features if flags is None else flags)
        if missing:
            raise BuildError(
                f"engine {self.key} needs {', '.join(missing)}, which this CPU does not have",
                help=f"It was built on {self.manifest.cpu}. `kvlaunch build` makes one for this machine.",
            )

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of all engines (`places.engines`)."""

    root: Path

    @classmethod
    def of(cls, places: Places) -> Store:
        return cls(places.engines)

    def find(self, key: str) -> Engine | None:
        """The finished engine of that key. One whose manifest cannot be read is none: it is built anew."""
        folder = self.root / key
        try:
            return Engine(folder, key, manifests.read(folder))
        except (FileNotFoundError, BuildError):
            return None

    def all(self) -> Iterator[Engine]:
        """Every finished engine, the newest first. One that cannot be read is passed over."""
        found = []
        for file in self.root.glob(f"*/{manifests.FILE}"):
            if file.parent.name.startswith("."):
                continue
            try:
                found.append(Engine(file.parent, file.parent.name, manifests.read(file.parent)))
            except (BuildError, FileNotFoundError):
                continue
        yield from sorted(found, key=lambda engine: engine.manifest.built_at, reverse=True)

    def unfinished(self) -> list[Path]:
        """Folders that hold no finished engine: what an interruption left."""
        if not self.root.is_dir():
            return []
        return [p for p in sorted(self.root.iterdir()) if p.is_dir() and not (p / manifests.FILE).is_file()]

    def dropped_before(self, cpu: str) -> frozenset[str]:
        """Extensions that earlier builds on the same CPU model found not to work."""
        same = (engine.manifest for engine in self.all() if engine.manifest.cpu == cpu)
        return frozenset(name for manifest in same for name in manifest.dropped)

    def remove(self, key: str) -> None:
        """Take the manifest away first: what is half removed is no engine any more."""
        folder = self.root / key
        (folder / manifests.FILE).unlink(missing_ok=True)
        shutil.rmtree(folder)
