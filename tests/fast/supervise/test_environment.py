"""What the engine inherits, and what it must not read."""

from __future__ import annotations

from launcher.supervise.process import clean_environment


def test_the_engine_s_own_variables_are_dropped_and_the_profile_s_are_kept() -> None:
    inherited = {
        "PATH": "/bin",
        "LLAMA_ARG_PORT": "1",
        "GGML_X": "1",
        "AIP_MODE": "PREDICTION",
        "XDG_CONFIG_HOME": "/u",
    }
    env = clean_environment(inherited, {"LLAMA_ARG_TOP_K": "5"}, "/own")
    assert env["PATH"] == "/bin"
    assert env["XDG_CONFIG_HOME"] == "/own"
    assert env["LLAMA_ARG_TOP_K"] == "5"
    assert not {"LLAMA_ARG_PORT", "GGML_X", "AIP_MODE"} & set(env)


def test_gpus_are_counted_as_the_probe_counts_them_unless_the_user_says_otherwise() -> None:
    assert clean_environment({}, {}, "/own")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert clean_environment({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}, "/own")["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert clean_environment({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "/own")["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_huge_pages_are_asked_for_unless_somebody_tunes_malloc() -> None:
    assert clean_environment({}, {}, "/own")["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    theirs = "glibc.malloc.arena_max=2"
    assert clean_environment({"GLIBC_TUNABLES": theirs}, {}, "/own")["GLIBC_TUNABLES"] == theirs
    assert clean_environment({}, {"GLIBC_TUNABLES": theirs}, "/own")["GLIBC_TUNABLES"] == theirs
