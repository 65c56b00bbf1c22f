from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from launcher.errors import BuildError
from launcher.fetch import download as module
from launcher.fetch.download import download
from launcher.fetch.index import RemoteFile
from launcher.fetch.settings import IndexSettings

from .server import Site, serve

BODY = os.urandom(700_000)
SHA = hashlib.sha256(BODY).hexdigest()
NOWHERE = IndexSettings(())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def remote(site: Site, *, size: int | None = len(BODY), sha256: str | None = SHA) -> RemoteFile:
    return RemoteFile(f"{site.url}/f", "file.bin", size, sha256)


def site() -> Site:
    return Site({"/f": ("application/octet-stream", BODY)})


def test_whole_and_verified_with_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with serve(site()) as s:
        path = download(remote(s), tmp_path, progress=lambda here, total: told.append((here, total)), settings=NOWHERE)
    assert path.read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert not list(tmp_path.glob("*.part"))


def test_what_is_here_is_not_asked_for_again(tmp_path: Path) -> None:
    with serve(site()) as s:
        download(remote(s), tmp_path, settings=NOWHERE)
        download(remote(s), tmp_path, settings=NOWHERE)
        assert len(s.asked) == 1


def test_a_transfer_that_breaks_off_goes_on_from_there(tmp_path: Path) -> None:
    s = site()
    s.breaks_after = 300_000
    with serve(s):
        assert download(remote(s), tmp_path, settings=NOWHERE).read_bytes() == BODY
    assert s.asked[0][1] is None
    assert s.asked[1][1] is not None and s.asked[1][1] != "bytes=0-"


def test_an_earlier_runs_part_is_used(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    with serve(site()) as s:
        assert download(remote(s), tmp_path, settings=NOWHERE).read_bytes() == BODY
        assert s.asked == [("/f", "bytes=1000-")]


def test_a_server_that_cannot_resume_sends_all_again(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    s = site()
    s.ranges = False
    with serve(s):
        assert download(remote(s), tmp_path, settings=NOWHERE).read_bytes() == BODY


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_part_that_is_too_long_is_thrown_away(tmp_path: Path, size: int | None) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY + b"more")
    with serve(site()) as s:
        assert download(remote(s, size=size), tmp_path, settings=NOWHERE).read_bytes() == BODY


def test_another_content_is_refused_and_removed(tmp_path: Path) -> None:
    with serve(site()) as s, pytest.raises(BuildError, match="is not the expected file"):
        download(remote(s), tmp_path, sha256="0" * 64, settings=NOWHERE)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == []


def test_a_busy_server_is_asked_again_a_missing_file_is_not(tmp_path: Path) -> None:
    s = site()
    s.status["/f"] = [503, 429]
    with serve(s):
        assert download(remote(s), tmp_path, settings=NOWHERE).is_file()
        gone = RemoteFile(f"{s.url}/gone", "gone.bin", None, None)
        with pytest.raises(BuildError, match="answers 404"):
            download(gone, tmp_path, settings=NOWHERE)
    assert [path for path, _ in s.asked] == ["/f", "/f", "/f", "/gone"]


def test_no_network_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot fetch file\.bin") as caught:
        download(RemoteFile("http://127.0.0.1:9/f", "file.bin", None, None), tmp_path, settings=NOWHERE)
    assert "kept" in caught.value.help


def test_a_file_url_is_copied(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a b.bin").write_bytes(BODY)
    source = RemoteFile((tmp_path / "from" / "a b.bin").as_uri(), "a b.bin", len(BODY), SHA)
    assert download(source, tmp_path / "to").read_bytes() == BODY


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_fetch", full)
    with pytest.raises(BuildError, match="no space left") as caught:
        download(RemoteFile("http://x.test/f", "f", 10, None), tmp_path)
    assert caught.value.code == 12 and "What has arrived is kept" in caught.value.help
