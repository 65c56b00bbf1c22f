from __future__ import annotations

import asyncio

import pytest

from launcher.supervise.http1 import Answer, Endpoint, NoAnswer


def ask(raw: bytes, *, key: str | None = None, limit: float = 2.0, hold: bool = False) -> tuple[Answer | str, bytes]:
    """What the client makes of this answer, and what it had sent."""

    async def live() -> tuple[Answer | str, bytes]:
        seen = bytearray()
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.extend(await reader.readuntil(b"\r\n\r\n"))
            writer.write(raw)
            if hold:
                await over.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], key)
        try:
            return await endpoint.get("/x", limit), bytes(seen)
        except NoAnswer as error:
            return str(error), bytes(seen)
        finally:
            over.set()
            server.close()

    return asyncio.run(live())


def test_a_length_and_chunks_and_neither() -> None:
    assert ask(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")[0] == Answer(200, b"hi")
    chunked = b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3;e=1\r\n ho\r\n0\r\n\r\n"
    assert ask(chunked)[0] == Answer(503, b"hi ho")
    assert ask(b"HTTP/1.1 200 OK\r\n\r\nto the end")[0] == Answer(200, b"to the end")


def test_the_key_goes_along() -> None:
    assert b"Authorization: Bearer sesame\r\n" in ask(b"HTTP/1.1 200 OK\r\n\r\n", key="sesame")[1]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_is_said_to_be_none(raw: bytes) -> None:
    assert isinstance(ask(raw)[0], str)


def test_silence_has_a_limit() -> None:
    assert ask(b"", hold=True, limit=0.1)[0] == "no answer to /x within 0.1 s"


def test_nobody_there() -> None:
    with pytest.raises(NoAnswer):
        asyncio.run(Endpoint("127.0.0.1", 1).get("/health", 1.0))
    with pytest.raises(NoAnswer, match="no JSON"):
        Answer(200, b"<html>").json()
