"""The main job on a real model: up, an answer, a look, a stop; and what happens when somebody is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import zipfile
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.engine.cli.conftest import Shell


@pytest.fixture
def quick(shell: Shell, smollm2: Path, free_port: int) -> str:
    """A profile of one small context on a port of its own."""
    return shell.profile(
        "quick",
        f'[model]\npath = "{smollm2}"\n[context]\nper_slot = "1k"\n[serve]\nport = {free_port}\n',
    )


def _gone(pid: int) -> bool:
    """A zombie counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _wait(condition, seconds: float) -> bool:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def test_up_serves_and_down_leaves_nothing(shell: Shell, quick: str, free_port: int) -> None:
    up = shell.run("up", quick, "-d")
    assert up.returncode == 0, up.stderr
    url = f"http://127.0.0.1:{free_port}"
    assert up.stdout == f"quick ready {url}\n"
    assert "curl" in up.stderr and url in up.stderr

    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False).json()
    assert answer["choices"][0]["message"]["content"]

    client = OpenAI(base_url=f"{url}/v1", api_key="none", http_client=httpx.Client(trust_env=False))
    reply = client.chat.completions.create(
        model="quick", messages=[{"role": "user", "content": "Count to three."}], max_tokens=8
    )
    assert reply.choices[0].message.content
    assert reply.model == "quick"

    asked = shell.run("ask", "quick", "Name a colour.", "--max-tokens", "8")
    assert asked.returncode == 0 and asked.stdout.strip()
    assert f"export OPENAI_BASE_URL={url}/v1" in shell.run("env", "quick").stdout

    status = json.loads(shell.run("status", "quick", "--json").stdout)
    assert (status["schema"], status["state"], status["context"]["per_slot"]) == (1, "ready", 1024)
    assert "quick  ready" in shell.run("ps").stdout

    again = shell.run("up", quick, "-d")
    assert again.returncode == 15 and "running already" in again.stderr

    pid = status["engine_pid"]
    assert shell.run("down", "quick").returncode == 0
    assert _wait(lambda: _gone(pid), 2)
    assert shell.run("status", "quick").returncode == 17


def test_the_foreground_stops_on_the_first_interrupt(shell: Shell, quick: str, free_port: int) -> None:
    process = shell.start("up", quick)
    url = f"http://127.0.0.1:{free_port}/health"

    def healthy() -> bool:
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    assert _wait(healthy, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_no_engine_survives_a_killed_supervisor(shell: Shell, quick: str) -> None:
    assert shell.run("up", quick, "-d").returncode == 0
    status = json.loads(shell.run("status", "quick", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    assert _wait(lambda: _gone(status["engine_pid"]), 2)
    up = shell.run("up", quick, "-d")  # the name and the port are free again
    assert up.returncode == 0, up.stderr


def test_a_taken_port_names_its_owner(shell: Shell, quick: str, free_port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port))
        other.listen()
        up = shell.run("up", quick, "-d")
    assert up.returncode == 16
    assert str(free_port) in up.stderr and str(os.getpid()) in up.stderr


def test_restart_brings_a_new_engine_to_the_same_address(shell: Shell, quick: str) -> None:
    assert shell.run("up", quick, "-d").returncode == 0
    before = json.loads(shell.run("status", "quick", "--json").stdout)
    assert shell.run("restart", "quick").returncode == 0
    after = json.loads(shell.run("status", "quick", "--json").stdout)
    assert after["engine_pid"] != before["engine_pid"]
    assert (after["url"], after["pid"]) == (before["url"], before["pid"])


def test_an_engine_that_dies_at_load_says_why(shell: Shell, smollm2: Path, free_port: int) -> None:
    """The header is whole, so that the plan goes through; the weights are cut off behind it."""
    broken = shell.folder / "broken.gguf"
    broken.write_bytes(smollm2.read_bytes())
    with broken.open("r+b") as file:
        file.seek(2_000_000)  # inside the tensor data: numbers that are no numbers
        file.write(b"\xff" * 1_000_000)
    profile = shell.profile(
        "broken",
        f'[model]\npath = "{broken}"\n[context]\nper_slot = 256\n[serve]\nport = {free_port}\n'
        '[engine]\nargs = ["--check-tensors"]\n',
    )
    up = shell.run("up", profile, "-d")
    assert up.returncode == 13, up.stderr
    assert "tensor" in up.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
        (b"not a model at all", "GGUF"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "broken.gguf"),
    ],
)
def test_what_is_no_model_is_refused_before_anything_starts(shell: Shell, content: bytes, words: str) -> None:
    (shell.folder / "broken.gguf").write_bytes(content)
    profile = shell.profile("broken", '[model]\npath = "broken.gguf"\n')
    for command in ("check", "up"):
        done = shell.run(command, profile)
        assert done.returncode == 10
        assert words in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_missing_model_names_what_lies_there(shell: Shell) -> None:
    (shell.folder / "other.gguf").write_bytes(b"GGUF")
    profile = shell.profile("p", '[model]\npath = "modle.gguf"\n')
    done = shell.run("up", profile)
    assert done.returncode == 10
    assert "modle.gguf" in done.stderr


def test_a_llamafile_is_served_by_our_engine(shell: Shell, smollm2: Path, free_port: int) -> None:
    """The container itself is refused by llama-server: its model is taken out once."""
    container = shell.folder / "model.llamafile"
    container.write_bytes(b"MZqFpD='" + b"\0" * 4096)
    with zipfile.ZipFile(container, "a", zipfile.ZIP_STORED) as archive:
        archive.write(smollm2, "weights.gguf")
    profile = shell.profile(
        "boxed", f'[model]\npath = "model.llamafile"\n[context]\nper_slot = 256\n[serve]\nport = {free_port}\n'
    )
    up = shell.run("up", profile, "-d")
    assert up.returncode == 0, up.stderr
    assert "weights.gguf out of model.llamafile" in up.stderr
    assert shell.run("down", "boxed").returncode == 0
    again = shell.run("up", profile, "-d")
    assert again.returncode == 0, again.stderr
    assert "weights.gguf" not in again.stderr
