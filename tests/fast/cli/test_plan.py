"""`init` and `plan --write`: what they write is a profile that means what was found."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit

from launcher.cli.app import run
from launcher.machine.types import Cpu, Machine, Memory
from launcher.profile.load import load_profile
from launcher.profile.moved import anchor


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header of a tiny model, and an own home."""
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    numbers = {
        "block_count": 2, "context_length": 4096, "embedding_length": 64, "feed_forward_length": 128,
        "attention.head_count": 2, "attention.head_count_kv": 1, "vocab_size": 32,
    }  # fmt: skip
    keys = [string("general.architecture") + struct.pack("<I", 8) + string("llama")]
    keys += [string(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()]
    tensor = string("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 32, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    file = tmp_path / "tiny.gguf"
    file.write_bytes(head + b"\0" * (-len(head) % 32) + b"\0" * (64 * 32 * 4))
    return file


def test_init_writes_a_profile_without_a_finding(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", model.name, "--slots", "2"]) == 0
    assert "2 × 4096 tokens" in capsys.readouterr().out
    assert run(["check", "tiny.toml"]) == 0
    assert "no findings" in capsys.readouterr().out


def test_init_overwrites_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text("mine")
    assert run(["init", model.name]) == 2
    assert (tmp_path / "tiny.toml").read_text() == "mine"


def test_what_is_written_holds_beside_what_stood_there(model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n[context]\ntotal = "1k" # small\nslots = 1\n')
    (tmp_path / "sub").mkdir()
    assert run(["plan", "p.toml", "--max-context", "--write", "sub/found.toml"]) == 0
    found = load_profile("sub/found.toml", (), {})
    assert found.context.per_slot == 4096 and found.context.total is None
    assert found.model.path == model


def test_files_stay_the_same_from_another_folder(model: Path, tmp_path: Path) -> None:
    for name in ("keys", "mm.gguf", "a.gguf", "t.jinja", "ev"):
        (tmp_path / name).write_text("x")
    (tmp_path / "base.toml").write_text("[compute]\nbatch = 1024\n")
    (tmp_path / "named.toml").write_text("[compute]\nubatch = 256\n")
    (tmp_path / "p.toml").write_text(
        'extends = ["base.toml", "named"]\n[model]\npath = "./tiny.gguf"\nmmproj = "mm.gguf"\n'
        'chat_template = "t.jinja"\n[[model.lora]]\npath = "a.gguf"\n[serve]\napi_key_file = "keys"\n'
        'host = ["127.0.0.1", "s.sock"]\n[supervise]\non_event = ["./ev"]\n'
    )
    (tmp_path / "sub").mkdir()
    document = tomlkit.parse((tmp_path / "p.toml").read_text())
    anchor(document, tmp_path)
    (tmp_path / "sub" / "p.toml").write_text(tomlkit.dumps(document))
    before, after = load_profile("p.toml", (), {}), load_profile("sub/p.toml", (), {})
    assert after.model == before.model and after.serve == before.serve
    assert after.compute.batch == 1024 and after.compute.ubatch == 256
    assert after.supervise == before.supervise


def test_what_set_said_is_written(model: Path, tmp_path: Path) -> None:
    """The context that was found is the largest with it, not without."""
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n')
    (tmp_path / "sub").mkdir()
    sets = ["--set", "context.slots=3", "--set", "kv.tier=f16", "--set", "serve.api_key_file=keys"]
    (tmp_path / "keys").write_text("k")
    assert run(["plan", "p.toml", "--max-context", "--write", "sub/found.toml", *sets]) == 0
    found = load_profile("sub/found.toml", (), {})
    assert (found.context.slots, str(found.kv.tier), found.serve.api_key_file) == (3, "f16", tmp_path / "keys")


def test_a_model_that_stands_in_the_base(model: Path, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('[model]\npath = "tiny.gguf"\n')
    (tmp_path / "p.toml").write_text('extends = "base.toml"\n')
    assert run(["plan", "p.toml", "--max-context", "--write", "found.toml"]) == 0
    assert load_profile("found.toml", (), {}).model.path == model


def test_init_writes_nothing_that_does_not_fit(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    box = Machine((), Memory(total=1 << 24, available=1 << 20), Cpu())
    monkeypatch.setattr("launcher.flow.probe", lambda **_: box)
    assert run(["init", model.name]) == 11
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "tiny.toml").exists()


@pytest.fixture
def box(tmp_path: Path) -> Callable[..., str]:
    """A machine file with these cards: (memory free or None)."""

    def write(*free: int | None, available: int | None = 8 << 30) -> str:
        cards = [
            {
                "id": f"CUDA{number}", "name": "card", "kind": "discrete", "vendor": "nvidia", "memory_total": 8 << 30,
                "memory_free": size, "pcie": None, "rebar": None,
            }
            for number, size in enumerate(free)
        ]  # fmt: skip
        memory = {"total": 16 << 30, "available": available, "limit": None}
        cpu = {"model": "cpu", "cores": 2, "features": []}
        found = {"schema": 1, "devices": cards, "memory": memory, "cpu": cpu, "wsl": False}
        (tmp_path / "box.json").write_text(json.dumps(found))
        return "box.json"

    return write


def test_layers_of_two_cards_are_one_cache(
    model: Path, tmp_path: Path, box: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n[context]\nper_slot = "4k"\n')
    assert run(["plan", "p.toml", "--machine", box(4 << 30, 4 << 30)]) == 0
    out = capsys.readouterr().out
    assert "full 2 layers × 4096 cells\n" in out and "CUDA1" in out


def test_what_a_machine_does_not_say_is_named(
    model: Path, tmp_path: Path, box: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n[context]\nper_slot = "2k"\n')
    assert run(["plan", "p.toml", "--machine", box(None, available=None)]) == 0
    out = capsys.readouterr().out
    assert "not judged: devices[CUDA0].memory_free of this machine is not known" in out
    assert "not judged: memory.available of this machine is not known" in out
    assert "4k tokens a slot: CUDA0" in out and out.count("not judged") == 4


def test_a_finding_is_said_once_and_with_the_context_that_would_fit(
    model: Path, tmp_path: Path, box: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n[context]\nper_slot = "4k"\nslots = 256\n')
    small = ["plan", "p.toml", "--machine", box(available=180 << 20), "--set", "kv.reuse.ram=0MiB"]
    assert run(small) == 11
    shown = capfd.readouterr()
    assert "does not fit" in shown.out and shown.err.count("\n") == 1
    size = re.search(r"lower context.per_slot to (\d+), or", shown.out)
    assert size is not None
    assert run([*small, "--set", f"context.per_slot={size[1]}"]) == 0
    assert run([*small, "--set", f"context.per_slot={int(size[1]) + 256}"]) == 11


def test_search_shows_where_the_cache_lies(
    model: Path, tmp_path: Path, box: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text('[model]\npath = "tiny.gguf"\n[compute]\ngpu_layers = 0\n')
    assert run(["plan", "p.toml", "--search", "--machine", box(4 << 30)]) == 0
    out = capsys.readouterr().out
    assert " host " in out and "gpu 100%" not in out
