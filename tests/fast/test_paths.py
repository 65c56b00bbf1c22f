from __future__ import annotations

from pathlib import Path

from launcher.paths import places, shipped


def test_systemd_wins_over_xdg_and_xdg_over_home(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert places(home).state == tmp_path / ".local/state/kvlaunch"
    assert places({**home, "XDG_STATE_HOME": "/x"}).state == Path("/x/kvlaunch")
    assert places({**home, "XDG_STATE_HOME": "relative"}).state == tmp_path / ".local/state/kvlaunch"
    under_systemd = {**home, "XDG_STATE_HOME": "/x", "STATE_DIRECTORY": "/var/lib/kvlaunch:/var/lib/other"}
    assert places(under_systemd).state == Path("/var/lib/kvlaunch")


def test_the_socket_falls_back_when_the_runtime_directory_is_gone_or_too_deep(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)}
    here = places(env)
    assert here.socket("agents") == runtime / "kvlaunch/agents.sock"
    runtime.rmdir()
    assert here.socket("agents") == here.state / "agents/control.sock"
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    deep_places = places({**env, "XDG_RUNTIME_DIR": str(deep)})
    assert deep_places.socket("agents") == deep_places.state / "agents/control.sock"


def test_shipped_data_is_found_in_a_checkout() -> None:
    assert shipped("profiles").is_dir()
