"""A profile's document written to another folder: every file that it names stays the file that it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.profile.document import parse_set
from launcher.profile.expand import is_path
from launcher.profile.find import is_path as is_file_reference


def anchor(document: Any, directory: Path) -> None:
    """Make relative paths absolute, in place: they were relative to `directory`, where the document stood."""
    _walk(document, (), directory)
    extends = document.get("extends")
    if isinstance(extends, str):
        document["extends"] = _base(extends, directory)
    elif extends is not None:
        for index, item in enumerate(extends):
            extends[index] = _base(str(item), directory)


def lay_sets(document: Any, sets: Sequence[str], directory: Path) -> None:
    """Write what `--set` said: what was found holds with it only."""
    for argument in sets:
        said = parse_set(argument, directory)[0].data
        _walk(said, (), directory)
        _put(document, said)


def _put(document: Any, said: Mapping[str, Any]) -> None:
    for key, value in said.items():
        if isinstance(value, dict):
            _put(document.setdefault(key, {}), value)
        else:
            document[key] = value


def _walk(node: Any, path: tuple[str | int, ...], directory: Path) -> None:
    items = enumerate(node) if isinstance(node, list) else list(node.items())
    for key, value in items:
        name = key.replace("-", "_") if isinstance(key, str) else key
        here = (*path, name)
        if isinstance(value, str):
            if is_path(here, value):
                node[key] = _anchored(value, directory)
        elif isinstance(value, (dict, list)):
            _walk(value, here, directory)


def _anchored(text: str, directory: Path) -> str:
    """`~` and a variable at the front say where they are themselves."""
    return text if text.startswith(("~", "$")) else str(directory / text)


def _base(text: str, directory: Path) -> str:
    if is_file_reference(text):
        return _anchored(text, directory)
    beside = directory / f"{text}.toml"  # as the loader: a name means the file beside, before the known folders
    return str(beside) if beside.is_file() else text
