"""Takes the GGUF out of a llamafile, once: `llama-server` refuses the container."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from launcher.errors import BuildError
from launcher.model.llamafile import Member, find_member
from launcher.units import format_bytes

_CHUNK = 1 << 22


def model_member(path: Path) -> Member | None:
    """The GGUF that a container carries; None for a file that is a model itself. Raises ProfileError (llamafile.py)."""
    with path.open("rb") as file:
        head = file.read(8)
        return None if head.startswith(b"GGUF") else find_member(path, file, head)


def place_for(path: Path, member: Member, cache: Path) -> Path:
    """Where the model of this very container lies once it has been taken out."""
    stat = path.stat()
    stamp = hashlib.sha256(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{member.name}".encode()).hexdigest()
    return cache / "models" / f"{path.stem}-{stamp[:12]}.gguf"


def take_out(path: Path, member: Member, target: Path, progress: Callable[[int, int | None], None]) -> None:
    """Copy the member to `target`: whole or not at all. Raises BuildError (12) where the disk doesn't take it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < member.size:
        raise BuildError(
            f"{path} carries a model of {format_bytes(member.size)}, but {target.parent} has {format_bytes(free)} free",
            help="free some space, move the cache (XDG_CACHE_HOME), or unpack it yourself and give model.path",
        )
    part = target.with_suffix(".part")
    try:
        with path.open("rb") as source, part.open("wb") as out:
            source.seek(member.offset)
            done = 0
            while done < member.size:
                chunk = source.read(min(_CHUNK, member.size - done))
                if not chunk:
                    raise BuildError(f"{path} ended while its model was read: it is being changed")
                out.write(chunk)
                done += len(chunk)
                progress(done, member.size)
        part.replace(target)
    except OSError as error:
        raise BuildError(
            f"cannot write {target}: {error.strerror}", help="free some space, or move the cache"
        ) from error
    finally:
        part.unlink(missing_ok=True)
