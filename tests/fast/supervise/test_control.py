from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import KvlaunchError, NotRunning
from launcher.supervise import control
from launcher.supervise.client import Client
from launcher.supervise.control import Control, Feed
from launcher.supervise.journal import Journal


def test_a_follower_that_does_not_read_loses_the_oldest_and_is_told() -> None:
    async def live() -> list[dict[str, Any]] | None:
        feed = Feed()
        for n in range(control._FOLLOWER_LINES + 5):
            feed.put({"n": n})
        return await feed.batch()

    lines = asyncio.run(live())
    assert lines is not None
    assert lines[0] == {"dropped": 5}
    assert lines[1] == {"n": 5}


def test_a_closed_feed_gives_what_it_has_and_ends() -> None:
    async def live() -> list[object]:
        feed = Feed([{"n": 1}])
        feed.close()
        return [await feed.batch(), await feed.batch()]

    assert asyncio.run(live()) == [[{"n": 1}], None]


def test_events_are_numbered_and_followers_let_go_of() -> None:
    async def live() -> None:
        journal = Journal("a")
        journal.add("state", state="ready")
        journal.add("progress", keep=False, fraction=0.5)
        follower = journal.feed(follow=True, since=0)
        assert [event["seq"] for event in await follower.batch() or ()] == [1]
        journal.add("state", state="stopped")
        assert [event["state"] for event in await follower.batch() or ()] == ["stopped"]
        follower.close()
        assert not journal._feeds
        assert [event["seq"] for event in await journal.feed(follow=False, since=1).batch() or ()] == [3]

    asyncio.run(live())


def served(talk: Any) -> Any:
    """Run `talk(path)` in a thread against a control socket that echoes."""

    async def live(folder: Path) -> Any:
        async def answer(request: dict[str, Any]) -> dict[str, Any]:
            if request.get("do") == "status":
                return {"ok": True, "status": {"name": "a"}}
            return {"ok": False, "error": "unknown"}

        there = Control(folder / "a.sock", folder / "b.sock", answer, lambda request: None)
        await there.open()
        assert (folder / "a.sock").stat().st_mode & 0o077 == 0
        try:
            return await asyncio.to_thread(talk, folder / "a.sock")
        finally:
            await there.close()
            assert not (folder / "a.sock").exists()

    with tempfile.TemporaryDirectory(prefix="kv-") as home:  # pytest's own folders make socket paths too long
        return asyncio.run(live(Path(home)))


def test_question_and_answer() -> None:
    assert served(lambda path: Client(path, "a").status()) == {"name": "a"}
    with pytest.raises(KvlaunchError, match="unknown"):
        served(lambda path: Client(path, "a").restart())


def test_what_is_no_request_is_answered_as_such() -> None:
    def talk(path: Path) -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return sock.recv(4096)

    assert b'"ok": false' in served(talk)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="a is not running"):
        Client(tmp_path / "none.sock", "a").status()


def test_the_second_place_is_taken_when_the_first_cannot_be() -> None:
    async def live(folder: Path) -> Path | None:
        (folder / "file").write_text("")
        there = Control(folder / "file" / "a.sock", folder / "b.sock", None, None)  # type: ignore[arg-type]
        await there.open()
        path = there.path
        await there.close()
        return path

    with tempfile.TemporaryDirectory(prefix="kv-") as home:
        path = asyncio.run(live(Path(home)))
    assert path is not None
    assert path.name == "b.sock"
