from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.engine.pins import Pin, read_pin
from launcher.engine.series import read_series
from launcher.engine.workbench import open_series, save_series
from launcher.errors import BuildError, UsageError

A = b"diff --git a/f.c b/f.c\n--- a/f.c\n+++ b/f.c\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
B = b"diff --git a/n.c b/n.c\nnew file mode 100644\n--- /dev/null\n+++ b/n.c\n@@ -0,0 +1,2 @@\n+n\n+m\n"


@pytest.fixture
def pin() -> Pin:
    return read_pin()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "pin"
    root.mkdir()
    (root / "f.c").write_bytes(b"one\ntwo\nthree\n")
    (root / ".gitignore").write_bytes(b"*.o\n")
    (root / "kept.o").write_bytes(b"shipped although ignored\n")
    return root


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "0001-a.patch").write_bytes(b"Technique: a\nWhy: because\n of it\n---\n" + A)
    (folder / "0002-b.patch").write_bytes(b"Technique: b\nDepends: none\n---\n" + B)
    (folder / "series").write_text("# the series\n0001-a.patch\n\n0002-b.patch\n")
    return folder


@pytest.fixture
def bench(source: Path, patches: Path, pin: Pin, tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    assert open_series(source, pin, read_series(patches), folder) == 2
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_open_makes_a_commit_a_patch_with_the_header_as_message(bench: Path) -> None:
    assert git(bench, "log", "--format=%s").split("\n")[:2] == ["0002-b", "0001-a"]
    assert "Why: because\n of it" in git(bench, "log", "--format=%B")
    assert (bench / "f.c").read_text() == "one\nTWO\nthree\n"
    assert git(bench, "status", "--porcelain") == ""
    assert "kept.o" in git(bench, "ls-files")


def test_a_round_trip_changes_nothing(bench: Path, patches: Path) -> None:
    before = snapshot(patches)
    saved = save_series(bench, patches)
    assert (saved.written, saved.kept, saved.removed) == ((), ("0001-a", "0002-b"), ())
    assert snapshot(patches) == before


def test_an_edit_changes_its_own_patch_alone(
    bench: Path, patches: Path, source: Path, pin: Pin, tmp_path: Path
) -> None:
    (bench / "n.c").write_text("n\nm\no\n")
    git(bench, "commit", "--quiet", "--all", "--amend", "--no-edit")
    assert save_series(bench, patches).written == ("0002-b",)
    text = (patches / "0002-b.patch").read_bytes()
    assert text.startswith(b"Technique: b\nDepends: none\n---\ndiff --git a/n.c b/n.c\n")
    assert b"\nindex " not in text and b"@@ -0,0 +1,3 @@\n+n\n+m\n+o\n" in text
    again = tmp_path / "again"
    open_series(source, pin, read_series(patches), again)
    assert (again / "n.c").read_text() == "n\nm\no\n"


def test_a_header_can_be_edited_in_the_message(bench: Path, patches: Path) -> None:
    git(
        bench,
        "commit",
        "--quiet",
        "--amend",
        "--cleanup=verbatim",
        "-m",
        "0002-b\n\nTechnique: better\nDepends: 0001\n",
    )
    assert save_series(bench, patches).written == ("0002-b",)
    assert (patches / "0002-b.patch").read_bytes() == b"Technique: better\nDepends: 0001\n---\n" + B


def test_a_new_commit_becomes_a_patch_at_its_place_in_the_series(bench: Path, patches: Path) -> None:
    (bench / "z.c").write_text("z\n")
    git(bench, "add", "z.c")
    git(bench, "commit", "--quiet", "-m", "0010-z\n\nTechnique: z\nDepends: none\n")
    assert save_series(bench, patches).written == ("0010-z",)
    assert (patches / "series").read_text() == "# the series\n0001-a.patch\n\n0002-b.patch\n0010-z.patch\n"
    assert [p.id for p in read_series(patches)] == ["0001", "0002", "0010"]


def test_a_dropped_commit_takes_its_patch_along(bench: Path, patches: Path) -> None:
    git(bench, "reset", "--quiet", "--hard", "HEAD~1")
    assert save_series(bench, patches).removed == ("0002-b",)
    assert not (patches / "0002-b.patch").exists()
    assert (patches / "series").read_text() == "# the series\n0001-a.patch\n\n"


def test_a_commit_that_names_no_patch_is_refused_before_anything_is_written(bench: Path, patches: Path) -> None:
    before = snapshot(patches)
    (bench / "f.c").write_text("four\n")
    git(bench, "commit", "--quiet", "--all", "-m", "fixup! 0001-a")
    with pytest.raises(UsageError, match="fixup! 0001-a"):
        save_series(bench, patches)
    assert snapshot(patches) == before


def test_a_patch_that_does_not_apply_can_be_mended_and_continued(
    source: Path, patches: Path, pin: Pin, tmp_path: Path
) -> None:
    (source / "f.c").write_bytes(b"one\n2\nthree\n")  # the next pin
    folder = tmp_path / "work"
    with pytest.raises(BuildError, match=r"0001-a\.patch does not apply") as caught:
        open_series(source, pin, read_series(patches), folder)
    assert "--continue" in caught.value.help
    (folder / "f.c").write_bytes(b"one\nTWO\nthree\n")
    git(folder, "commit", "--quiet", "--all", "--cleanup=verbatim", "-F", ".git/kvlaunch-message")
    assert open_series(source, pin, read_series(patches), folder, resume=True) == 1
    assert save_series(folder, patches).written == ("0001-a",)
    assert b"-2\n+TWO\n" in (patches / "0001-a.patch").read_bytes()


def test_a_folder_with_something_in_it_is_refused(source: Path, pin: Pin, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not empty"):
        open_series(source, pin, (), source)
