"""Which file a PROFILE on the command line means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.errors import ProfileError
from launcher.paths import places, shipped
from launcher.profile.bad import near

SYSTEM = Path("/etc/kvlaunch")


def is_path(ref: str) -> bool:
    """A reference with a `/` or ending in `.toml` is a path; any other is a name."""
    return "/" in ref or ref.endswith(".toml")


def directories(environ: Mapping[str, str] | None = None, *, here: Path | None = None) -> tuple[Path, ...]:
    """Where profiles are looked for by name, the nearest first."""
    config = places(environ).config
    return (here or Path(), config, config / "profiles", SYSTEM, shipped("profiles"))


def list_profiles(environ: Mapping[str, str] | None = None, *, here: Path | None = None) -> Iterator[Path]:
    """Every profile that a name reaches."""
    seen = set()
    for directory in directories(environ, here=here):
        try:
            found = sorted(directory.glob("*.toml"))
        except OSError:
            continue
        for path in found:
            # the working directory may hold a pyproject.toml, which nobody means
            if path.stem not in seen and path.name != "pyproject.toml":
                seen.add(path.stem)
                yield path


def find_profile(ref: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Path:
    """The file of PROFILE, as it will be shown to people: a path as given, a name where it was found."""
    if isinstance(ref, os.PathLike) or is_path(ref):
        return Path(ref)
    for directory in directories(environ):
        path = directory / f"{ref}.toml"
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # a name too long, or with a NUL in it
            break
    known = [path.stem for path in list_profiles(environ)]
    meant = near(ref, known)
    looked = ", ".join(str(directory) for directory in directories(environ))
    raise ProfileError(
        f'there is no profile "{ref[:80]}"',
        help=f"did you mean {meant}?" if meant else f"looked for {ref[:80]}.toml in {looked}",
        rule="KV012",
    )
