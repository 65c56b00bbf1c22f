"""The counting of instructions: what the counters write, which one is taken, and the lives of the servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.bench.instructions import LONG, SHORT, Counted, Counter, count, find_counter

# a server whose instructions are known: 1000 for its life, 10 for a token read, 70 for one written, 9 for a question
SERVER = """
import http.server, json, os, signal, sys
taken = 1000
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.do_POST()
    def do_POST(self):
        global taken
        taken += 9
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path == "/completion":
            assert self.headers["Connection"] == "close"
            taken += 10 * len(body["prompt"]) + 70 * body["n_predict"] - 9
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *args): pass
def end(*_):
    with open(os.environ["COUNT"], "w") as file:
        file.write(str(taken))
    os._exit(0)
signal.signal(signal.SIGTERM, end)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
print("srv  main: model loaded", flush=True)
server.serve_forever()
"""


def program(folder: Path, name: str, text: str, interpreter: str = "/bin/sh") -> Path:
    file = folder / name
    file.write_text(f"#!{interpreter}\n{text}")
    file.chmod(0o755)
    return file


def test_the_lives_of_a_server_give_what_a_token_takes(tmp_path: Path) -> None:
    server = program(tmp_path, "server", SERVER, sys.executable)
    counter = Counter("ours", lambda out: ["env", f"COUNT={out}"], int, None)
    found = count(server, tmp_path / "m.gguf", counter, list(range(100, 164)))
    assert found.short == found.again == 1000 + 10 * SHORT.read + 70 * SHORT.written
    assert {kind: found.per_token(kind) for kind in LONG} == {"prefill": 10, "decode": 70}


def test_an_engine_that_dies_is_said(tmp_path: Path) -> None:
    server = program(tmp_path, "server", "echo no such model; exit 3\n")
    counter = Counter("ours", lambda out: ["env"], int, None)
    with pytest.raises(RuntimeError, match="no such model"):
        count(server, tmp_path / "m.gguf", counter, [1] * 64)


def test_what_is_common_drops_out() -> None:
    assert Counted(500, 500, {"prefill": 500 + 16 * 3, "decode": 500 + 8 * 7}).per_token("prefill") == 3


PERF = 'while [ "$1" != -o ]; do shift; done; echo "{written}" > "$2"\n'
VALGRIND = 'for a; do case $a in --cachegrind-out-file=*) echo "{written}" > "${{a#*=}}";; esac; done\n'


@pytest.mark.parametrize(
    ("perf", "valgrind", "taken"),
    [
        ("1234,,instructions:u,5,100.00,,", "events: Ir\nsummary: 99", "perf"),
        ("<not supported>,,instructions:u,0,100.00,,", "events: Ir\nsummary: 99", "valgrind"),
        ("<not counted>,,instructions:u,0,100.00,,", "", None),
        ("", "summary: 0", None),
        (None, "summary: 99", "valgrind"),
        (None, None, None),
    ],
)
def test_the_cpus_counters_before_valgrind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, perf: str | None, valgrind: str | None, taken: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    for name, script, written in (("perf", PERF, perf), ("valgrind", VALGRIND, valgrind)):
        if written is not None:
            program(tmp_path, name, script.format(written=written))
    found = find_counter()
    assert (found.name if found else None) == taken


def test_valgrind_is_for_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    program(tmp_path, "valgrind", VALGRIND.format(written="summary: 99"))
    assert find_counter() is None
