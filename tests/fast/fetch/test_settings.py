from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import BuildError
from launcher.fetch import settings
from launcher.fetch.settings import IndexSettings, load_settings


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of the box, and a built-in index that is no real one."""
    monkeypatch.setattr(settings, "built_in_index", lambda env: "https://built-in.test/simple")
    monkeypatch.setattr(settings, "_SYSTEM", tmp_path / "system")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "etc"), **more}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_any_configuration_the_built_in_index_holds(tmp_path: Path) -> None:
    assert load_settings(env(tmp_path)).indexes == ("https://built-in.test/simple",)


def test_pip_files_are_read_in_pips_order(tmp_path: Path) -> None:
    write(tmp_path / "etc/pip/pip.conf", "[global]\nindex-url = https://a.test/simple\nfind_links = /wheels /more\n")
    write(tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = https://b.test/simple\n")
    assert load_settings(env(tmp_path)) == IndexSettings(("https://b.test/simple",), ("/wheels", "/more"))


def test_the_environment_wins_and_extra_indexes_are_asked_first(tmp_path: Path) -> None:
    write(tmp_path / ".config/pip/pip.conf", "[global]\nindex-url = https://b.test/simple\n")
    found = load_settings(
        env(tmp_path, PIP_INDEX_URL="https://c.test/simple", PIP_EXTRA_INDEX_URL="https://d.test file:///e")
    )
    assert found.indexes == ("https://d.test", "file:///e", "https://c.test/simple")


def test_no_index_leaves_find_links_alone(tmp_path: Path) -> None:
    found = load_settings(env(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels"))
    assert found == IndexSettings((), ("/wheels",))


@pytest.mark.parametrize(
    "text",
    [
        '[[index]]\nurl = "https://u.test/simple"\ndefault = true\n[[index]]\nname = "x"\nurl = "https://x.test"\n',
        'index-url = "https://u.test/simple"\nextra-index-url = ["https://x.test"]\n',
        '[pip]\nindex-url = "https://u.test/simple"\nextra-index-url = ["https://x.test"]\n',
    ],
)
def test_uv_configuration(tmp_path: Path, text: str) -> None:
    write(tmp_path / ".config/uv/uv.toml", text)
    assert load_settings(env(tmp_path)).indexes == ("https://x.test", "https://u.test/simple")


def test_uv_environment(tmp_path: Path) -> None:
    found = load_settings(
        env(tmp_path, UV_DEFAULT_INDEX="https://u.test/simple", UV_INDEX="inner=https://i.test", UV_FIND_LINKS="/a,/b")
    )
    assert found == IndexSettings(("https://i.test", "https://u.test/simple"), ("/a", "/b"))


def test_a_broken_file_hides_nothing(tmp_path: Path) -> None:
    write(tmp_path / ".config/pip/pip.conf", "no section\n")
    write(tmp_path / ".config/uv/uv.toml", "= broken")
    assert load_settings(env(tmp_path, PIP_INDEX_URL="https://c.test")).indexes == ("https://c.test",)


def test_no_index_at_all_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "built_in_index", lambda env: None)
    with pytest.raises(BuildError) as caught:
        load_settings(env(tmp_path))
    assert "UV_DEFAULT_INDEX" in caught.value.help


def test_the_built_in_index_is_read_from_pythons_own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither pip nor uv can be asked, the pip that Python carries for new environments knows it."""
    monkeypatch.undo()
    found = settings._bundled_pip_index()
    if found is None:
        pytest.skip("this Python carries no pip")
    assert found.startswith("https://") and found.endswith("/simple")
    assert settings._bundled_pip_index() == settings.built_in_index({})
