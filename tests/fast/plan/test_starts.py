"""What a start's log is read as, and how the bench counts errors: no engine here."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.bench.plan import Case, Error, Tally, grid
from launcher.bench.starts import device_of, read_allocations, start
from launcher.profile.tier import Tier

LOG = """\
0.00.181.141 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.00.181.142 I load_tensors: RPC0[127.0.0.1:50977] model buffer size =    92.10 MiB
0.00.181.143 I load_tensors:   CPU_REPACK model buffer size =    12.66 MiB
0.00.182.123 I llama_context:        CPU  output buffer size =     0.38 MiB
0.00.182.220 I llama_kv_cache: RPC0[127.0.0.1:50978] KV buffer size =   180.00 MiB
0.00.182.221 I llama_memory_recurrent:        CPU RS buffer size =     0.56 MiB
0.00.182.222 I llama_dsv4_comp_state:        CPU DSV4 csa state buffer size =     0.25 MiB
0.00.182.223 I sched_reserve:  CUDA_Host compute buffer size =    18.64 MiB
0.00.182.223 I sched_reserve: reserve took 2.28 ms, sched copies = 1
""".splitlines()
WORKERS = ["127.0.0.1:50977", "127.0.0.1:50978"]


def test_every_buffer_line_is_read():
    found = [(a.item, a.device, a.mib) for a in read_allocations(LOG, WORKERS)]
    assert found == [
        ("weights", "host", 28.69),
        ("weights", "RPC0", 92.10),
        ("weights", "host", 12.66),
        ("output", "host", 0.38),
        ("kv", "RPC1", 180.0),
        ("recurrent", "host", 0.56),
        ("recurrent", "host", 0.25),
        ("compute", "host", 18.64),
    ]


@pytest.mark.parametrize(
    ("buffer", "device"),
    [("CPU", "host"), ("CUDA0", "CUDA0"), ("CUDA_Host", "host"), ("Vulkan_Host", "host"), ("RPC0[10.0.0.9:1]", "RPC0")],
)
def test_devices_of_buffers(buffer, device):
    assert device_of(buffer) == device


def _program(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "engine"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_start_ends_when_memory_is_reserved(tmp_path):
    lines = "; ".join(f"echo '{line}'" for line in LOG)
    seen = start(_program(tmp_path, f"{lines}; exec sleep 60"), ["-m", "x"])
    assert seen.ready and seen.exit_code is None and seen.seconds < 20
    assert seen.total("weights") == pytest.approx(28.69 + 92.10 + 12.66)
    assert seen.total("kv", "host") == 0


def test_a_refusal_has_its_code_and_last_lines(tmp_path):
    seen = start(_program(tmp_path, "echo 'error: invalid argument: --x' >&2; exit 1"), [])
    assert (seen.ready, seen.exit_code) == (False, 1)
    assert seen.tail == ("error: invalid argument: --x",)


def test_one_that_hangs_is_ended(tmp_path):
    seen = start(_program(tmp_path, "echo hello; exec sleep 60"), [], timeout=0.3)
    assert not seen.ready and seen.seconds < 20


def test_the_process_is_gone_when_looking_at_it_fails(tmp_path):
    pids: list[int] = []

    def look(pid: int) -> None:
        pids.append(pid)
        raise RuntimeError

    body = "echo 'sched_reserve: reserve took 1 ms'; exec sleep 60"
    with pytest.raises(RuntimeError):
        start(_program(tmp_path, body), [], at_end=look)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_errors_leave_out_what_the_log_rounds():
    error = Error()
    error.add("a", 100.004, 100.0)
    error.add("b", 101.0, 100.0, lines=2)
    assert error.mib == pytest.approx([0.0, 0.99])
    assert error.worst == "b"
    assert (error.within(0.001), error.within(0.01)) == (0.5, 1.0)


def test_a_miss_fails_its_check():
    tally = Tally(set())
    tally.starts = 1
    tally.errors["real", "kv"] = Error([0.02], [0.001], "x")
    tally.errors["zoo", "compute"] = Error([9.0], [0.5], "y")
    found = {entry["name"]: entry for entry in tally.checks()}
    assert not found["kv, real"]["ok"] and found["kv, real"]["hard"]
    assert not found["compute, zoo"]["ok"] and found["compute, zoo"]["hard"]


def test_the_grid_is_drawn_by_its_seed():
    models, zoo = [Path("a.gguf"), Path("b.gguf")], [Path(f"z{number}.gguf") for number in range(64)]
    first = grid(models, zoo, quick=False, seed=1)
    assert first == grid(models, zoo, quick=False, seed=1)
    assert first != grid(models, zoo, quick=False, seed=2)
    assert len(first) >= 150 and len(grid(models, zoo, quick=True, seed=1)) < 80
    assert all(not (case.unified and case.slots == 1) for case in first)


def test_a_case_says_what_it_starts():
    case = Case(Path("m.gguf"), 4096, 4, True, Tier("q8_0", "q4_0"), 128, True, devices=1, layers=10)
    words = case.argv(["127.0.0.1:1"])
    assert words[:2] == ["--rpc", "127.0.0.1:1"] and words[-2:] == ["-ngl", "10"]
    assert {"-kvu", "--swa-full", "-ctk", "q8_0", "q4_0"} <= set(words)
    assert case.name == "m c4096 np4 kvu q8_0:q4_0 ub128 swa-full 1×rpc/10"
