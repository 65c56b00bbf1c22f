"""What a value leads to is a finding at the place that wrote the value."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.flow import read_case


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def written(folder: Path, text: str) -> str:
    file = folder / "p.toml"
    file.write_text(text)
    return str(file)


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no model at all")
    case = read_case(written(tmp_path, "\n[model]\npath = 'm.gguf'\n"))
    assert (case.shape, case.plan, case.ok) == (None, None, False)
    found = next(one for one in case.diagnostics if one.key == "model.path")
    assert (found.rule, found.slug) == ("KV900", "model-unreadable")
    assert found.place is not None and (found.place.line, found.place.file) == (3, str(tmp_path / "p.toml"))
    assert "m.gguf" in found.message


def test_a_patch_that_is_not_there(tmp_path: Path) -> None:
    text = "[model]\npath = 'm.gguf'\n[engine]\npatches = ['0005', '9999']\n"
    with pytest.raises(ProfileError, match="9999") as caught:
        read_case(written(tmp_path, text))
    (found,) = caught.value.diagnostics
    assert (found.rule, caught.value.rule, found.key) == ("KV004", "KV004", "engine.patches")
    assert found.place is not None and found.place.line == 4
    assert found.message == caught.value.message
