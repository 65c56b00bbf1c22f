from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tomlkit
from situations import findings

from launcher.errors import ProfileError
from launcher.flow import read_case
from launcher.profile.load import load_profile
from launcher.rules.fix import fix_one, fix_profile

COMMENTED = """\
# four agents
schema = 0

[model]          # which
path = "m.gguf"

[context]
total = "8k"     # the pool
slots = 4


[serve]
port = 0         # any
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def mended(file: Path) -> tuple[str, ...]:
    """What `check --fix` does with it."""
    case = read_case(str(file))
    return fix_profile(case.profile, case.diagnostics)


def test_it_writes_what_is_certain_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(COMMENTED)
    file.chmod(0o640)
    changes = mended(file)
    assert [change.split(": ", 1)[1] for change in changes] == ["schema 0 is now 1", "context.unified = true"]
    assert file.read_text() == COMMENTED.replace("schema = 0", "schema = 1").replace(
        "slots = 4\n", "slots = 4\nunified = true\n"
    )
    assert file.stat().st_mode & 0o777 == 0o640
    assert [one.rule for one in findings(tmp_path, file.read_text())[0]] == []
    assert mended(file) == ()


def mend(text: str, rule: str, given: Sequence[str] = (), folder: Path = Path()) -> str:
    """The text after the one finding of that rule was mended."""
    found = next(one for one in findings(folder, text, given)[0] if one.rule == rule)
    document = tomlkit.parse(text)
    assert fix_one(document, found, load_profile(folder / "p.toml", (), {})) is not None
    return tomlkit.dumps(document)


MODEL = "[model]\npath = 'm.gguf'\n"


def test_mla_gets_one_type_for_both(tmp_path: Path) -> None:
    text = MODEL + "[kv]\ntier = 'q8_0:f16' # best\n"
    assert mend(text, "KV303", ("an MLA model",), tmp_path) == text.replace("'q8_0:f16'", '"q8_0"')
    text = MODEL + "[kv]\ntiers = [{ layers = '0', tier = 'q8_0:f16' }]\n"
    assert mend(text, "KV303", ("an MLA model",), tmp_path) == text.replace("'q8_0:f16'", '"q8_0"')


def test_keys_with_nothing_to_act_on_go(tmp_path: Path) -> None:
    assert (
        mend(MODEL + "[kv]\nswa-full = true\ntier = 'q8_0'\n", "KV205", (), tmp_path) == MODEL + "[kv]\ntier = 'q8_0'\n"
    )
    text = MODEL + "[compute]\ncpu_moe = 'all'\nthreads = 4 # few\n"
    assert mend(text, "KV609", ("a CUDA GPU",), tmp_path) == MODEL + "[compute]\nthreads = 4 # few\n"
    text = MODEL + "draft = { type = 'ngram', path = 'd.gguf' }\n"
    assert mend(text, "KV507", (), tmp_path) == MODEL + "draft = {type = 'ngram'}\n"


def test_a_table_that_is_not_written_yet_is_made(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("context = { total = '8k', slots = 4 }\n" + MODEL)
    assert mended(file) == (f"{file}: context.unified = true",)
    assert load_profile(file, (), {}).context.unified is True


def test_nothing_certain_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    text = '[model]\r\npath = "m.gguf"\r\n[serve]\r\nhost = "0.0.0.0"\r\n'
    file.write_bytes(text.encode())
    stamp = file.stat().st_mtime_ns
    assert mended(file) == ()
    assert file.read_bytes() == text.encode() and file.stat().st_mtime_ns == stamp


def test_what_stands_in_another_file_is_left_to_that_file(tmp_path: Path) -> None:
    base, file = tmp_path / "base.toml", tmp_path / "p.toml"
    base.write_text("[context]\ntotal = '8k'\nslots = 4\n")
    file.write_text("extends = 'base.toml'\n[model]\npath = 'm.gguf'\n")
    assert mended(file) == ()
    assert "unified" not in base.read_text() + file.read_text()


@pytest.mark.parametrize("raw", [b"[kv\n", b"\xff", b"[model]\npth = 1\n"])
def test_what_only_a_person_can_mend(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(raw)
    with pytest.raises(ProfileError):
        mended(file)
    assert file.read_bytes() == raw
    with pytest.raises(ProfileError):
        mended(tmp_path / "not-there.toml")


def test_lines_end_as_the_others_do(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(b"\xef\xbb\xbf" + COMMENTED.replace("\n", "\r\n").encode())
    mended(file)
    written = file.read_bytes()
    assert b"unified = true\r\n" in written and written.count(b"\n") == written.count(b"\r\n")


def test_beside_a_fault_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(COMMENTED + "prot = 1\n")
    with pytest.raises(ProfileError, match="prot"):
        mended(file)
    assert file.read_text() == COMMENTED + "prot = 1\n"
