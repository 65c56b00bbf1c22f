"""The series as commits: a folder where patches are worked on with git, and the way back into patch files.

`open`: the pin as a repository, one commit a patch, its message the patch's name and header. `save`: each commit after
the base becomes its patch again. A patch whose change is still the same keeps its bytes, so nothing moves by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.engine import patching
from launcher.engine.pins import Pin
from launcher.engine.series import Patch, read_series, split_header
from launcher.errors import BuildError, UsageError

_BASE = "kvlaunch-base"
_SUBJECT = re.compile(r"(\d{4}-[a-z0-9][a-z0-9-]*)\Z")
_REJECTED = "kvlaunch-rejected.txt"
_DIFF = ("--no-color", "--no-ext-diff", "--no-renames", "-U3", "--src-prefix=a/", "--dst-prefix=b/")


@dataclass(frozen=True, slots=True)
class Saved:
    """What `save` did with each patch file."""

    written: tuple[str, ...]
    kept: tuple[str, ...]
    removed: tuple[str, ...]


def open_series(source: Path, pin: Pin, patches: Sequence[Patch], folder: Path, *, resume: bool = False) -> int:
    """Make the repository; gives the number of commits. `resume`: go on after a patch that was mended by hand.

    Raises BuildError at the first patch that does not apply: what applies of it lies in the folder, uncommitted.
    """
    if not resume:
        _new_repository(source, pin, patches, folder)
    done = set(_commits(folder).values()) if resume else set()
    if resume and _git(folder, "status", "--porcelain", "--untracked-files=no").strip():
        raise UsageError(f"{folder} has changes that are not committed", help="Commit them, then go on.")
    count = 0
    for patch in patches:
        if patch.path.stem in done:
            continue
        _commit_patch(patch, folder)
        count += 1
    return count


def _new_repository(source: Path, pin: Pin, patches: Sequence[Patch], folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", help="Name a new folder; `--continue` goes on in one begun before.")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    _git(folder, "init", "--quiet", "--initial-branch=series")
    for key, value in {
        "core.autocrlf": "false",  # patches are bytes
        "core.safecrlf": "false",
        "commit.gpgsign": "false",
        "gc.auto": "0",
        "core.hooksPath": os.devnull,  # the hooks of the user are for the commits of the user
        "kvlaunch.opened": " ".join(patch.path.stem for patch in patches),
    }.items():
        _git(folder, "config", key, value)
    for key, value in {"user.name": "kvlaunch", "user.email": "kvlaunch@localhost"}.items():
        if not _git(folder, "config", "--default", "", "--get", key).strip():
            _git(folder, "config", key, value)
    # upstream ignores files that it ships; all of the pin belongs to the base
    _git(folder, "add", "--all", "--force")
    _git(folder, "commit", "--quiet", "--message", f"{pin.name}: {pin.package} {pin.version}")
    _git(folder, "tag", _BASE)


def _commit_patch(patch: Patch, folder: Path) -> None:
    tree = patching.Tree(lambda path: (folder / path).read_bytes() if (folder / path).is_file() else None)
    header, diff = split_header(patch.text)
    failures = patching.apply(tree, patch.path.name, diff)
    for path, data in tree.files.items():
        target = folder / path
        if data is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if path in tree.modes:
            target.chmod(tree.modes[path])
    _git(folder, "add", "--all", "--force", "--", *tree.files)
    message = folder / ".git" / "kvlaunch-message"
    message.write_text(f"{patch.path.stem}\n\n{header}", encoding="utf-8")
    if failures:
        (folder / ".git" / _REJECTED).write_text("\n".join(map(str, failures)) + "\n", encoding="utf-8")
        raise BuildError(
            f"{patch.path.name} does not apply; the hunks that do are in {folder}, staged:\n  "
            + "\n  ".join(map(str, failures)),
            help=f"Mend it there, then: git add -A && git commit --cleanup=verbatim -F {message} "
            f"&& kvlaunch patches open --continue {folder}",
        )
    _git(folder, "commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--file", str(message))


def save_series(folder: Path, patches_dir: Path) -> Saved:
    """Write the commits back. Raises UsageError for a commit that names no patch, BuildError for what git says."""
    commits = _commits(folder)
    unnamed = [commit for commit, stem in commits.items() if not stem]
    if unnamed:
        told = _git(folder, "show", "--no-patch", "--format=%h %s", *unnamed).strip()
        raise UsageError(
            f"these commits are no patches:\n  {told}",
            help="The subject of each is the patch's name, NNNN-some-words, and nothing else; "
            "`git rebase -i` squashes a fixup.",
        )
    if len(set(commits.values())) != len(commits):
        raise UsageError("two commits have the same name", help="`git rebase -i` joins them.")
    if sorted(commits.values()) != list(commits.values()):
        raise UsageError("the commits do not stand in the order of their numbers", help="`git rebase -i` moves them.")
    before = {patch.path.stem: patch for patch in read_series(patches_dir)}
    opened = set(_git(folder, "config", "--default", "", "--get", "kvlaunch.opened").split())
    written, kept = [], []
    for commit, stem in commits.items():
        text = _patch_text(folder, commit, stem, before.get(stem))
        file = patches_dir / f"{stem}.patch"
        if file.is_file() and file.read_bytes() == text:
            kept.append(stem)
        else:
            file.write_bytes(text)
            written.append(stem)
    removed = sorted(opened & set(before) - set(commits.values()))
    for stem in removed:
        (patches_dir / f"{stem}.patch").unlink(missing_ok=True)
    _write_listing(patches_dir / "series", [s for s in commits.values() if s not in before], removed)
    return Saved(tuple(written), tuple(kept), tuple(removed))


def _patch_text(folder: Path, commit: str, stem: str, old: Patch | None) -> bytes:
    message = _git(folder, "show", "--no-patch", "--format=%B", commit)
    header = message.split("\n", 2)[2].rstrip("\n") + "\n" if message.count("\n") >= 2 else ""
    if old is not None and _same_change(folder, commit, split_header(old.text)[1]):
        if split_header(old.text)[0].rstrip("\n") + "\n" == header:
            return old.text
        diff = split_header(old.text)[1]
    else:
        diff = _diff(folder, commit)
    if not diff:
        raise UsageError(f"the commit {stem} changes nothing", help="`git rebase -i` drops it.")
    return header.encode() + b"---\n" + diff


def _diff(folder: Path, commit: str) -> bytes:
    """Without `index` lines: hashes of blobs change with every pin and tell nothing."""
    raw = _git_bytes(folder, "diff", *_DIFF, f"{commit}^", commit)
    return re.sub(rb"(?m)^index [0-9a-f]+\.\.[0-9a-f]+(?: \d+)?\n(?=--- |diff |\Z)", b"", raw)


def _same_change(folder: Path, commit: str, diff: bytes) -> bool:
    """Whether the old patch, applied to the commit's parent, makes just this commit."""
    tree = patching.Tree(lambda path: _blob(folder, f"{commit}^", path))
    if patching.apply(tree, "", diff):
        return False
    names = _git(folder, "diff", "--name-only", "--no-renames", "-z", f"{commit}^", commit)
    changed = set(names.rstrip("\0").split("\0")) - {""}
    return changed == set(tree.files) and all(_blob(folder, commit, path) == tree.files[path] for path in changed)


