"""From a PROFILE on the command line to a `Profile`: `--set` over the file over what it extends over the defaults.

All faults are found in one run. Nothing here looks at models or machines; the profile's own files are all it reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from launcher.diagnostic import Diagnostic, Place
from launcher.errors import ProfileError, UsageError
from launcher.profile.bad import BadValue, near, shown
from launcher.profile.document import MODEL_SOURCES, Layer, Origin, Unreadable, lay_over, parse, parse_set, read_file
from launcher.profile.expand import expand_variables, is_path, resolve
from launcher.profile.faults import Path as Key
from launcher.profile.faults import dotted, fault, from_pydantic
from launcher.profile.find import find_profile
from launcher.profile.find import is_path as is_file_reference
from launcher.profile.schema import SCHEMA, Profile
from launcher.profile.tier import parse_layers

_LONGEST_CHAIN = 32
# `name` says who the instance is, the other two what the file itself is
_NOT_INHERITED = ("name", "schema", "extends")


def load_profile(
    ref: str | os.PathLike[str],
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
) -> Profile:
    """The profile that `ref` means (find.py). Raises ProfileError with every fault, or UsageError for a bad `--set`.

    `directory` is where relative paths in `sets` start from: the working directory, unless they were remembered
    from another one.
    """
    env = os.environ if environ is None else environ
    file = find_profile(ref, env)
    loading = _Loading(env)
    layer = loading.read(file)
    here = (directory or Path.cwd()) if sets else Path()
    for argument in sets:
        layer = lay_over(layer, loading.read_set(argument, here))
    # an empty layer of a broken file would only be told that it is empty
    profile = loading.build(layer, file) if loading.readable or layer.data else None
    if loading.faults or profile is None:
        raise _error(file, loading.faults)
    absolute = file.absolute()  # not resolve(): a link to a profile is a profile of its own
    profile._file = absolute
    profile._shown = str(file)
    profile._sources = (*loading.sources[:-1], absolute)
    profile._sets = tuple(sets)
    profile._sets_directory = str(here) if sets else ""
    profile._written = {dotted(key): origin.place for key, origin in layer.origins.items()}
    return profile


def _error(file: Path, faults: Sequence[Diagnostic]) -> ProfileError:
    ordered = sorted(faults, key=_order)
    first = ordered[0]
    message = f"{first.key}: {first.message}" if first.key else first.message
    if len(ordered) > 1:
        message = f"{file} has {len(ordered)} faults, first: {message}"
    return ProfileError(message, help=first.help, rule=first.rule, diagnostics=ordered)


def _order(found: Diagnostic) -> tuple[str, int, int, str]:
    place = found.place
    return (place.file, place.line, place.column, found.key) if place else ("", 0, 0, found.key)


class _Loading:
    """One load: the files read so far and the faults found so far."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.faults: list[Diagnostic] = []
        self.sources: list[Path] = []
        self.readable = True
        """Whether every file was found and read; if not, what seems to be missing may stand in that file."""
        self._done: dict[Path, Layer] = {}

    # --- the files -------------------------------------------------------------------------------------------

    def read(self, file: Path, chain: tuple[Path, ...] = (), asked: Place | None = None) -> Layer:
        """The file over what it extends. `chain` are the files that led here, `asked` the key that named it."""
        identity = _identity(file)
        if identity in self._done:
            return self._done[identity]
        if any(_identity(above) == identity for above in chain):
            story = " → ".join(str(above) for above in (*chain, file))
            self.readable = False
            self._fault("KV006", ("extends",), f"the files extend each other in a circle: {story}", "", asked)
            return Layer()
        if len(chain) >= _LONGEST_CHAIN:
            self.readable = False
            self._fault("KV006", ("extends",), f"more than {_LONGEST_CHAIN} files extend each other", "", asked)
            return Layer()
        try:
            text = read_file(file)
            layer, found = parse(text, str(file), file.absolute().parent)
        except Unreadable as error:
            self.readable = False
            found_one = error.found
            if asked is not None and found_one.rule == "KV012":
                self._fault("KV006", ("extends",), found_one.message, "paths are relative to this file", asked)
            else:
                self.faults.append(found_one)
            return Layer()
        self.faults += found
        self._check_schema(layer)
        result = Layer()
        for base, place in self._bases(layer, file):
            inherited = self.read(base, (*chain, file), place)
            inherited = Layer(dict(inherited.data), dict(inherited.origins))
            for key in _NOT_INHERITED:
                inherited.forget((key,))
            result = lay_over(result, inherited)
        layer.forget(("extends",))
        result = lay_over(result, layer)
        self._done[identity] = result
        self.sources.append(file.absolute())
        return result

    def _bases(self, layer: Layer, file: Path) -> Iterator[tuple[Path, Place]]:
        """The files of `extends`, the first first."""
        value = layer.data.get("extends", ())
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            key: Key = ("extends", index)
            origin = layer.origin(key)
            place = (origin.place if origin else None) or Place(str(file), 1, 1)
            if not isinstance(item, str) or not item:
                self.readable = False
                self._fault(
                    "KV003", ("extends",), f"expected a file or a list of files, found {shown(item)}", "", place
                )
                continue
            try:
                text = expand_variables(item, self.environ)
            except BadValue as bad:
                self.readable = False
                self._fault(bad.code, ("extends",), bad.message, bad.help, place)
                continue
            yield self._base(text, file.parent), place

    def _base(self, text: str, directory: Path) -> Path:
        """As PROFILE on the command line, but beside the file that wrote it."""
        if is_file_reference(text):
            return resolve(text, directory, self.environ)
        beside = directory / f"{text}.toml"
        if beside.is_file():
            return beside
        try:
            return find_profile(text, self.environ)
        except ProfileError:
            return directory / text

    def _check_schema(self, layer: Layer) -> None:
        written = layer.data.get("schema")
        if isinstance(written, int) and not isinstance(written, bool) and written > SCHEMA:
            self._fault(
                "KV010",
                ("schema",),
                f"schema {shown(written)} is newer than {SCHEMA}, the newest this kvlaunch knows",
                "update kvlaunch",
                place.place if (place := layer.origin(("schema",))) else None,
            )
            layer.data["schema"] = SCHEMA  # told once; the rest of the file is still looked at

    def read_set(self, argument: str, directory: Path) -> Layer:
        try:
            layer, found = parse_set(argument, directory)
        except ValueError as error:
            raise UsageError(f"--set {shown(argument)} says nothing", help=str(error)) from None
        except Unreadable as error:
            raise UsageError(f"--set {shown(argument)}: {error.found.message}") from None
        if "extends" in layer.data:
            raise UsageError("extends cannot be set from the command line", help="write it in the profile")
        self.faults += found
        self._check_schema(layer)
        return layer

    # --- the values ------------------------------------------------------------------------------------------

    def build(self, layer: Layer, file: Path) -> Profile | None:
        bad: set[Key] = set()
        data: dict[str, Any] = self._expand(layer.data, (), layer, bad)
        data.setdefault("name", file.stem)
        model = data.setdefault("model", {})
        if isinstance(model, dict):
            model.setdefault("alias", data["name"])
        _fill_tables(Profile, data)
        for code, key, message, help in _check_alone(data):
            if key == ("model",) and not self.readable:
                continue  # it may stand in the file that could not be read
            self._told(layer, file, bad, code, key, message, help)
        try:
            return Profile.model_validate(data)
        except ValidationError as error:
            for code, key, message, help in from_pydantic(Profile, error):
                if key == ("name",) and key not in layer.origins:
                    message = f"the file's name makes no instance name: {message}"
                    help = f'write name = "{_name_from(file.stem)}"'
                elif key == ("model", "alias") and key not in layer.origins:
                    continue  # taken from the name, whose fault is told there
                self._told(layer, file, bad, code, key, message, help)
        return None

    def _expand(self, value: Any, key: Key, layer: Layer, bad: set[Key]) -> Any:
        """Variables and paths, in the values that have won."""
        match value:
            case dict():
                return {name: self._expand(item, (*key, name), layer, bad) for name, item in value.items()}
            case tuple():
                return tuple(self._expand(item, (*key, index), layer, bad) for index, item in enumerate(value))
            case str():
                origin = layer.origin(key) or Origin(None, Path.cwd())
                try:
                    text = expand_variables(value, self.environ)
                except BadValue as error:
                    bad.add(key)
                    self._fault(error.code, key, error.message, error.help, origin.place)
                    return value
                return str(resolve(text, origin.directory, self.environ)) if is_path(key, text) else text
        return value

    def _told(self, layer: Layer, file: Path, bad: set[Key], code: str, key: Key, message: str, help: str) -> None:
        """Adds a fault at the place of its key, unless that key has one already that explains it."""
        if key in bad:
            return
        origin = layer.origin(key)
        place = origin.place if origin else Place(str(file), 1, 1)
        if origin and place is None:
            message += " (from --set)"
        self._fault(code, key, message, help, place)

    def _fault(self, code: str, key: Key, message: str, help: str, place: Place | None) -> None:
        self.faults.append(fault(code, key, message, help, place))


