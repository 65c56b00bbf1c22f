"""One TOML file of a profile: its data with every key's origin, and how one file lies over another.

Knows the spelling rules of profiles (hyphens, x_ keys, [env]), but not what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli

from launcher.diagnostic import Diagnostic, Place
from launcher.profile.faults import Path as Key
from launcher.profile.faults import fault
from launcher.profile.scan import scan

LARGEST_FILE = 1 << 20
_DEEPEST = 32

# The model is one thing with several ways to say where it is: who names one anew means no other, nor its checksum.
MODEL_SOURCES = ("path", "package", "hub")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a key was written. `place` is None for `--set`; `directory` is what its relative paths start from."""

    place: Place | None
    directory: Path


@dataclass(slots=True)
class Layer:
    """A tree of tables and the origin of each key in it."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)

    def forget(self, key: Key) -> None:
        """The key, and all that stands below it, was never written."""
        table: Any = self.data
        for part in key[:-1]:
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.pop(key[-1], None)
        for path in [path for path in self.origins if path[: len(key)] == key]:
            del self.origins[path]

    def origin(self, key: Key) -> Origin | None:
        """The origin of the key, else of what is around it."""
        for length in range(len(key), 0, -1):
            if found := self.origins.get(key[:length]):
                return found
        return None


class Unreadable(Exception):
    """The file has one fault that hides everything else in it."""

    def __init__(self, found: Diagnostic) -> None:
        super().__init__(found.message)
        self.found = found


def read_file(file: Path) -> str:
    """The text with `\\n` line ends and no byte-order mark. Raises Unreadable."""
    try:
        # a pipe without a writer would be waited for, a device read for ever
        if file.exists() and not file.is_file() and not file.is_dir():
            raise Unreadable(fault("KV012", (), f"{str(file)[:200]!r} is not a plain file", "write the profile to one"))
        with file.open("rb") as stream:
            raw = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable(fault("KV012", (), f"cannot read {str(file)[:200]!r}: {reason}")) from None
    place = Place(str(file), 1, 1)
    if len(raw) > LARGEST_FILE:
        raise Unreadable(fault("KV012", (), f"{file} has more than 1 MiB: that is no profile", "", place))
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        what = "a GGUF, not a profile" if raw.startswith(b"GGUF") else f"no UTF-8 (byte {raw[error.start]:#04x})"
        help = "give it as model.path of a profile, or try `kvlaunch init`" if "GGUF" in what else "save it as UTF-8"
        raise Unreadable(fault("KV001", (), f"the file is {what}", help, Place(str(file), line, column))) from None


def parse(text: str, file: str, directory: Path) -> tuple[Layer, list[Diagnostic]]:
    """The file's layer, and the keys that it writes twice. Raises Unreadable where tomli finds no TOML."""
    try:
        data = tomli.loads(text)
        places = {key: Place(file, *at) for key, at in scan(text).items()}
    except tomli.TOMLDecodeError as error:
        place = Place(file, error.lineno, error.colno)
        message = _NAMES.sub(_dotted_name, error.msg[:1].lower() + error.msg[1:])
        raise Unreadable(fault("KV001", (), f"no TOML: {message}", _syntax_help(text, error), place)) from None
    except RecursionError:
        raise Unreadable(fault("KV001", (), "nested too deep", "", Place(file, 1, 1))) from None
    except ValueError as error:  # an integer with more digits than Python reads
        raise Unreadable(fault("KV001", (), str(error), "", Place(file, 1, 1))) from None
    layer = Layer()
    faults: list[Diagnostic] = []
    layer.data = _spell(data, (), (), _Spelling(places, directory, layer.origins, faults))
    return layer, faults


_NAMES = re.compile(r"\('[^()]*'\)|\('[^()]*',\)")
"""tomli names a table as Python writes a tuple of its parts: ('kv', 'reuse')."""


def _dotted_name(found: re.Match[str]) -> str:
    return "[" + ".".join(re.findall(r"'([^']*)'", found[0])) + "]"


