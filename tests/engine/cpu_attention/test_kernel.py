"""The grouped kernel against an f64 reference, for each instruction set it is written for, and upstream's own judge.

ggml is compiled once a set (a minute each on two cores, kept in the cache).
"""

from __future__ import annotations

import os
import re

import pytest

from launcher.bench.cpu_attention_program import Program, build_program, build_upstream_test
from launcher.engine.report import Silent
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree
from launcher.paths import Places

_AVX2 = ("GGML_SSE42", "GGML_AVX", "GGML_F16C", "GGML_FMA", "GGML_BMI2", "GGML_AVX2")
_AVX512 = (*_AVX2, "GGML_AVX512")
_ALL = (*_AVX512, "GGML_AVX512_VBMI", "GGML_AVX512_VNNI", "GGML_AVX512_BF16")

# name: the options that are on, the CPU flags that running it takes
SETS = {
    "plain": ((), ()),
    "avx2": (_AVX2, ("avx2", "fma", "f16c", "bmi2")),
    "avx512": (_AVX512, ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "vnni": (_ALL, ("avx512_vnni", "avx512vbmi", "avx512_bf16")),
}
_CASES = 1700  # of the matrix: a change that loses some shows here


@pytest.fixture(scope="module", params=list(SETS))
def options(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    on, flags = SETS[request.param]
    if missing := [flag for flag in flags if flag not in read_cpu(Tree()).features]:
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
    return request.param, {name: "ON" if name in on else "OFF" for name in _ALL}


@pytest.mark.timeout(900)
def test_every_op_is_near_the_reference(options: tuple[str, dict[str, str]], engine_places: Places) -> None:
    """The program checks: NMSE ≤ 1e-10 (float), ≤ 1e-7 (quantized), twice the same, upstream's work size when off."""
    name, flags = options
    done = build_program(name, flags, engine_places, Silent()).test()
    found = re.search(r"^(\d+) cases, (\d+) failed", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
    assert int(found[1]) >= _CASES
    assert int(found[2]) == 0


def test_the_program_can_fail(engine_places: Places) -> None:
    """A filter that matches nothing is no success, and a wrong key is told."""
    on, flags = SETS["avx2"]
    if any(flag not in read_cpu(Tree()).features for flag in flags):
        pytest.skip("this CPU lacks avx2")
    program = build_program("avx2", {n: "ON" if n in on else "OFF" for n in _ALL}, engine_places, Silent())
    assert program.test("no such case").returncode == 1
    with pytest.raises(Exception, match="not understood: 'nonsense=1'"):
        program.bench(["nonsense=1"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("grouped", [True, False], ids=["on", "off"])
def test_upstreams_judge_agrees(options: tuple[str, dict[str, str]], grouped: bool, engine_places: Places) -> None:
    """`test-backend-ops -o FLASH_ATTN_EXT`: the CPU backend against its own reference implementation.

    Every head size and type at an odd cache length, with ALiBi, soft-cap and sinks; all of its cases take half an hour.
    """
    name, flags = options
    if name in ("plain", "avx512") and not os.environ.get("KVLAUNCH_TEST_SLOW"):
        pytest.skip("a minute an instruction set: the others take KVLAUNCH_TEST_SLOW=1")
    judge = build_upstream_test(name, flags, engine_places, Silent())
    argv = ["-o", "FLASH_ATTN_EXT", "-b", "CPU", "-p", "kv=113,nb=(1|3|75),.*max_bias=8"]
    done = judge.run(argv, {"GGML_TEST_FA_GROUPED": "1"} if grouped else {})
    assert done.returncode == 0, done.stdout[-2000:]
    found = re.search(r"(\d+)/(\d+) tests passed", done.stdout)
    assert found, done.stdout[-500:]
    assert found[1] == found[2]
    assert int(found[1]) > 200


def test_threads_do_not_change_the_result_by_chance(engine_places: Places) -> None:
    """Work is handed out as threads ask for it: the sums must not depend on who took what."""
    on, flags = SETS["avx2"]
    if any(flag not in read_cpu(Tree()).features for flag in flags):
        pytest.skip("this CPU lacks avx2")
    program: Program = build_program("avx2", {n: "ON" if n in on else "OFF" for n in _ALL}, engine_places, Silent())
    for _ in range(5):
        done = program.test("t=3")
        assert done.returncode == 0, done.stdout
