from __future__ import annotations

from pathlib import Path

import pytest

from launcher.engine.series import parse_fields, read_series, select, split_header
from launcher.errors import ProfileError
from launcher.paths import shipped

DIFF = "diff --git a/f.c b/f.c\n--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+b\n"


def patch(folder: Path, name: str, **fields: str) -> None:
    head = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in fields.items())
    (folder / name).write_text(f"{head}---\n{DIFF}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    patch(tmp_path, "0001-a.patch", Technique="first", Options="none (fault)", Depends="none")
    patch(tmp_path, "0002-b.patch", Technique="second", Options="--b-on, --b N; request field b", Depends="0001")
    patch(tmp_path, "0003-c.patch", Technique="third", Depends="0002, 0001", Stage="experimental")
    (tmp_path / "series").write_text("# faults\n0001-a.patch\n\n0002-b.patch  # twice\n0003-c.patch\n")
    return tmp_path


def test_headers(folder: Path) -> None:
    one, two, three = read_series(folder)
    assert (one.id, one.name, one.technique, one.options, one.depends) == ("0001", "a", "first", (), ())
    assert (two.options, two.depends) == (("--b-on", "--b"), ("0001",))
    assert three.experimental and not two.experimental


def test_continuation_lines_belong_to_their_field() -> None:
    fields = parse_fields("Why: one\n two\n  three\nOptions:\n --x\nno field\n lost\n")
    assert fields == {"Why": "one\ntwo\n three", "Options": "--x"}


def test_the_header_ends_where_the_diff_begins() -> None:
    assert split_header(f"Why: x\n---\n{DIFF}".encode()) == ("Why: x\n", DIFF.encode())
    assert split_header(b"Why: no diff\n") == ("Why: no diff\n", b"")


def test_a_better_sentence_is_no_new_engine(folder: Path) -> None:
    before = read_series(folder)[0].digest
    patch(folder, "0001-a.patch", Technique="said better")
    assert read_series(folder)[0].digest == before


def test_choices(folder: Path) -> None:
    series = read_series(folder)

    def ids(choice: str | tuple[str, ...]) -> list[str]:
        return [p.id for p in select(series, choice)]

    assert ids("default") == ["0001", "0002"]
    assert ids("none") == []
    assert ids(("0003",)) == ["0001", "0002", "0003"]
    with pytest.raises(ProfileError, match="no patch 0009") as caught:
        ids(("0009", "0001"))
    assert "0001, 0002, 0003" in caught.value.help


def test_no_series_is_an_empty_one(tmp_path: Path) -> None:
    assert read_series(tmp_path) == ()


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        ("0002-b.patch\n", "depends on 0001"),
        ("0001-a.patch\n0001-a.patch\n", "listed twice"),
        ("../0001-a.patch\n", "No such file"),
        ("fix.patch\n", "is no name of a patch"),
        ("0004-missing.patch\n", "No such file"),
    ],
)
def test_faults_of_a_series(folder: Path, listing: str, words: str) -> None:
    (folder / "series").write_text(listing)
    with pytest.raises(ProfileError, match=words):
        read_series(folder)


def test_our_own_series_has_whole_headers() -> None:
    for one in read_series():
        assert {"Technique", "Why", "Options", "Off-path", "Depends", "Upstream"} <= set(one.fields), one.path.name
        assert one.path.parent == shipped("patches")


def test_a_folder_that_is_not_there_is_no_empty_series(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such folder"):
        read_series(tmp_path / "slip")
    assert read_series(tmp_path) == ()
