"""What one engine can do, known without starting it: its options, its cache types, its patches.

Known from, in this order: a help text that the user gives; the given binary's own `--help`; the manifest of the built
engine; the committed record of the pin (`build/capability/`), held true by a test.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.manifest import Manifest
from launcher.engine.options import spelling
from launcher.engine.pins import Pin, read_pin
from launcher.errors import ProfileError
from launcher.paths import shipped

_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*")
_TYPES = re.compile(r"allowed values: ([a-z0-9_, \n]+?)\s*(?:\(|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Capability:
    """`options`: every spelling that the help lists. `patches`: None where only a binary's help is known."""

    options: frozenset[str]
    cache_types: frozenset[str]
    patches: frozenset[str] | None
    source: str

    def has(self, name: str) -> bool:
        """Whether the engine takes one of our options (options.OPTIONS)."""
        return spelling(name, self.options) is not None


def from_help(text: str, source: str, patches: Collection[str] | None = None) -> Capability:
    """Read the text of `llama-server --help`. Raises ProfileError when it is no such text."""
    options = parse_options(text)
    if not {"--model", "--ctx-size"} & options:
        raise ProfileError(f"{source} is no help text of llama-server", help="It is what `llama-server --help` prints.")
    return Capability(options, parse_cache_types(text), None if patches is None else frozenset(patches), source)


def parse_options(text: str) -> frozenset[str]:
    """The spellings in the left column of the help, with and without a value."""
    found: set[str] = set()
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            # the description begins after two spaces, but an alias may stand behind a comma and padding
            left = re.split(r"(?<![, ]) {2,}", line, maxsplit=1)[0]
            found.update(_FLAG.findall(left))
    return frozenset(found)


def parse_cache_types(text: str) -> frozenset[str]:
    """The values that `--cache-type-k` allows."""
    start = re.search(r"^.*--cache-type-k\b(?!-)", text, re.MULTILINE)
    match = _TYPES.search(text, start.end()) if start else None
    return frozenset(name.strip() for name in match[1].replace("\n", " ").split(",")) if match else frozenset()


def from_manifest(manifest: Manifest) -> Capability:
    """A built engine's."""
    return Capability(
        frozenset(manifest.engine_options),
        frozenset(manifest.cache_types),
        manifest.patch_ids,
        f"engine {manifest.key}",
    )


def from_record(pin: Pin | None = None) -> Capability:
    """The committed record of the pin with the default patches: what an engine will be able to do once it is built."""
    name = (pin or read_pin()).name
    folder = shipped("build") / "capability"
    text = (folder / f"{name}.help.txt").read_text("utf-8")
    patches = (folder / f"{name}.patches").read_text("utf-8").split()
    return from_help(text, f"record of {name}", patches)


def from_binary(binary: Path, cache: Path) -> Capability:
    """Ask a binary for its help; remembered by inode, size and time, for asking costs a start. Raises ProfileError."""
    try:
        stat = binary.stat()
    except OSError as error:
        raise ProfileError(f"engine.binary: {binary}: {error.strerror}") from error
    identity = f"{binary.resolve()}\0{stat.st_ino}\0{stat.st_size}\0{stat.st_mtime_ns}"
    entry = cache / "capability" / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    try:
        known = json.loads(entry.read_text("utf-8"))
        return Capability(frozenset(known["options"]), frozenset(known["cache_types"]), None, str(binary))
    except (OSError, ValueError, KeyError):
        pass
    found = from_help(ask_help(binary), str(binary))
    entry.parent.mkdir(parents=True, exist_ok=True)
    fresh = entry.with_suffix(".new")
    fresh.write_text(json.dumps({"options": sorted(found.options), "cache_types": sorted(found.cache_types)}))
    fresh.replace(entry)
    return found


def ask_help(binary: Path) -> str:
    """The output of `--help`. A llamafile needs `--server` to be a server. Raises ProfileError."""
    said = ""
    for arguments in (["--help"], ["--server", "--help"]):
        try:
            done = subprocess.run(
                [str(binary), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProfileError(f"engine.binary: {binary} cannot be run: {error}") from error
        if "--ctx-size" in done.stdout:
            return done.stdout
        said = said or (done.stdout + done.stderr).strip()
    raise ProfileError(
        f"engine.binary: {binary} is no llama-server", help=f"Asked for --help it says: {said[:200] or 'nothing'}"
    )
