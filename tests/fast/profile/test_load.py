"""Who wins, where things stand, and that every fault comes in one run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import KvlaunchError, ProfileError, UsageError
from launcher.profile.faults import FAULTS
from launcher.profile.load import load_profile
from launcher.profile.tier import Layers, Tier

from .conftest import MODEL, Faults, Load, Write

TEN = """\
schema = 1
name = "Ten Faults"

[model]
path = "m.gguf"
sha = "00"

[context]
per-slot = "32q"
slots = "4"

[kv]
tier = "q8_1"
reuse = { affinity = "on", ram = "2G" }
tiers = [
  { layers = "0-3", tier = "q8_0" },
  { layers = "x", tier = "q8_0" },
]

[serve]
port = 99999

[supervise]
fallback = ["tier", "foo"]
"""


def test_ten_faults_are_ten_each_at_its_line_and_column(faults: Faults) -> None:
    found = faults(TEN)
    assert [(f.place and (f.place.line, f.place.column), f.rule, f.key) for f in found] == [
        ((2, 1), "KV004", "name"),
        ((6, 1), "KV002", "model.sha"),
        ((9, 1), "KV005", "context.per_slot"),
        ((10, 1), "KV003", "context.slots"),
        ((13, 1), "KV004", "kv.tier"),
        ((14, 11), "KV003", "kv.reuse.affinity"),
        ((14, 28), "KV005", "kv.reuse.ram"),
        ((17, 5), "KV004", "kv.tiers.1.layers"),
        ((21, 1), "KV004", "serve.port"),
        ((24, 21), "KV004", "supervise.fallback.1"),
    ]


def test_one_fault_is_the_error_itself(write: Write) -> None:
    with pytest.raises(ProfileError, match=r"context\.slots: expected an integer") as caught:
        load_profile(write(MODEL + "[context]\nslots = 'x'"), (), {})
    assert caught.value.rule == "KV003"


def test_who_wins(write: Write) -> None:
    write("[kv]\ntier = 'q4_0'\nneo = 'off'\nresidency = 'cpu'\n[serve]\nport = 1\n[compute]\nthreads = 1", "one.toml")
    write("[kv]\nneo = 'on'\n[serve]\nport = 2\n[compute]\ndevices = ['A', 'B']", "two.toml")
    file = write("extends = ['one.toml', 'two.toml']\n[kv]\nresidency = 'gpu'\n[compute]\ndevices = ['C']\n" + MODEL)
    profile = load_profile(file, ["kv.residency=off", "kv.residency=stream"], {})
    assert profile.kv.tier == Tier("q4_0", "q4_0")  # the first base alone
    assert profile.kv.neo == "on" and profile.serve.port == 2  # the later base
    assert profile.compute.devices == ("C",)  # arrays replace
    assert profile.compute.threads == 1  # tables merge
    assert profile.kv.residency == "stream"  # --set, the later
    assert profile.kv.swa_full is False  # the default
    assert [source.name for source in profile.sources] == ["one.toml", "two.toml", "p.toml"]
    assert profile.sets == ("kv.residency=off", "kv.residency=stream")


def test_a_key_knows_where_it_was_written(write: Write) -> None:
    base = write("[kv]\ntier = 'q4_0'\n", "base.toml")
    file = write("extends = 'base.toml'\n" + MODEL + "[context]\n  per-slot = '4k'\n")
    profile = load_profile(file, ["kv.neo=off"], {})
    assert profile.file == file
    assert str(profile.place("kv.tier")) == f"{base}:2:1"
    assert str(profile.place("context.per_slot")) == f"{file}:5:3"
    assert profile.is_set("kv.neo") and profile.place("kv.neo") is None
    assert not profile.is_set("kv.swa_full") and profile.place("kv.swa_full") is None
    assert str(profile.nearest_place("context.slots")) == f"{file}:4:2"
    assert str(profile.nearest_place("supervise.restart")) == f"{file}:1:1"
    assert profile.nearest_place("kv.neo") is None  # --set wrote it: no line is to blame


def test_the_name_is_not_inherited_nor_the_schema(write: Write) -> None:
    write("schema = 0\nname = 'base'\n" + MODEL, "base.toml")
    profile = load_profile(write("extends = 'base.toml'", "mine.toml"), (), {})
    assert profile.name == "mine" and profile.model.alias == "mine" and profile.schema_version == 1


def test_a_base_resolves_its_own_paths(write: Write, tmp_path: Path) -> None:
    write("[model]\npath = 'm.gguf'\nmmproj = 'p.gguf'", "sub/base.toml")
    profile = load_profile(write("extends = './sub/base.toml'\nmodel.mmproj = 'p.gguf'"), (), {})
    assert profile.model.path == tmp_path / "sub/m.gguf"
    assert profile.model.mmproj == tmp_path / "p.gguf"


def test_another_source_of_the_model_replaces_the_one_below(write: Write) -> None:
    write(f"[model]\npath = 'm.gguf'\nsha256 = '{'0' * 64}'\nalias = 'a'", "base.toml")
    profile = load_profile(write("extends = 'base.toml'\nmodel.package = 'p==1'"), (), {})
    assert (profile.model.path, profile.model.package, profile.model.sha256) == (None, ("p==1",), None)
    assert profile.model.alias == "a"
    profile = load_profile(write("extends = 'base.toml'"), ["model.hub=o/r"], {})
    assert (profile.model.path, profile.model.hub) == (None, "o/r")
    assert not profile.is_set("model.path")


def test_circles_show_the_chain(write: Write) -> None:
    write("extends = 'b.toml'", "a.toml")
    write("\nextends = ['c.toml']", "b.toml")
    write("extends = 'a.toml'", "c.toml")
    with pytest.raises(ProfileError) as caught:
        load_profile(write("extends = 'a.toml'\n" + MODEL), (), {})
    (found,) = caught.value.diagnostics
    assert found.rule == "KV006"
    assert [Path(part).name for part in found.message.split(": ", 1)[1].split(" → ")] == [
        "p.toml", "a.toml", "b.toml", "c.toml", "a.toml",
    ]  # fmt: skip
    assert found.place is not None and found.place.file.endswith("c.toml")


def test_a_file_may_be_extended_twice_and_a_long_chain_ends(write: Write) -> None:
    write(MODEL, "l0.toml")
    for level in range(1, 25):  # each doubles the ways down: read once each, or this never ends
        write(f"extends = ['l{level - 1}.toml', 'l{level - 1}.toml']", f"l{level}.toml")
    assert load_profile(write("extends = 'l24.toml'"), (), {}).model.path is not None
    for level in range(25, 60):
        write(f"extends = 'l{level - 1}.toml'", f"l{level}.toml")
    with pytest.raises(ProfileError, match="extend each other"):
        load_profile(write("extends = 'l59.toml'"), (), {})


def test_a_base_that_is_missing_or_broken(write: Write) -> None:
    write("[kv\n", "broken.toml")
    file = write("extends = ['not-there.toml', 'broken.toml', 3, '${NO}']\n[kv]\ntier = 'x'")
    with pytest.raises(ProfileError) as caught:
        load_profile(file, (), {})
    rules = {(f.rule, f.key, f.place and f.place.column) for f in caught.value.diagnostics}
    assert {("KV006", "extends", 12), ("KV001", "", 4), ("KV003", "extends", 45), ("KV007", "extends", 48)} <= rules
    assert ("KV004", "kv.tier", 1) in rules, "its own faults are told all the same"
    assert not any(rule == "KV008" for rule, *_ in rules), "the model may be named in the file that cannot be read"


def test_a_shipped_profile_is_extended_by_name(write: Write) -> None:
    profile = load_profile(write("extends = 'agents'\ncontext.slots = 2"), (), {"HOME": "/nowhere"})
    assert profile.context.slots == 2 and profile.context.unified is True and profile.name == "p"


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("context.slots=3", "context.slots", 3),
        ("context.per-slot=8k", "context.per_slot", 8192),
        ("context.per_slot='8k'", "context.per_slot", 8192),
        ("context.unified=true", "context.unified", True),
        ("kv.heads.gpu_fraction=0.25", "kv.heads.gpu_fraction", 0.25),
        ("kv.heads={ gpu_fraction = 0.25 }", "kv.heads.gpu_fraction", 0.25),
        ('compute.devices=["A", "B"]', "compute.devices", ("A", "B")),
        ("model.alias=a=b", "model.alias", "a=b"),
        ("model.chat_template='{{ a }}'", "model.chat_template", "{{ a }}"),
        ("kv.host_layers=", "kv.host_layers", Layers()),
        ("model.alias=a\nb = 1", "model.alias", "a\nb = 1"),
        ("model.alias=1\nb = 1", "model.alias", "1\nb = 1"),
        ("name=n", "name", "n"),
    ],
)
def test_set(load: Load, argument: str, key: str, value: object) -> None:
    found: object = load(MODEL + "[context]\nslots = 9", argument)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_set_of_the_environment_is_literal(load: Load) -> None:
    assert load(MODEL, "env.OMP_NUM_THREADS=2", "env.A-B=x").env == {"OMP_NUM_THREADS": "2", "A-B": "x"}


def test_a_path_in_set_is_relative_to_where_it_was_typed(write: Write, tmp_path: Path) -> None:
    file = write(MODEL, "sub/p.toml")
    profile = load_profile(file, ["model.path=x.gguf"], {}, directory=tmp_path)
    assert profile.model.path == tmp_path / "x.gguf"
    assert profile.sets_directory == str(tmp_path)  # remembered, for a reload from another folder


@pytest.mark.parametrize("argument", ["slots", "=3", "a..b=3", "", "extends=x.toml", ".=1"])
def test_a_set_that_says_nothing_is_wrong_usage(load: Load, argument: str) -> None:
    with pytest.raises(UsageError):
        load(MODEL, argument)


def test_a_fault_in_set_says_so(faults: Faults) -> None:
    found = faults(MODEL, "context.slot=3", "kv.tier.k=f16", "schema=7")
    assert [(f.rule, f.key, f.place) for f in found] == [
        ("KV002", "context.slot", None),
        ("KV003", "kv.tier", None),
        ("KV010", "schema", None),
    ]
    assert found[0].message.endswith("(from --set)")


@pytest.mark.parametrize(
    ("raw", "rule", "line", "column"),
    [
        (b"[context\nslots = 1", "KV001", 1, 9),
        (b"a = 1\nkey = True\n", "KV001", 2, 7),
        (b"a = 1\nb = \xff", "KV001", 2, 5),
        (b"GGUF\x03\xff\xfe", "KV001", 1, 6),
        (b"a = " + b"9" * 5000, "KV001", 1, 1),
        (b"a = " + b"[" * 100000, "KV001", 1, 1),
        (b".".join([b"a"] * 5000) + b" = 1", "KV001", 1, 1),
        (b".".join([b"a"] * 500) + b" = 1", "KV001", 1, 1),
        (b"#" * (1 << 20) + b"#", "KV012", 1, 1),
        (b"a = 1\ra = 2", "KV001", 1, 6),
        (b"\x00", "KV001", 1, 1),
        (b"", "KV008", 1, 1),
    ],
)
def test_what_is_no_profile(tmp_path: Path, raw: bytes, rule: str, line: int, column: int) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(raw)
    with pytest.raises(ProfileError) as caught:
        load_profile(file, (), {})
    (found,) = caught.value.diagnostics
    assert found.place is not None
    assert (found.rule, found.place.line, found.place.column) == (rule, line, column)


@pytest.mark.parametrize(
    "ref", ["./not-there.toml", "/proc/self/mem/x.toml", "a\0b.toml", ".", "./", "x" * 5000, "", "no-such"]
)
def test_what_cannot_be_read(ref: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(ref, (), {"HOME": "/nowhere"})
    assert caught.value.rule == "KV012"


def test_line_ends_and_a_byte_order_mark_are_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(b"\xef\xbb\xbf[model]\r\npath = 'm.gguf'\r\n[context]\r\nslots = 2\r\n")
    profile = load_profile(file, (), {})
    assert profile.context.slots == 2
    place = profile.place("context.slots")
    assert place is not None and (place.line, place.column) == (4, 1)


def test_toml_1_1_is_read(load: Load) -> None:
    assert load(MODEL + "[kv]\nheads = {\n  gpu_fraction = 0.5,\n}\n").kv.heads.gpu_fraction == 0.5


def test_a_stem_that_is_no_name(write: Write) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(write(MODEL, "My Profile.toml"), (), {})
    (found,) = caught.value.diagnostics
    assert found.help == 'write name = "my-profile"'


@pytest.mark.parametrize("code", [code for code, kind in FAULTS.items() if kind.example])
def test_the_example_of_each_fault_has_it(faults: Faults, code: str) -> None:
    assert code in [fault.rule for fault in faults(FAULTS[code].example)]


# --- nothing makes a traceback ----------------------------------------------------------------------------------

tables = st.sampled_from(
    ["model", "context", "kv", "kv.reuse", "kv.eviction", "compute", "serve", "engine", "supervise", "env"]
)
keys = st.sampled_from(
    ["path", "package", "slots", "per_slot", "tier", "tiers", "rope", "ram", "policy", "host", "port", "patches",
     "args", "fallback", "extends", "name", "schema", "lora", "draft", "exact", "budget", "bandwidth", "x_a", "binary"]
)  # fmt: skip
values = st.sampled_from(
    ["1", "-1", "1.5", "nan", "-inf", "true", '""', '"auto"', '"${X}"', '"$"', '"~"', '"~/"', '"/"', '"q8_0"',
     '"0-3"', '"12GiB"', '"9e9"', "[]", "[[]]", "[{}]", '["a", 1]', "{}", "{ a = 1 }", '{ path = "x" }', "1979-05-27",
     "07:32:00", "1979-05-27T07:32:00Z", '"\\u0000"', '"::1"', '"a.sock"', str(10**40), '"٣k"',
     '[{ layers = "0", tier = 3 }]', '"p.toml"']
)  # fmt: skip


@st.composite
def profiles(draw: st.DrawFn) -> str:
    lines = [f"{draw(keys)} = {draw(values)}"] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 6))):
        lines.append(f"{draw(tables)}.{draw(keys)} = {draw(values)}")
    return "\n".join(lines)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profiles(), st.lists(st.builds("{}.{}={}".format, tables, keys, values), max_size=2))
def test_any_profile_loads_or_is_refused_in_words(tmp_path: Path, text: str, sets: list[str]) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    try:
        load_profile(file, sets, {"HOME": "/home/u"})
    except ProfileError as error:
        assert error.diagnostics
        for found in error.diagnostics:
            assert found.message and (found.place is None or found.place.line <= text.count("\n") + 1)
    except KvlaunchError:
        pass


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80), st.text(max_size=20))
def test_any_bytes_and_any_set_are_refused_in_words(tmp_path: Path, raw: bytes, argument: str) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(raw)
    with pytest.raises(KvlaunchError):
        load_profile(file, (), {})
    file.write_text(MODEL)
    try:
        load_profile(file, [argument], {})
    except KvlaunchError as error:
        assert error.code in (2, 10)


def test_loading_is_fast() -> None:
    """Import and load in a fresh interpreter, less the interpreter and pydantic, which everybody pays for."""
    program = (
        "import time, pydantic; from pydantic import BaseModel; t = time.process_time();"
        "from launcher.profile.load import load_profile; load_profile('agents');"
        "print(time.process_time() - t)"
    )
    spent = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout) for _ in range(3)
    ]
    assert min(spent) < 0.15, spent
    start = time.process_time()
    load_profile("agents")
    assert time.process_time() - start < 0.03


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    os.mkfifo(file)
    with pytest.raises(ProfileError, match="not a plain file") as caught:
        load_profile(file, (), {})
    assert caught.value.rule == "KV012"


def test_a_table_is_named_as_people_write_it(write: Write) -> None:
    file = write(MODEL + "[kv.reuse]\nchunk = 1\n[kv.reuse]\nchunk = 2\n")
    with pytest.raises(ProfileError, match=r"cannot declare \[kv\.reuse\] twice"):
        load_profile(file, (), {})
