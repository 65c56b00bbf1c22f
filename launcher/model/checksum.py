"""SHA-256 of large files, computed once and remembered by size and modification time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from launcher.fetch.disk import hash_file


def sha256_of(path: Path, memory: Path) -> str:
    """The hex digest of `path`. `memory` is a directory where it is kept: a model is read through only once."""
    stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns]
    note = memory / (hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32] + ".json")
    try:
        known = json.loads(note.read_text())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never computed, or the note is damaged: compute
    digest = hash_file(path)
    memory.mkdir(parents=True, exist_ok=True)
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"path": str(path), "stamp": stamp, "sha256": digest}))
    part.replace(note)
    return digest