def _syntax_help(text: str, error: tomli.TOMLDecodeError) -> str:
    """The slips that people make most when they come from another notation."""
    lines = text.split("\n")
    line = lines[error.lineno - 1] if error.lineno <= len(lines) else ""
    key, equals, value = line.partition("=")
    value = value.split("#")[0].strip()
    if equals and value in ("True", "False", "yes", "no", "on", "off", "None"):
        meant = {"True": "true", "yes": "true", "False": "false", "no": "false"}.get(value, f'"{value}"')
        return f"write {key.strip()} = {meant}"
    if equals and value and (value[0].isalpha() or value[0] in "~/." or value[0].isdigit()) and '"' not in value:
        return f'text stands in quotes: {key.strip()} = "{value}"'
    if not equals and ":" in line:
        return "TOML writes key = value, not key: value"
    return ""


@dataclass(frozen=True, slots=True)
class _Spelling:
    places: Mapping[Key, Place]
    directory: Path
    origins: dict[Key, Origin]
    faults: list[Diagnostic]


def _spell(value: Any, written: Key, key: Key, known: _Spelling) -> Any:
    """The value with its keys in our spelling, arrays as tuples, and without what begins with x_."""
    if len(key) > _DEEPEST:
        raise Unreadable(fault("KV001", key[:3], "nested too deep", "", known.places.get(written[:1])))
    if isinstance(value, list):
        for index in range(len(value)):
            _note((*written, index), (*key, index), known)
        return tuple(_spell(item, (*written, index), (*key, index), known) for index, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    table: dict[str, Any] = {}
    for name, item in value.items():
        # the names of environment variables are no keys of ours
        ours = name if key == ("env",) else name.replace("-", "_")
        if ours.startswith("x_") and key != ("env",):
            continue
        if ours in table:
            place = known.places.get((*written, name))
            first = known.origins[(*key, ours)].place
            line = f" (line {first.line})" if first else ""
            known.faults.append(fault("KV009", (*key, ours), f'"{ours}" is written twice{line}', "keep one", place))
            continue
        _note((*written, name), (*key, ours), known)
        table[ours] = _spell(item, (*written, name), (*key, ours), known)
    return table


def _note(written: Key, key: Key, known: _Spelling) -> None:
    known.origins[key] = Origin(known.places.get(written), known.directory)


def parse_set(argument: str, directory: Path) -> tuple[Layer, list[Diagnostic]]:
    """`key.path=value` as a layer. Raises ValueError where it has no such form."""
    name, equals, text = argument.partition("=")
    parts = [part.strip() for part in name.split(".")]
    if not equals or not all(parts):
        raise ValueError("write key.path=value, for example context.slots=4")
    try:
        read = tomli.loads(f"v = {text}")
        # a line break in the text could begin a second key
        value = read["v"] if len(read) == 1 else text
    except (ValueError, RecursionError):
        value = text
    for part in reversed(parts):
        value = {part: value}
    layer = Layer()
    faults: list[Diagnostic] = []
    layer.data = _spell(value, (), (), _Spelling({}, directory, layer.origins, faults))
    return layer, faults


def lay_over(below: Layer, above: Layer) -> Layer:
    """`above` wins: tables merge key by key, anything else replaces."""
    result = Layer(_copy(below.data), dict(below.origins))
    model = above.data.get("model")
    if isinstance(model, dict) and any(source in model for source in MODEL_SOURCES):
        for source in (*MODEL_SOURCES, "sha256"):
            result.forget(("model", source))
    for key in _replaced(result.data, above.data, ()):
        result.forget(key)
    _put(result.data, above.data)
    result.origins.update(above.origins)
    return result


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _replaced(below: dict[str, Any], above: dict[str, Any], path: Key) -> Iterator[Key]:
    """The keys of `below` that do not merge but go."""
    for name, value in above.items():
        if name not in below:
            continue
        old = below[name]
        if isinstance(old, dict) and isinstance(value, dict):
            yield from _replaced(old, value, (*path, name))
        else:
            yield (*path, name)


def _put(below: dict[str, Any], above: dict[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            _put(below[name], value)
        else:
            below[name] = _copy(value)
