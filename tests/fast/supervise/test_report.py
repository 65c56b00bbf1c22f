from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import NotRunning
from launcher.paths import places
from launcher.supervise.report import Redactor, write_report
from launcher.supervise.spec import LaunchSpec


def test_a_bundle_has_what_helps_and_no_secret(tmp_path: Path) -> None:
    here = places({"HOME": str(tmp_path)})
    keys = tmp_path / "keys"
    keys.write_text("# mine\nsesame-open\n")
    profile = tmp_path / "agents.toml"
    profile.write_text('[serve]\napi_key_file = "keys"\n[env]\nHF_TOKEN = "hf_abcdef"\n')
    state, logs = here.instance("agents"), here.logs / "agents"
    state.mkdir(parents=True)
    logs.mkdir(parents=True)
    spec = LaunchSpec("agents", "/e/bin/llama-server", ("-m", "/m.gguf"), str(state), str(logs), "/r/agents.sock")
    spec = replace(spec, api_key_file=str(keys), env={"HF_TOKEN": "hf_abcdef"}, profile=str(profile))
    (state / "launch.json").write_text(json.dumps(spec.as_json()))
    (state / "last-exit.json").write_text('{"class": "crash", "line": "who said sesame-open?"}')
    (logs / "log.jsonl").write_text('{"text": "Authorization: Bearer sesame-open"}\n{"text": "hf_abcdef"}\n')

    bundle = write_report("agents", tmp_path / "r.tar.gz", here)
    assert bundle.stat().st_mode & 0o077 == 0
    with tarfile.open(bundle) as archive:
        parts = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]
    assert {"agents/launch.json", "agents/profile.toml", "agents/last-exit.json", "agents/log.jsonl"} <= parts.keys()
    everything = "\n".join(parts.values())
    assert "sesame" not in everything
    assert "hf_abcdef" not in everything
    assert '"class": "crash"' in everything
    assert "/m.gguf" in everything
    assert json.loads(parts["agents/versions.json"])["kvlaunch"]


def test_what_is_named_like_a_secret() -> None:
    clean = Redactor([], Path("/home/ada"))
    assert clean.text('api_key = "abc"') == "api_key = [redacted]"
    assert clean.text("MY_TOKEN: abc") == "MY_TOKEN: [redacted]"
    assert clean.text("/home/ada/models/m.gguf") == "~/models/m.gguf"
    assert clean.text("n_tokens_max 12") == "n_tokens_max 12"
    assert clean.data({"env": {"A": "1"}, "port": 8080}) == {"env": {"A": "[redacted]"}, "port": 8080}


def test_an_instance_that_never_was(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="never run"):
        write_report("nobody", None, places({"HOME": str(tmp_path)}))