def _blob(folder: Path, commit: str, path: str) -> bytes | None:
    done = subprocess.run(
        ["git", "-C", str(folder), "cat-file", "blob", f"{commit}:{path}"], capture_output=True, check=False, env=_env()
    )
    return done.stdout if done.returncode == 0 else None


def _write_listing(listing: Path, added: Sequence[str], removed: Sequence[str]) -> None:
    """New names in the order of their numbers; comments and everything else stay as they are."""
    lines = listing.read_text("utf-8").splitlines() if listing.is_file() else []
    gone = {f"{stem}.patch" for stem in removed}
    lines = [line for line in lines if line.split("#", 1)[0].strip() not in gone]
    for stem in added:
        names = [line.split("#", 1)[0].strip() for line in lines]
        at = max((i + 1 for i, name in enumerate(names) if name and name < f"{stem}.patch"), default=len(lines))
        lines.insert(at, f"{stem}.patch")
    text = "".join(f"{line}\n" for line in lines)
    if not listing.is_file() or listing.read_text("utf-8") != text:
        listing.write_text(text, "utf-8")


def _commits(folder: Path) -> dict[str, str]:
    """Commit to patch name, the oldest first; an empty name for a commit whose subject is none."""
    log = _git(folder, "log", "--reverse", "--format=%H %s", f"{_BASE}..HEAD")
    pairs = [line.partition(" ") for line in log.splitlines()]
    return {commit: subject if _SUBJECT.match(subject) else "" for commit, _, subject in pairs}


def _git(folder: Path, *arguments: str) -> str:
    return _git_bytes(folder, *arguments).decode("utf-8", "replace")


def _git_bytes(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False, env=_env())
    except FileNotFoundError as error:
        raise BuildError("git is not here", help="Patches are worked on with git: install it.") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise BuildError(f"git {arguments[0]} in {folder}: {said or f'code {done.returncode}'}")
    return done.stdout


def _env() -> dict[str, str]:
    """Not the caller's repository: GIT_DIR and its kin of an outer git would win over the folder."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
