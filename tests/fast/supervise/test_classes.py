"""Each case is what the pinned engine really wrote, with the exit that went with it."""

from __future__ import annotations

import pytest

from launcher.supervise.classes import KINDS, Evidence, Exit, ExitClass, classify

C = ExitClass


@pytest.mark.parametrize(
    ("exit", "ready", "errors", "kind"),
    [
        (Exit(1), False, ["error: invalid argument: --nonsense"], C.BAD_OPTION),
        (Exit(1), False, ['error while handling argument "-n": stoi'], C.BAD_OPTION),
        (Exit(1), False, ['error while handling argument "-ctk": Unsupported cache type: q2_K'], C.BAD_OPTION),
        (
            Exit(1),
            False,
            [
                "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
                "failed to create context with model 'm.gguf'",
                "exiting due to model loading error",
            ],
            C.BAD_OPTION,
        ),
        (
            Exit(1),
            False,
            [
                "gguf_init_from_file: failed to open GGUF file 'nothere.gguf' (No such file or directory)",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from nothere.gguf",
            ],
            C.MODEL_MISSING,
        ),
        (Exit(1), False, ["gguf_init_from_reader: invalid magic characters: '<htm', expected 'GGUF'"], C.MODEL_CORRUPT),
        (
            Exit(1),
            False,
            ["tensor 'blk.16.ffn_down.weight' data is not within the file bounds, model is corrupted or incomplete"],
            C.MODEL_CORRUPT,
        ),
        (
            Exit(1),
            False,
            [
                "ggml_aligned_malloc: insufficient memory (attempted to allocate 2199.38 MB)",
                "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
                "failed to create context with model 'm.gguf'",
            ],
            C.OOM_LOAD,
        ),
        (Exit(1), False, ["llama_model_load: error loading model: mmap failed: Cannot allocate memory"], C.OOM_LOAD),
        (Exit(1), False, ["couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18098"], C.PORT_TAKEN),
        (Exit(signal=6), False, ["ggml-rpc.cpp:547: Failed to connect to 127.0.0.1:9"], C.GPU_MISSING),
        (Exit(127), False, ["error: cannot execute /x: [Errno 2] No such file or directory: '/x'"], C.NOT_EXECUTABLE),
        (Exit(signal=4), True, [], C.ILLEGAL_INSTRUCTION),
        (Exit(signal=11), True, [], C.CRASH),
        (Exit(signal=9), True, [], C.CRASH),
        (Exit(signal=6), True, ["CUDA error: unspecified launch failure"], C.GPU_LOST),
        (Exit(signal=6), True, ["CUDA error: out of memory"], C.OOM_RUNTIME),
        (Exit(0), True, ["some request's error"], C.ENDED),
    ],
)
def test_the_engines_own_words(exit: Exit, ready: bool, errors: list[str], kind: ExitClass) -> None:
    assert classify(Evidence(exit, ready, errors=errors))[0] is kind


def test_the_line_that_shows_it_is_kept() -> None:
    errors = ["something before", "error: invalid argument: --x"]
    assert classify(Evidence(Exit(1), False, errors=errors))[1] == "error: invalid argument: --x"
    assert classify(Evidence(Exit(signal=11), True, errors=errors))[1] == "something before"


def test_a_kill_for_memory_is_told_by_the_cgroup() -> None:
    assert classify(Evidence(Exit(signal=9), True, oom_kill=True))[0] is C.HOST_OOM


def test_what_we_did_ourselves_is_not_guessed() -> None:
    evidence = Evidence(Exit(signal=9), True, ours=C.HUNG, errors=["CUDA error: x"])
    assert classify(evidence)[0] is C.HUNG


def test_every_class_says_what_it_means() -> None:
    assert set(KINDS) == set(ExitClass)
    for kind, meaning in KINDS.items():
        assert meaning.help or kind in (C.STOPPED_BY_US, C.ENDED)
        assert meaning.code == 0 or 10 <= meaning.code <= 16
