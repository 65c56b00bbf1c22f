"""A small HTTP server for the tests beside it: answers from a table, keeps what was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """`pages`: path to (content type, body). `breaks_after`: the next whole answer ends after so many bytes."""

    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    ranges: bool = True
    breaks_after: int | None = None
    status: dict[str, list[int]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


def _handler(site: Site) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            if codes := site.status.get(self.path):
                self.send_error(codes.pop(0))
                return
            if self.path not in site.pages:
                self.send_error(404)
                return
            content_type, body = site.pages[self.path]
            start = 0
            if wanted and site.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = len(body)
            if site.breaks_after is not None:
                end, site.breaks_after = start + site.breaks_after, None
            self.wfile.write(body[start:end])
            if end < len(body):
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    return Handler
