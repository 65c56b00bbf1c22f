from __future__ import annotations

from launcher.supervise.lines import Facts, parse
from launcher.units import MIB


def test_a_json_line_loses_the_engines_own_prefix() -> None:
    line = parse(b'{"type":"log","time":1,"level":"error","msg":"srv    load_model: failed to load model, \'x\'\\n"}')
    assert (line.level, line.text) == ("error", "failed to load model, 'x'")


def test_plain_lines_and_aborts() -> None:
    assert parse(b"error: invalid argument: --x").level == "error"
    assert parse(b"/src/ggml-rpc.cpp:547: Failed to connect to 127.0.0.1:9").level == "error"
    assert parse(b"terminate called after throwing an instance of 'std::bad_alloc'").level == "error"
    assert parse(b"usage:").level == "info"
    assert parse(b'{"broken').text == '{"broken'
    assert parse(b"\xff\xfe").level == "info"


def facts(*lines: str) -> Facts:
    known = Facts()
    for line in lines:
        known.learn(parse(line.encode()))
    return known


def test_what_the_engine_allocated() -> None:
    known = facts(
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
        "load_tensors: RPC0[127.0.0.1:50052] model buffer size =    10.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =    45.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =     5.00 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =    16.64 MiB",
        "llama_context: n_ctx                 = 2048",
        "llama_context: kv_unified            = true",
        "resolve_fused_ops: Flash Attention enabled",
        "load_tensors: offloaded 31/31 layers to GPU",
    )
    assert known.buffers[("kv", "host")] == 50 * MIB
    assert known.buffers[("weights", "RPC0")] == 10 * MIB
    assert known.buffers[("compute", "host")] == round(16.64 * MIB)
    assert known.context == {"n_ctx": "2048", "kv_unified": "true"}
    assert (known.offloaded, known.layers, known.flash_attention) == (31, 31, True)


def test_a_flood_of_errors_is_not_kept() -> None:
    known = facts(*(f"error: {n}" for n in range(1000)))
    assert known.errors[0] == "error: 0"
    assert len(known.errors) == 20
