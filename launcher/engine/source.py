"""The pinned source on the disk: fetched, checked, unpacked once, never changed afterwards."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath

from filelock import FileLock

from launcher.engine.pins import Pin
from launcher.engine.report import Reporter
from launcher.errors import BuildError
from launcher.fetch.disk import disk_error, is_here
from launcher.fetch.download import download
from launcher.fetch.index import RemoteFile, find_file
from launcher.fetch.settings import load_settings
from launcher.paths import Places
from launcher.units import format_bytes


def pristine(pin: Pin, places: Places, report: Reporter, *, from_git: bool = False) -> Path:
    """The folder with the pin's tree as its authors published it. Raises BuildError."""
    origin = "git" if from_git else pin.sha256[:12]
    folder = places.cache / "sources" / f"{pin.name}-{origin}"
    if folder.is_dir():  # it was moved in whole
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if folder.is_dir():
            return folder
        if from_git:
            _clone(pin, folder, report)
        else:
            _unpack(pin, fetch(pin, places, report), folder, report)
    return folder


def fetch(pin: Pin, places: Places, report: Reporter) -> Path:
    """The pin's archive, from the cache or from the package index."""
    begin = time.monotonic()
    into = places.cache / "downloads"
    report.stage("fetch", f"{pin.package} {pin.version}", pin.size)
    if is_here(into / pin.filename, pin.sha256):
        report.done("fetch", time.monotonic() - begin, "already here")
        return into / pin.filename
    settings = load_settings()
    remote = find_file(pin.package, pin.version, filename=pin.filename, kind="sdist", settings=settings)
    remote = RemoteFile(remote.url, pin.filename, pin.size, pin.sha256)

    def progress(here: int, total: int | None) -> None:
        report.progress(here / pin.size, f"{format_bytes(here)} of {format_bytes(total or pin.size)}")

    path = download(remote, into, sha256=pin.sha256, progress=progress, settings=settings)
    report.done("fetch", time.monotonic() - begin, "sha256 is right")
    return path


def _unpack(pin: Pin, archive: Path, folder: Path, report: Reporter) -> None:
    begin = time.monotonic()
    report.stage("unpack", pin.filename, archive.stat().st_size)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        try:
            count = _extract(pin, archive, Path(scratch))
        except OSError as error:
            raise disk_error(error, folder.parent) from error
        if not (Path(scratch) / "tree" / "CMakeLists.txt").is_file():
            raise BuildError(f"{archive} has no {pin.folder}/CMakeLists.txt: not the source of an engine")
        (Path(scratch) / "tree").rename(folder)
    report.done("unpack", time.monotonic() - begin, f"{count} files")


def _extract(pin: Pin, archive: Path, scratch: Path) -> int:
    """The plain files below the pin's folder. Written by us and not by tarfile: no link, no device, no path that
    leads out, whatever the archive says (tarfile's filters came with 3.11.4)."""
    count = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                if len(parts) < 3 or parts[1] != pin.folder or ".." in parts or not member.isfile():
                    continue
                inner = "/".join(parts[2:])
                if inner.startswith(pin.omit):
                    continue
                target = scratch / "tree" / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # it is a file
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
                target.chmod(0o755 if member.mode & 0o100 else 0o644)
                count += 1
    except (tarfile.TarError, EOFError) as error:
        raise BuildError(f"{archive} cannot be unpacked: {error}", help="Remove it and build again.") from error
    return count


def _clone(pin: Pin, folder: Path, report: Reporter) -> None:
    if pin.git is None:
        raise BuildError(f"the pin {pin.name} names no git repository")
    begin = time.monotonic()
    report.stage("clone", f"{pin.git.url} {pin.git.tag}")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        tree = Path(scratch) / "tree"
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", pin.git.tag, pin.git.url, str(tree)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise BuildError("git is not here", help="Install git, or build from the package (the default).") from error
        if done.returncode:
            raise BuildError(f"cannot clone {pin.git.url} at {pin.git.tag}: {done.stderr.strip()}")
        shutil.rmtree(tree / ".git")
        for skipped in pin.omit:
            shutil.rmtree(tree / skipped, ignore_errors=True)
        tree.rename(folder)
    report.done("clone", time.monotonic() - begin)
