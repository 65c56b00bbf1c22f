"""One file onto the disk: resumed where it broke off, verified, moved into place whole. Nothing is fetched twice."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from filelock import FileLock

from launcher.errors import BuildError
from launcher.fetch.disk import disk_error, hash_file, is_here
from launcher.fetch.index import RemoteFile
from launcher.fetch.settings import IndexSettings, load_settings
from launcher.fetch.transport import open_client, redacted
from launcher.units import format_bytes

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here and the size, where it is known."""

_CHUNK = 1 << 18
_ATTEMPTS = 4


def download(
    remote: RemoteFile,
    into: Path,
    *,
    sha256: str | None = None,
    progress: Progress = lambda here, total: None,
    settings: IndexSettings | None = None,
) -> Path:
    """`remote` as a file in the folder `into`. What lies there already with the right hash is taken, offline.

    Raises BuildError: network, disk, or a hash that is not the expected one (the file is then removed).
    """
    expected = sha256 or remote.sha256
    target = into / remote.filename
    into.mkdir(parents=True, exist_ok=True)
    with FileLock(into / f".{remote.filename}.lock"):
        if is_here(target, expected):
            return target
        part = target.with_name(target.name + ".part")
        try:
            _fetch(remote, part, progress, settings)
        except OSError as error:
            raise disk_error(error, into, remote.size, resumes=True) from error
        found = hash_file(part)
        if expected is not None and found != expected:
            part.unlink()
            raise BuildError(
                f"{remote.filename} is not the expected file: sha256 {found}, expected {expected}",
                help=f"Fetched from {redacted(remote.url)}. A mirror or proxy answers with something else.",
            )
        part.replace(target)
    return target


def _fetch(remote: RemoteFile, part: Path, progress: Progress, settings: IndexSettings | None) -> None:
    parts = urlsplit(remote.url)
    if parts.scheme == "file":
        shutil.copyfile(unquote(parts.path), part)
        progress(part.stat().st_size, part.stat().st_size)
        return
    with open_client(settings or load_settings()) as client:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _stream(client, remote, part, progress)
                return
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status < 500 and status != 429:
                    raise BuildError(f"{redacted(remote.url)} answers {status}") from error
                failure: httpx.HTTPError = error
            except httpx.HTTPError as error:
                failure = error
            if attempt == _ATTEMPTS:
                raise BuildError(
                    f"cannot fetch {remote.filename}: {redacted(str(failure)) or type(failure).__name__}",
                    help="What has arrived is kept; the next try goes on from there.",
                ) from failure
            time.sleep(2.0 ** (attempt - 1))


def _stream(client: httpx.Client, remote: RemoteFile, part: Path, progress: Progress) -> None:
    here = part.stat().st_size if part.exists() else 0
    if remote.size is not None and here >= remote.size:
        if here == remote.size:
            return
        part.unlink()  # longer than the whole: of another file
        here = 0
    # identity: a transfer that is compressed on the way cannot be resumed by its length
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
    with client.stream("GET", remote.url, headers=headers) as response:
        if response.status_code == 416:  # the rest is empty, or what we have is no beginning of it
            part.unlink(missing_ok=True)
            raise httpx.ReadError("the server cannot resume", request=response.request)
        response.raise_for_status()
        if response.status_code != 206:
            here = 0
        length = response.headers.get("content-length")
        total = remote.size or (here + int(length) if length else None)
        with part.open("ab" if here else "wb") as file:
            for chunk in response.iter_bytes(_CHUNK):
                file.write(chunk)
                here += len(chunk)
                progress(here, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and here < total:
        raise httpx.ReadError(f"broke off after {format_bytes(here)} of {format_bytes(total)}")
