from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.diagnostic import Diagnostic
from launcher.errors import ProfileError
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile

Write = Callable[..., Path]
Load = Callable[..., Profile]
Faults = Callable[..., list[Diagnostic]]

MODEL = '[model]\npath = "m.gguf"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a profile, `p.toml` unless named otherwise, and returns its path."""

    def write(text: str, name: str = "p.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def load(write: Write) -> Load:
    """Loads a text as a profile, in an environment of HOME alone unless one is given."""

    def load(text: str, *sets: str, environ: dict[str, str] | None = None) -> Profile:
        return load_profile(write(text), sets, {"HOME": "/home/u", **(environ or {})})

    return load


@pytest.fixture
def faults(load: Load) -> Faults:
    """The diagnostics of a text that must not load."""

    def faults(text: str, *sets: str, environ: dict[str, str] | None = None) -> list[Diagnostic]:
        with pytest.raises(ProfileError) as caught:
            load(text, *sets, environ=environ)
        assert caught.value.code == 10
        assert caught.value.diagnostics, "an error without a diagnostic tells nobody where"
        return list(caught.value.diagnostics)

    return faults
