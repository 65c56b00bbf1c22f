from __future__ import annotations

from pathlib import Path

import pytest

from launcher.profile.load import load_profile
from launcher.profile.schema import Profile
from launcher.rules.files import look


def profile(folder: Path, text: str) -> Profile:
    file = folder / "p.toml"
    file.write_text("[model]\npath = 'm.gguf'\n" + text)
    return load_profile(file, (), {})


def test_what_is_missing_is_told_by_key(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    text = (
        "mmproj = 'dir'\nchat_template = 'none.jinja'\n[[model.lora]]\npath = 'page.gguf'\n"
        "[serve]\napi_key_file = 'keys'\n[engine]\nbinary = '/no/such/server'\n"
    )
    found = look(profile(tmp_path, text), tmp_path)
    assert set(found.missing) == {
        "model.mmproj", "model.chat_template", "model.lora.0.path", "serve.api_key_file", "engine.binary",
    }  # fmt: skip
    assert found.missing["model.mmproj"].endswith("it is a directory")
    assert "no such file" in found.missing["engine.binary"]
    assert "page.gguf" in found.missing["model.lora.0.path"]


def test_the_model_itself_is_judged_elsewhere(tmp_path: Path) -> None:
    assert look(profile(tmp_path, ""), tmp_path).missing == {}


@pytest.mark.parametrize(
    ("text", "mode", "loose", "empty"),
    [
        ("secret\n", 0o600, False, False),
        ("secret\n", 0o644, True, False),
        ("# a comment\n\n", 0o600, False, True),
        ("", 0o640, True, True),
    ],
)
def test_keys(tmp_path: Path, text: str, mode: int, loose: bool, empty: bool) -> None:
    keys = tmp_path / "keys"
    keys.write_text(text)
    keys.chmod(mode)
    found = look(profile(tmp_path, "[serve]\napi_key_file = 'keys'\n"), tmp_path)
    assert (bool(found.loose), bool(found.empty), dict(found.missing)) == (loose, empty, {})


def test_the_engines_own_configuration_is_seen(tmp_path: Path) -> None:
    assert look(profile(tmp_path, ""), tmp_path).config is None
    config = tmp_path / "etc/llama.cpp/config.ini"
    config.parent.mkdir(parents=True)
    config.touch()
    assert look(profile(tmp_path, ""), tmp_path).config == config


def test_files_and_directories_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    args = ["--slot-save-path", "/no/such", "--media_path", str(tmp_path / "dir"), "--grammar-file", str(tmp_path)]
    found = look(profile(tmp_path, f"[engine]\nargs = {args}\n"), tmp_path)
    assert set(found.missing) == {"engine.args.1", "engine.args.5"}
