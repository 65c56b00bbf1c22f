from __future__ import annotations

from pathlib import Path

import pytest

from launcher.engine import worktree
from launcher.engine.series import Patch
from launcher.engine.worktree import Patched, patch_all, sync, try_all
from launcher.errors import BuildError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "pin"
    for name, text in {"CMakeLists.txt": "x\n", "src/a.cpp": "a\nb\n", "src/b.h": "h\n", "run.sh": "#!\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "run.sh").chmod(0o755)
    return root


def patch(number: str, diff: str) -> Patch:
    return Patch(number, "x", Path(f"{number}-x.patch"), {}, f"Why: x\n---\n{diff}".encode())


EDIT = "--- a/src/a.cpp\n+++ b/src/a.cpp\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"
NEW = "diff --git a/src/n.cpp b/src/n.cpp\nnew file mode 100644\n--- /dev/null\n+++ b/src/n.cpp\n@@ -0,0 +1 @@\n+n\n"
BAD = "--- a/src/b.h\n+++ b/src/b.h\n@@ -1 +1 @@\n-nothing\n+x\n"


def test_every_failing_patch_is_named_and_nothing_is_written(source: Path) -> None:
    with pytest.raises(BuildError) as caught:
        patch_all(source, [patch("0001", BAD), patch("0002", EDIT), patch("0003", BAD.replace("b.h", "c.h"))])
    assert caught.value.message.startswith("2 of 3 patches do not apply")
    assert "0001-x.patch: src/b.h:1" in caught.value.message
    assert "0003-x.patch: src/c.h: no such file" in caught.value.message
    assert (source / "src/a.cpp").read_text() == "a\nb\n"


def test_a_patch_that_leads_out_of_the_tree_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s\n")
    out = NEW.replace("src/n.cpp", "../escaped.cpp")
    read = "--- a/../secret\n+++ b/../secret\n@@ -1 +1 @@\n-s\n+t\n"
    _, failures = try_all(source, [patch("0001", out), patch("0002", read)])
    assert {f.file for f in failures} == {"../escaped.cpp", "../secret"}


def test_sync_writes_only_what_changes(source: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree" / "src"
    tree.parent.mkdir()
    assert sync(source, Patched({}, {}), tree) == 4
    before = {p: p.stat().st_mtime_ns for p in tree.rglob("*") if p.is_file()}
    assert sync(source, patch_all(source, [patch("0001", EDIT), patch("0002", NEW)]), tree) == 2
    assert (tree / "src/a.cpp").read_text() == "a\nB\n"
    assert (tree / "src/n.cpp").read_text() == "n\n"
    same = [p.name for p, stamp in before.items() if p.stat().st_mtime_ns == stamp]
    assert sorted(same) == ["CMakeLists.txt", "b.h", "run.sh"]
    assert (tree / "run.sh").stat().st_mode & 0o111
    assert sync(source, Patched({}, {}), tree) == 2  # and back: the new file goes, the edit too
    assert not (tree / "src/n.cpp").exists()
    assert sync(source, Patched({}, {}), tree) == 0


def test_an_edit_by_hand_and_a_stray_file_are_put_right(source: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    sync(source, Patched({}, {}), tree)
    (tree / "src/b.h").write_text("hacked\n")
    (tree / "src/stray.cpp").write_text("int x;\n")  # upstream globs src/models: a stray file would be compiled
    assert sync(source, Patched({}, {}), tree) == 2
    assert (tree / "src/b.h").read_text() == "h\n"
    assert not (tree / "src/stray.cpp").exists()


def test_an_interrupted_sync_is_compared_anew(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    sync(source, Patched({}, {}), tree)

    def broken(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worktree, "_write", broken)
    with pytest.raises(BuildError, match="no space left"):
        sync(source, patch_all(source, [patch("0001", EDIT)]), tree)
    monkeypatch.undo()
    assert sync(source, patch_all(source, [patch("0001", EDIT)]), tree) == 1
    assert (tree / "src/a.cpp").read_text() == "a\nB\n"
