from __future__ import annotations

import json
from pathlib import Path

import pytest
from situations import PATCHED, findings

from launcher.rules.arguments import split_arguments


def test_words_fall_to_their_options() -> None:
    words = ["--temp", "0.5", "--jinja", "stray", "--top_k", "-1", "--no-such", "x", "--seed"]
    found = [(a.flag, a.value, a.entry is not None, a.lacks_value) for a in split_arguments(words, PATCHED)]
    assert found == [
        ("--temp", "0.5", True, False),
        ("--jinja", None, True, False),
        ("stray", None, False, False),
        ("--top_k", "-1", True, False),  # the engine reads _ as -, and a value may begin with -
        ("--no-such", None, False, False),
        ("x", None, False, False),
        ("--seed", None, True, True),
    ]


@pytest.mark.parametrize(
    ("args", "rules"),
    [
        (["--ctx-size", "4096"], ["KV802"]),
        (["--ctx_size", "4096"], ["KV802"]),
        (["-np", "4", "-kvu"], ["KV802", "KV802"]),
        (["--no-kv-unified"], ["KV802"]),
        (["--temperatur", "0.2"], ["KV803"]),
        (["--temp=0.2"], ["KV803"]),
        (["stray"], ["KV803"]),
        (["--draft-max", "8"], ["KV804"]),
        (["--threads-http", "4k"], ["KV805"]),
        (["--threads-http"], ["KV805"]),
        (["--reasoning", "maybe"], ["KV805"]),
        (["--spec-draft-n-max", "-1"], ["KV805"]),
        (["--override-kv", "nonsense"], ["KV805"]),
        (["--override-kv", "tokenizer.ggml.add_bos_token=bool:false"], []),
        (["-ot", "ffn=CPU"], []),
        (["-ot", "ffn=CUDA0"], ["KV805"]),
        (["-ot", "ffn"], ["KV805"]),
        (["--mmproj-device", "x"], ["KV805"]),
        (["--mmproj-device", "none"], []),
        (["--tools", "read_file,nope"], ["KV805"]),
        (["--tools", "read_file,get_info"], []),
        (["--logit-bias", "x"], ["KV805"]),
        (["--logit-bias", "15043-1"], []),
        (["--seed", "abc"], ["KV805"]),
        (["--grammar", "root ::= ("], ["KV805"]),
        (["--grammar", 'root ::= ("a" | ("b"))'], []),
        (["--reasoning-format", "bad"], ["KV805"]),
        (["--mirostat", "9"], ["KV805"]),
        (["--numa", "nowhere"], ["KV805"]),
        (["--ui-config", "{bad"], ["KV805"]),
        (["--chat-template-kwargs", '{"a": 1}'], []),
        (["--cpu-strict", "2"], []),
        (["--prio", "4"], ["KV805"]),
        (["--reasoning", "true"], []),
        (["--version"], ["KV806"]),
        (["-hf", "a/b"], ["KV806"]),
        (["--no-slots"], ["KV806"]),
        (["--slots"], []),
        (["--temp", "0.2", "--temperature", "0.3"], ["KV807"]),
        (["--api-key", "x"], ["KV703"]),
        (["--jinja", "--temp", "-0.5", "--seed", "-1"], []),
        (["--spec-type", "ngram-mod"], ["KV802"]),
    ],
)
def test_each_slip_is_told_once_at_its_word(tmp_path: Path, args: list[str], rules: list[str]) -> None:
    found, _ = findings(tmp_path, f"[model]\npath = 'm.gguf'\n[engine]\nargs = {json.dumps(args)}\n")
    assert [one.rule for one in found] == rules
    assert all(one.key.startswith("engine.args.") for one in found)


@pytest.mark.parametrize(
    ("variable", "help"),
    [
        ("LLAMA_ARG_CTX_SIZE", "write context.per_slot"),
        ("LLAMA_ARG_THREADS_HTTP", "write it in engine.args: --threads-http"),
        ("AIP_HTTP_PORT", "write serve.port"),
    ],
)
def test_variables_that_speak_beside_the_plan(tmp_path: Path, variable: str, help: str) -> None:
    found, _ = findings(tmp_path, f"[model]\npath = 'm.gguf'\n[env]\n{variable} = '1'\nOMP_NUM_THREADS = '2'\n")
    assert [(one.rule, one.key, one.help) for one in found] == [("KV808", f"env.{variable}", help)]
