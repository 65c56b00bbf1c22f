"""The measuring program's lines, and how it is run."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from launcher.errors import BuildError, EngineRefused, GaveUp, KvlaunchError, UsageError
from launcher.machine.engine_copies import measure, read_output
from launcher.machine.engine_process import check_worker, list_devices, with_workers
from launcher.machine.types import Device, Machine

LINES = (
    "some backend says hello\n"
    '{"device": "RPC0", "description": "h:1", "memory_total": 5, "memory_free": 4, "latency_us": 58.3, "copies": ['
    '{"bytes": 1048576, "direction": "h2d", "host": "pageable", "gbps": 2.6245, "best": 3.3, "runs": 38}]}\n'
    '{"device": "Vulkan0", "description": "x", "memory_total": 5, "memory_free": 4, "error": "cannot allocate"}\n'
    '{"device": "host", "threads": 2, "read_gbps": 33.983, "best": 49.7, "runs": 66, "sum": 1}\n'
)


def script(folder: Path, body: str) -> Path:
    path = folder / "kvlaunch-bandwidth"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_lines() -> None:
    (rpc, vulkan), host = read_output(LINES)
    assert (rpc.device, rpc.latency_us, rpc.error) == ("RPC0", 58.3, None)
    assert (rpc.copies[0].size, rpc.copies[0].gbps, rpc.copies[0].runs) == (1 << 20, 2.6245, 38)
    assert (vulkan.copies, vulkan.error) == ((), "cannot allocate")
    assert host is not None
    assert (host.gbps, host.threads) == (33.983, 2)


@pytest.mark.parametrize("line", ["{", '{"device": 3}', '{"device": "RPC0"}', '{"device": "host", "threads": null}'])
def test_lines_that_are_not_the_program_s(line: str) -> None:
    with pytest.raises(KvlaunchError, match="printed what cannot be read"):
        read_output(line)


def test_what_it_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as worker:
        endpoint = f"127.0.0.1:{worker.getsockname()[1]}"
        program = script(tmp_path, f'echo "$@" > {tmp_path}/args; env > {tmp_path}/env')
        environ = {"PATH": os.environ["PATH"], "LLAMA_ARG_CTX_SIZE": "1", "VK_ICD_FILENAMES": "x", "SECRET": "s"}
        measure(program, rpc=[endpoint], devices=["RPC0"], sizes=[1 << 20, 64 << 20], seconds=0.5, environ=environ)
    expected = f"--rpc {endpoint} --seconds 0.5 --device RPC0 --sizes 1,64 --host\n"
    assert (tmp_path / "args").read_text() == expected
    passed = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert passed["GGML_NO_BACKTRACE"] == "1"
    assert passed["VK_ICD_FILENAMES"] == "x"
    assert not {"LLAMA_ARG_CTX_SIZE", "SECRET"} & set(passed)


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("echo why >&2; exit 2", EngineRefused, "ended with 2: why"),
        ("kill -ABRT $$", EngineRefused, "was killed by signal 6: it said nothing"),
        ("exec sleep 30", GaveUp, "did not end within 0.3 s"),
    ],
)
def test_bad_ends(tmp_path: Path, body: str, error: type[KvlaunchError], words: str) -> None:
    with pytest.raises(error, match=words):
        measure(script(tmp_path, body), timeout=0.3 if error is GaveUp else 20.0)


def test_a_device_that_failed_is_no_bad_end(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(LINES)
    found, _ = measure(script(tmp_path, f"cat {tmp_path}/lines; exit 1"))
    assert [entry.device for entry in found] == ["RPC0", "Vulkan0"]


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="there is no"):
        measure(tmp_path / "gone")
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(EngineRefused, match="cannot run"):
        measure(tmp_path / "text")


@pytest.mark.parametrize("endpoint", ["", "x", "host:", ":1", "host:0", "host:65536", "host:٣", "host:99999999999"])
def test_addresses_that_are_none(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is no rpc worker's address"):
        check_worker(endpoint)


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_worker(f"127.0.0.1:{port}")
    with pytest.raises(EngineRefused, match=f"no rpc worker answers at 127.0.0.1:{port}: "):
        check_worker(f"127.0.0.1:{port}", timeout=1.0)
    with pytest.raises(EngineRefused, match="no rpc worker answers"):
        check_worker("a..b:80")


def test_the_engine_s_list_with_several_workers(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text('#!/bin/sh\necho "Available devices:"\necho "$@"\n')
    server.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (f"127.0.0.1:{s.getsockname()[1]}" for s in (one, two))
        assert list_devices(server) == "Available devices:\n--list-devices\n"
        assert list_devices(server, rpc=[first]) == f"Available devices:\n--rpc {first} --list-devices\n"
        assert (
            list_devices(server, rpc=[first, second]) == f"Available devices:\n--rpc {first},{second} --list-devices\n"
        )


def test_a_program_that_is_no_server_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="lists no devices: is it a llama-server"):
        list_devices(script(tmp_path, "exit 0"))


def test_the_workers_of_a_profile(tmp_path: Path) -> None:
    """Known: left alone. Answering: merged in. Not answering: a note, and the machine as it was."""
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\necho 'Available devices:'\necho '  RPC0: h:1 (1024 MiB, 1000 MiB free)'\n")
    server.chmod(0o755)
    known = Machine(devices=(Device(id="RPC0", name="recorded"),))
    assert with_workers(known, tmp_path / "gone", ["h:1"]) is known
    assert with_workers(Machine(), tmp_path / "gone", []) == Machine()
    with socket.create_server(("127.0.0.1", 0)) as worker:
        endpoint = f"127.0.0.1:{worker.getsockname()[1]}"
        found = with_workers(Machine(), server, [endpoint]).device("RPC0")
    assert found is not None
    assert (found.memory_total, found.memory_free) == (1024 << 20, 1000 << 20)
    silent = with_workers(Machine(), server, ["127.0.0.1:x"])
    assert silent.devices == ()
    assert "the rpc workers' memory is unknown" in silent.notes[0]
