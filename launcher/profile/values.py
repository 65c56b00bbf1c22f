"""The types of a profile's values: how each is read, what an editor may know of it, how it is written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic_core import core_schema

from launcher.profile import readers as r
from launcher.profile.tier import CACHE_TYPES, Layers, Tier
from launcher.units import Bytes, Seconds, Tokens


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
    return {"type": "integer", "minimum": low, "maximum": r.INT32_MAX}


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
_LAYER_COUNT = r.count(0, "a number of layers")
_NAME = "[a-z0-9][a-z0-9._-]{0,47}"
_NAME_WORDS = "a name: lower-case letters, digits, '.', '_' and '-', at most 48, the first a letter or digit"
_HUB = r"[\w.-]+/[\w.-]+(:[\w.-]+)?"

Count = Annotated[int, _As(r.count(0, "a count"), _integer(0))]
Positive = Annotated[int, _As(r.count(1, "this count"), _integer(1))]
LayerIndex = Annotated[int, _As(r.count(-1, "a layer (-1: one in the middle)"), _integer(-1))]
SchemaNumber = Annotated[int, _As(r.count(0, "a schema's number"), {"type": "integer", "minimum": 0, "maximum": 1})]
Port = Annotated[int, _As(r.read_port, {"type": "integer", "minimum": 0, "maximum": 65535})]
TokenCount = Annotated[Tokens, _As(r.tokens(0), {"anyOf": [_integer(0), _TOKEN_TEXT]})]
BatchSize = Annotated[Tokens, _As(r.tokens(1), {"anyOf": [_integer(1), _TOKEN_TEXT]})]
KeepCount = Annotated[Tokens, _As(r.tokens(-1), {"anyOf": [_integer(-1), _TOKEN_TEXT]})]
ContextSize = Annotated[Tokens | None, _As(r.tokens(1), {"anyOf": [_integer(1), _TOKEN_TEXT]})]
Fraction = Annotated[
    float, _As(r.number(0, 1, "a fraction lies between 0 and 1"), {"type": "number", "minimum": 0, "maximum": 1})
]
Factor = Annotated[
    float | None,
    _As(r.number(1e-6, 1e6, "a factor is positive, and at most a million"), {"type": "number", "exclusiveMinimum": 0}),
]
Scale = Annotated[float, _As(r.number(-1e6, 1e6, "a scale is a finite number"), {"type": "number"})]
Shares = Annotated[
    tuple[float, ...],
    _As(
        r.list_of(r.number(0, 1e9, "a share is 0 or more"), "numbers"),
        {"type": "array", "items": {"type": "number", "minimum": 0}},
    ),
]
Size = Annotated[Bytes, _As(r.read_size, _SIZE, r.write_size)]
SizeOrAuto = Annotated[
    Bytes | Literal["auto"],
    _As(r.word_or(("auto",), r.read_size, 'a size such as "12GiB"'), _word(("auto",), _SIZE), _or_word(r.write_size)),
]
SizeOrNone = Annotated[
    Bytes | Literal["none"],
    _As(r.word_or(("none",), r.read_size, 'a size such as "12GiB"'), _word(("none",), _SIZE), _or_word(r.write_size)),
]
Duration = Annotated[Seconds, _As(r.read_duration, _TIME, r.write_duration)]
DurationOrAuto = Annotated[
    Seconds | Literal["auto"],
    _As(
        r.word_or(("auto",), r.read_duration, 'a duration such as "5min"'),
        _word(("auto",), _TIME),
        _or_word(r.write_duration),
    ),
]
DurationOrNever = Annotated[
    Seconds | Literal["never"],
    _As(
        r.word_or(("never",), r.read_duration, 'a duration such as "15min"'),
        _word(("never",), _TIME),
        _or_word(r.write_duration),
    ),
]
RateOrAuto = Annotated[
    float | Literal["auto"],
    _As(
        r.word_or(("auto",), r.read_rate, 'a rate such as "6.67GB/s"'),
        _word(("auto",), _RATE),
        _or_word(lambda rate: f"{rate:.0f}B/s"),
    ),
]
AutoBool = Annotated[bool | Literal["auto"], _As(r.read_auto_bool, {"enum": [True, False, "auto"]})]
GpuLayers = Annotated[
    int | Literal["auto", "all"],
    _As(r.word_or(("auto", "all"), _LAYER_COUNT, "a number of layers"), _word(("auto", "all"), _integer(0))),
]
CpuMoe = Annotated[
    int | Literal["auto", "off", "all"],
    _As(
        r.word_or(("auto", "off", "all"), _LAYER_COUNT, "a number of layers"),
        _word(("auto", "off", "all"), _integer(0)),
    ),
]
Name = Annotated[str, _As(r.matching(_NAME, _NAME_WORDS, 'name = "agents"'), _text_like(_NAME))]
Alias = Annotated[str | None, _As(r.read_alias, _text_like(r"[^,\s]([^,]*[^,\s])?"))]
Texts = Annotated[tuple[str, ...], _As(r.list_of(r.read_text, "strings"), _STRINGS)]
Sha256 = Annotated[str | None, _As(r.read_sha256, _text_like("[0-9a-fA-F]{64}"))]
Hub = Annotated[str | None, _As(r.matching(_HUB, "a hub reference", '"owner/repo:Q4_K_M"'), _text_like(_HUB))]
Packages = Annotated[tuple[str, ...], _As(r.one_or_list(r.read_package, "distribution"), _SOME_STRINGS)]
File = Annotated[Path, _As(r.read_path, _NOT_EMPTY, str)]
OptionalFile = Annotated[Path | None, _As(r.read_path, _NOT_EMPTY, str)]
FileOrEmpty = Annotated[Path | None, _As(r.read_maybe_path, _STRING, str)]
Template = Annotated[str | Path | None, _As(r.read_template, _NOT_EMPTY, str)]
TierName = Annotated[Tier, _As(r.read_tier, _text_like(f"({_TYPES})(:({_TYPES}))?"), str)]
LayerList = Annotated[Layers, _As(r.read_layers, _text_like(f"({_LAYER_TEXT})?"), str)]
SomeLayers = Annotated[Layers, _As(r.read_some_layers, _text_like(_LAYER_TEXT), str)]
Endpoints = Annotated[tuple[str, ...], _As(r.list_of(r.read_endpoint, "host:port strings"), _STRINGS)]
Hosts = Annotated[tuple[str, ...], _As(r.one_or_list(r.read_host, "host"), _SOME_STRINGS)]
Page = Annotated[str, _As(r.read_page, _text_like(r"(.+\.sock|(127\.0\.0\.1|localhost|\[::1\]):\d{1,5})?"))]
Patches = Annotated[
    Literal["default", "none"] | tuple[str, ...],
    _As(r.read_patches, _word(("default", "none"), {"type": "array", "items": _text_like("[0-9]{4}")})),
]
Fallbacks = Annotated[
    tuple[Literal["residency", "tier", "context"], ...],
    _As(r.list_of(r.read_fallback, "strings"), {"type": "array", "items": {"enum": ["residency", "tier", "context"]}}),
]
Environment = Annotated[
    dict[str, str],
    _As(r.read_environment, {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}),
]