def _identity(file: Path) -> Path:
    """The same for two spellings of one file."""
    try:
        return file.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a NUL in the name: reading it will tell
        return file.absolute()


def _fill_tables(model: type[BaseModel], data: dict[str, Any]) -> None:
    """Puts an empty table where none is written: one validation of the whole is faster than a default for each."""
    for name, field in model.model_fields.items():
        inner = field.default_factory
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            table = data.setdefault(name, {})
            if isinstance(table, dict):
                _fill_tables(inner, table)


def _name_from(stem: str) -> str:
    """The nearest that is a name."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:48] or "main"


def _check_alone(data: Mapping[str, Any]) -> Iterator[tuple[str, Key, str, str]]:
    """What several keys say that can be judged without a model, a machine or an engine."""
    model = data.get("model")
    if isinstance(model, dict):
        sources = [source for source in MODEL_SOURCES if source in model]
        # a mistyped "pth" is told once, as the unknown key that it is
        if not sources and not any(near(key, MODEL_SOURCES) for key in model):
            yield "KV008", ("model",), "no model is named", '[model] takes path = "…", package = "…" or hub = "…"'
        for extra in sources[1:]:
            message = f"model.{sources[0]} names the model already"
            yield "KV011", ("model", extra), message, f"keep one of {', '.join(sources)}"
        draft = model.get("draft")
        if isinstance(draft, dict) and "path" not in draft and draft.get("type", "draft") == "draft":
            yield "KV008", ("model", "draft"), "no draft model is named", 'write path = "…", or type = "ngram"'
    kv = data.get("kv")
    if isinstance(kv, dict) and isinstance(kv.get("tiers"), tuple):
        yield from _layers_twice(kv["tiers"])


def _layers_twice(entries: tuple[Any, ...]) -> Iterator[tuple[str, Key, str, str]]:
    seen: dict[int, int] = {}
    for index, entry in enumerate(entries):
        try:
            layers = set(parse_layers(entry["layers"]))
        except (TypeError, KeyError, ValueError, AttributeError):
            continue  # no layers there: the schema tells
        if twice := sorted(layer for layer in layers if layer in seen):
            message = f"layer {twice[0]} has a tier already in entry {seen[twice[0]] + 1}"
            yield "KV013", ("kv", "tiers", index, "layers"), message, "name each layer once"
        seen.update((layer, index) for layer in layers if layer not in seen)
