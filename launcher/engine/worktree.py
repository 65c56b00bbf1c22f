"""The patched source beside its build folder: kept between builds, so that a build recompiles only what changed.

Only files whose content is to change are written, whole and by rename. Whatever else is found in the tree (an edit
by hand, a stray file) is put right first: an engine is exactly what its key says.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.engine import patching
from launcher.engine.series import Patch, split_header
from launcher.errors import BuildError
from launcher.fetch.disk import disk_error


@dataclass(frozen=True, slots=True)
class Patched:
    """What a choice of patches makes of the pin: the content of each file it touches, None for one it removes."""

    files: dict[str, bytes | None]
    modes: dict[str, int]


def patch_all(source: Path, patches: Sequence[Patch]) -> Patched:
    """Apply every patch in memory. Raises BuildError that names every failing file and hunk."""
    patched, failures = try_all(source, patches)
    if failures:
        count = len({f.patch for f in failures})
        raise BuildError(
            f"{count} of {len(patches)} patches do not apply to the pin; nothing was changed:\n  "
            + "\n  ".join(map(str, failures)),
            help="`kvlaunch patches open DIR` makes commits of the patches; mend them there, then `patches save DIR`.",
        )
    return patched


def try_all(source: Path, patches: Sequence[Patch]) -> tuple[Patched, list[patching.Failure]]:
    """The same without raising: what applies, and all that does not."""

    def read(path: str) -> bytes | None:
        file = source / path
        inside = file.resolve().is_relative_to(source.resolve())
        return file.read_bytes() if inside and file.is_file() else None

    tree = patching.Tree(read)
    failures: list[patching.Failure] = []
    for patch in patches:
        failures += patching.apply(tree, patch.path.name, split_header(patch.text)[1])
    for path in tree.files:
        if not (source / path).resolve().is_relative_to(source.resolve()):
            failures.append(patching.Failure("", path, 0, 0, "leads out of the tree"))
    return Patched(tree.files, tree.modes), failures


def sync(source: Path, patched: Patched, tree: Path) -> int:
    """Make `tree` the patched `source`; gives the number of files that had to be written or removed."""
    record = tree.with_name(tree.name + ".json")
    try:
        return _sync(source, patched, tree, record)
    except OSError as error:
        raise disk_error(error, tree.parent) from error


def _sync(source: Path, patched: Patched, tree: Path, record: Path) -> int:
    tree.mkdir(parents=True, exist_ok=True)
    try:
        known: dict[str, list[object]] = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    record.unlink(missing_ok=True)  # an interrupted sync is then seen, and everything compared anew
    wanted = dict.fromkeys(_files(source), "")
    wanted |= {path: hashlib.sha256(data).hexdigest() for path, data in patched.files.items() if data is not None}
    for path in (path for path, data in patched.files.items() if data is None):
        wanted.pop(path, None)

    changed = 0
    for path in _files(tree):
        if path not in wanted:
            (tree / path).unlink()
            changed += 1
    for path, origin in wanted.items():
        file = tree / path
        if path in known and known[path] == [*_stamp(file), origin]:
            continue
        data = patched.files[path] if origin else (source / path).read_bytes()
        assert data is not None
        if path in known or not file.is_file() or file.read_bytes() != data:
            _write(file, data, patched.modes.get(path) or _mode(source / path))
            changed += 1
    record.write_text(json.dumps({path: [*_stamp(tree / path), origin] for path, origin in wanted.items()}))
    return changed


def _write(file: Path, data: bytes, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(data)
    fresh.chmod(mode)
    fresh.replace(file)


def _mode(file: Path) -> int:
    return file.stat().st_mode & 0o777 if file.exists() else 0o644


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return (0, -1)
    return stat.st_mtime_ns, stat.st_size


def _files(root: Path) -> list[str]:
    return [os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names]  # noqa: PTH118


def discard(tree: Path) -> None:
    """Remove a kept tree and its record."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.with_name(tree.name + ".json").unlink(missing_ok=True)
