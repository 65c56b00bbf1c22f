from __future__ import annotations

from pathlib import Path

import pytest

from launcher.engine.capability import from_help_file, of_pin, parse_help, read_record, write_record
from launcher.engine.options import OPTIONS, spell
from launcher.errors import ProfileError

HELP = """\
----- common params -----

-c,    --ctx-size N                     how many tokens
                                        (env: LLAMA_ARG_CTX_SIZE)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        one pool or not
-ctk,  --cache-type-k TYPE              the type of K
                                        allowed values: f16, q8_0
                                        (default: f16)
-fa,   --flash-attn [on|off|auto]       fused
--draft N                               the argument has been removed. use another
"""


def test_help_is_read_entry_by_entry() -> None:
    engine = parse_help(HELP, "a text")
    assert engine.option("-c") == engine.option("--ctx-size")
    context = engine.option("-c")
    assert context is not None
    assert (context.value, context.env) == ("N", "LLAMA_ARG_CTX_SIZE")
    assert engine.has("--no-kv-unified")
    assert engine.cache_types == ("f16", "q8_0")
    flash = engine.option("-fa")
    assert flash is not None and flash.choices == ("on", "off", "auto")


def test_a_removed_option_is_known_but_does_not_work() -> None:
    engine = parse_help(HELP, "a text")
    assert engine.option("--draft") is not None
    assert not engine.has("--draft")
    assert "--draft" not in engine.options


def test_a_text_without_options_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "help.txt"
    file.write_text("hello\n")
    with pytest.raises(ProfileError, match="lists no option"):
        from_help_file(file)
    with pytest.raises(ProfileError, match="No such file"):
        from_help_file(tmp_path / "nothing")


def test_the_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    engine = parse_help(HELP, "a text")
    write_record(engine, tmp_path / "options.json")
    assert (tmp_path / "options.json").read_text().count("spellings") == len(engine.entries)


def test_every_upstream_option_that_we_use_is_in_the_record() -> None:
    known = of_pin("none").options
    lacking = [name for name, option in OPTIONS.items() if option.patch is None and not known & {*option.spellings}]
    assert lacking == []
    assert len(read_record()) > 200


def test_options_are_spelled_in_the_order_of_the_table() -> None:
    known = of_pin("none").options
    argv = spell({"devices": "RPC0", "context": 4096, "unified": False, "rpc": "127.0.0.1:1", "metrics": True}, known)
    assert argv == ["--rpc", "127.0.0.1:1", "--ctx-size", "4096", "--no-kv-unified", "--device", "RPC0", "--metrics"]


def test_a_lacking_patch_is_named() -> None:
    with pytest.raises(ProfileError, match=r"--poly-kv \(patch 0072\)"):
        spell({"prefix_pool": True}, of_pin("none").options)
