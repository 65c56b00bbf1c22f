from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.profile.find import find_profile, list_profiles


def test_a_reference_with_a_slash_or_a_suffix_is_a_path() -> None:
    assert find_profile("a/b", {}) == Path("a/b")
    assert find_profile("agents.toml", {}) == Path("agents.toml")
    assert find_profile(Path("agents"), {}) == Path("agents")


def test_a_name_is_looked_for_here_then_at_the_users_then_among_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"HOME": str(tmp_path / "home")}
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert find_profile("agents", env).parent.name == "profiles"
    mine = tmp_path / "home/.config/kvlaunch/agents.toml"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert find_profile("agents", env) == mine
    (work / "agents.toml").touch()
    assert find_profile("agents", env) == Path("agents.toml")
    names = [path.stem for path in list_profiles(env)]
    assert names.count("agents") == 1 and "quickstart" in names


def test_an_unknown_name_gets_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError) as caught:
        find_profile("quikstart", {"HOME": "/nowhere"})
    assert caught.value.help == "did you mean quickstart?"
    with pytest.raises(ProfileError, match="zzz") as caught:
        find_profile("zzz", {"HOME": "/nowhere"})
    assert "/etc/kvlaunch" in caught.value.help
