"""Looks at the files and addresses that a profile names, for the rules: what this room knows of the world outside.

Headers alone are read, nothing is hashed, and a file that can't be read is a fact, not an error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from launcher.errors import ProfileError
from launcher.keyfile import keys_in
from launcher.model.shape import ModelShape, read_shape
from launcher.profile.schema import Profile
from launcher.rules.addresses import unusable_addresses
from launcher.rules.case import Files
from launcher.rules.limits import DIRECTORY_OPTIONS, FILE_OPTIONS

_ENGINES_OWN = Path("etc/llama.cpp/config.ini")  # common/arg.cpp:721


def look(profile: Profile, root: Path = Path("/"), *, elsewhere: bool = False) -> Files:
    """What there is to know. `root` is where /etc is looked for; `elsewhere`: another machine than this will serve."""
    missing: dict[str, str] = {}
    shapes: dict[str, ModelShape] = {}
    for key, path in _named(profile):
        if why := _unusable(path):
            missing[key] = f"{path}: {why}"
        elif key in ("model.mmproj", "model.draft.path") or key.startswith("model.lora."):
            try:
                shapes[key] = read_shape(path)
            except ProfileError as error:
                missing[key] = error.message
    missing |= _of_arguments(profile.engine.args)
    loose, empty = set(), set()
    keys = profile.serve.api_key_file
    if keys is not None and "serve.api_key_file" not in missing:
        if keys.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            loose.add("serve.api_key_file")
        if not keys_in(keys):
            empty.add("serve.api_key_file")
    config = root / _ENGINES_OWN
    return Files(
        missing,
        shapes,
        frozenset(loose),
        frozenset(empty),
        config if config.is_file() else None,
        {} if elsewhere else unusable_addresses(profile.serve.host),
    )


def _named(profile: Profile) -> Iterator[tuple[str, Path]]:
    """The files that must be there already; the model itself is read, and judged, elsewhere."""
    model = profile.model
    named: list[tuple[str, Path | str | None]] = [
        ("model.mmproj", model.mmproj),
        ("model.chat_template", model.chat_template),
        ("model.draft.path", model.draft.path if model.draft is not None else None),
        *((f"model.lora.{index}.path", lora.path) for index, lora in enumerate(model.lora)),
        ("kv.calibration", profile.kv.calibration),
        ("serve.api_key_file", profile.serve.api_key_file),
        ("engine.binary", profile.engine.binary),
    ]
    for key, path in named:
        if isinstance(path, Path):
            yield key, path


def _of_arguments(args: Sequence[str]) -> dict[str, str]:
    """Files and directories that engine.args name. The engine has its own working directory: a relative one is lost."""
    found: dict[str, str] = {}
    for index, (flag, value) in enumerate(pairwise(args), start=1):
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        path = Path(value)
        if name in DIRECTORY_OPTIONS and not path.is_dir():
            found[f"engine.args.{index}"] = f"{value}: no such directory"
        elif name in FILE_OPTIONS and (why := _unusable(path)):
            found[f"engine.args.{index}"] = f"{value}: {why}"
    return found


def _unusable(path: Path) -> str:
    """Why the file can't be read, in words; empty where it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        if not path.exists():
            return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(path, os.R_OK) else "it may not be read by this user"
