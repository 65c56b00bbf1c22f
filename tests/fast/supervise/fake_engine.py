"""Stands in for llama-server where a real one can't show the fault: speaks its routes and its log, and misbehaves.

Behaviour comes from the folder named by FAKE_FOLDER, read anew for each request. Files in it: `hang` (the queue hangs,
health says ok), `slow` (it loads for as long as the file is there), `busy` (a slot is processing, and its counter
stands at what is written there), `no-token`, `eat` (once, 256 MiB of memory), `at-start` (what to write and how to
exit instead of serving: the exit code on the first line).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["FAKE_FOLDER"])


def value(option: str, default: str) -> str:
    return sys.argv[sys.argv.index(option) + 1] if option in sys.argv else default


def say(text: str, level: str = "info") -> None:
    print(json.dumps({"type": "log", "time": 1, "level": level, "msg": text + "\n"}), flush=True)


def asked(what: str) -> bool:
    return (FOLDER / what).exists()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"

    def send(self, data: object, code: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def queue(self) -> None:
        while asked("hang"):
            time.sleep(0.05)
        if asked("eat"):
            (FOLDER / "eat").rename(FOLDER / "eaten")
            print(len(b"x" * (256 << 20)), flush=True)

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.send({"status": "ok"})
        self.queue()
        if self.path == "/props":
            return self.send({"total_slots": 1, "model_alias": value("--alias", "m")})
        slot = {"id": 0, "n_ctx": int(value("-c", "512")), "is_processing": asked("busy"), "id_task": 1}
        if asked("busy"):
            slot["n_prompt_tokens_processed"] = int((FOLDER / "busy").read_text() or 0)
        return self.send([slot])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.queue()
        self.send({"tokens_predicted": 0 if asked("no-token") else 1})


class OnListener(ThreadingHTTPServer):
    """Serves on a socket that is bound already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket = listener


def listeners() -> list[socket.socket]:
    found = [socket.socket(fileno=int(number)) for number in value("--listen-fd", "").split(",") if number]
    for host in value("--host", "").split(","):
        if host.endswith(".sock"):
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(host)
            unix.listen()
            found.append(unix)
        elif host and not found:
            tcp = socket.create_server((host, int(value("--port", "0"))))
            found.append(tcp)
    return found


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))  # no request of a test takes long: nothing to finish
    if asked("at-start"):
        code, *lines = (FOLDER / "at-start").read_text().splitlines()
        for line in lines:
            print(line, file=sys.stderr, flush=True)
        sys.exit(int(code))
    while asked("slow"):
        say("loading")
        time.sleep(0.2)
    say("load_tensors:   CPU_Mapped model buffer size =    1.00 MiB")
    say("llama_kv_cache:        CPU KV buffer size =    2.00 MiB")
    servers = [OnListener(listener) for listener in listeners()]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say("srv  llama_server: model loaded")
    say("srv  llama_server: listening on it")
    servers[0].serve_forever()


main()
