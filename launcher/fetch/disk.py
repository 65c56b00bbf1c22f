"""What lies on the disk already, and what a disk that refuses means. No network: this is imported on every start."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path

from launcher.errors import BuildError
from launcher.units import format_bytes


def is_here(path: Path, sha256: str | None) -> bool:
    """Whether the file lies there whole. Without a hash to compare, being there is enough: it was moved in whole."""
    return path.is_file() and (sha256 is None or hash_file(path) == sha256)


def hash_file(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def disk_error(error: OSError, folder: Path, need: int | None = None, *, resumes: bool = False) -> BuildError:
    """What an OSError of writing into `folder` means to a person; `resumes`: what was written so far is of use."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        there = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
        free = format_bytes(shutil.disk_usage(there).free)
        wanted = f", {format_bytes(need)} needed" if need else ""
        rest = "What has arrived is kept; the next try goes on from there." if resumes else "Nothing half is kept."
        return BuildError(
            f"no space left for {folder}: {free} free{wanted}",
            help=f"Free some space, or point XDG_CACHE_HOME and XDG_DATA_HOME to another disk. {rest}",
        )
    return BuildError(f"cannot write in {folder}: {error.strerror or error}")
