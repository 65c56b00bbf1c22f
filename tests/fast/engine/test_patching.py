from __future__ import annotations

import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine.patching import Failure, Tree, apply, parse

BASE = b"".join(b"line %d\n" % n for n in range(1, 41))


def tree(**files: bytes) -> Tree:
    return Tree(lambda path: {name.replace("_", "."): data for name, data in files.items()}.get(path))


def diff_of(folder: Path, before: bytes | None, after: bytes | None, *options: str) -> bytes:
    """What git makes of it: the judge of our reader."""
    for side, data in (("a", before), ("b", after)):
        (folder / side).mkdir(parents=True, exist_ok=True)
        (folder / side / "f.c").unlink(missing_ok=True)
        if data is not None:
            (folder / side / "f.c").write_bytes(data)
    command = ["git", "-c", "core.safecrlf=false", "diff", "--no-index", "--no-prefix", *options, "a", "b"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).stdout


def test_a_hunk_that_moved_is_found() -> None:
    moved = b"new\n" * 7 + BASE
    patch = b"--- a/f.c\n+++ b/f.c\n@@ -10,3 +10,3 @@\n line 10\n-line 11\n+LINE 11\n line 12\n"
    it = tree(f_c=moved)
    assert apply(it, "p", patch) == []
    assert it.files["f.c"] == moved.replace(b"line 11\n", b"LINE 11\n")


def test_every_hunk_that_fails_is_named_and_the_others_apply() -> None:
    patch = (
        b"diff --git a/f.c b/f.c\n--- a/f.c\n+++ b/f.c\n"
        b"@@ -3,1 +3,1 @@\n-line X\n+x\n@@ -10,1 +10,1 @@\n-line 10\n+ten\n@@ -20,1 +20,1 @@\n-line Y\n+y\n"
        b"diff --git a/gone.c b/gone.c\n--- a/gone.c\n+++ b/gone.c\n@@ -1,1 +1,1 @@\n-a\n+b\n"
    )
    it = tree(f_c=BASE)
    failures = apply(it, "0001-x.patch", patch)
    assert [(f.file, f.hunk, f.line) for f in failures] == [("f.c", 1, 3), ("f.c", 3, 20), ("gone.c", 0, 0)]
    assert "expected 'line X' at line 3, found 'line 3'" in failures[0].reason
    assert str(failures[2]) == "0001-x.patch: gone.c: no such file in the pin"
    assert it.files["f.c"] == BASE.replace(b"line 10\n", b"ten\n")


def test_context_is_matched_to_the_byte() -> None:
    patch = b"--- a/f.c\n+++ b/f.c\n@@ -2,2 +2,2 @@\n line  2\n-line 3\n+three\n"
    assert len(apply(tree(f_c=BASE), "p", patch)) == 1


def test_a_later_patch_sees_the_earlier_one() -> None:
    it = tree(f_c=BASE)
    assert apply(it, "1", b"--- a/f.c\n+++ b/f.c\n@@ -1,1 +1,2 @@\n line 1\n+one and a half\n") == []
    assert apply(it, "2", b"--- a/f.c\n+++ b/f.c\n@@ -2,1 +2,1 @@\n-one and a half\n+ONE\n") == []
    assert (
        apply(it, "3", b"diff --git a/n.c b/n.c\nnew file mode 100755\n--- /dev/null\n+++ b/n.c\n@@ -0,0 +1 @@\n+n\n")
        == []
    )
    assert it.files == {"f.c": BASE.replace(b"line 1\n", b"line 1\nONE\n", 1), "n.c": b"n\n"}
    assert it.modes == {"n.c": 0o755}


def test_creating_what_is_there_and_deleting_what_differs_fail() -> None:
    it = tree(f_c=BASE)
    assert "is there already" in apply(it, "p", b"--- /dev/null\n+++ b/f.c\n@@ -0,0 +1 @@\n+n\n")[0].reason
    assert len(apply(it, "p", b"--- a/f.c\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-line 1\n-line 2\n")) == 1


def test_binary_truncated_and_empty_patches_are_faults() -> None:
    binary = b"diff --git a/f.c b/f.c\nindex 1..2\nGIT binary patch\nliteral 3\n"
    cut = b"--- a/f.c\n+++ b/f.c\n@@ -1,3 +1,3 @@\n line 1\n-line 2\n"
    for patch, words in ((binary, "binary"), (cut, "cut off"), (b"", "no diff")):
        (failure,) = apply(tree(f_c=BASE), "p", patch)
        assert words in failure.reason


def test_rename() -> None:
    patch = b"diff --git a/f.c b/g.c\nsimilarity index 100%\nrename from f.c\nrename to g.c\n"
    it = tree(f_c=BASE)
    assert apply(it, "p", patch) == []
    assert it.files == {"f.c": None, "g.c": BASE}


lines = st.lists(
    st.sampled_from([b"a", b"b", b"", b"\t x", b"\xff", b"-- a/x", b"++ b", b"@@ -1 +1 @@", b"r\r"]), max_size=30
)
contents = st.builds(lambda ls, end: b"\n".join(ls) + (b"\n" if end and ls else b""), lines, st.booleans())


@settings(max_examples=150, deadline=None)
@given(before=contents, after=contents, context=st.integers(0, 4))
def test_whatever_git_writes_is_applied(tmp_path_factory, before: bytes, after: bytes, context: int) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("diff")
    patch = diff_of(folder, before, after, f"-U{context}", "--text").replace(b"a/f.c b/f.c", b"a/f.c b/f.c")
    if before == after:
        assert patch == b""
        return
    it = tree(f_c=before)
    assert apply(it, "p", patch) == []
    assert it.files["f.c"] == after


def test_two_insertions_without_context() -> None:
    it = tree(f_c=b"a\na\n")
    assert apply(it, "p", b"--- a/f.c\n+++ b/f.c\n@@ -1,0 +2 @@\n+b\n@@ -2,0 +4 @@\n+c\n") == []
    assert it.files["f.c"] == b"a\nb\na\nc\n"


def test_names_are_read_from_the_sides() -> None:
    (change,) = parse(b"--- a/src/f.c\t2024-01-01\n+++ b/src/f.c\n@@ -1 +1 @@\n-a\n+b\n")
    assert (change.source, change.target) == ("src/f.c", "src/f.c")


def test_a_failure_reads_like_a_compilers() -> None:
    assert str(Failure("0006-x.patch", "src/a.cpp", 2, 17, "why")) == "0006-x.patch: src/a.cpp:17: hunk 2: why"
