"""tomli decides; the scanner must see the same keys, and point at them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.profile.scan import Path, scan


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Every key and array element of tomli's answer."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*above, key)
            yield from paths(item, (*above, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield (*above, index)
            yield from paths(item, (*above, index))


# --- random documents, written in random ways: keys bare or quoted, tables by header, dots or braces ------------

bare = st.text("abcXYZ019_-", min_size=1, max_size=4)
names = st.one_of(
    bare, st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5), st.just('a"b'), st.just("")
)
blank = st.sampled_from(["", " ", "\t", "  "])
newline = st.sampled_from(["\n", "\n\n", " # [no] key = 1\n", "\n # comment ''' \"\"\"\n"])


def basic(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text) + '"'


@st.composite
def key_text(draw: st.DrawFn, name: str) -> str:
    plain = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    forms = [basic(name), *([name] if plain else [])]
    if "'" not in name and all(c >= " " and c != "\x7f" for c in name):
        forms.append(f"'{name}'")
    return draw(blank) + draw(st.sampled_from(forms)) + draw(blank)


scalars = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.sampled_from(
        ["true", "1e3", "-inf", "1_000", "0xff", "1979-05-27", "1979-05-27 07:32:00Z", "07:32:00", "''", '""', '""""""']
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(basic),
    st.sampled_from(
        [
            '"""one\ntwo = 3 # no\n"""', "'''x = [\n]'''", '"""a""b"""', '"""ends in two"""""', "'''q''''", '"\\\\"',
            '"""\\"""x"""', "'# no comment'", '"] }"', "'''\n\n'''", '"\\""',
        ]
    ),
)  # fmt: skip


@st.composite
def value_text(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.integers(0, 3)) if depth else 0
    if kind <= 1:
        return draw(scalars)
    gap = st.one_of(blank, newline)
    if kind == 2:
        items = draw(st.lists(value_text(depth - 1), max_size=3))
        inner = "".join(f"{draw(gap)}{item}{draw(gap)}," for item in items)
        return "[" + (inner if draw(st.booleans()) else inner.removesuffix(",")) + draw(gap) + "]"
    keys = draw(st.lists(names, max_size=3, unique=True))
    pairs = [f"{draw(gap)}{draw(key_text(key))}={draw(blank)}{draw(value_text(depth - 1))}{draw(gap)}" for key in keys]
    return "{" + ",".join(pairs) + draw(gap) + "}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(1, 8))):
        parts = [draw(key_text(draw(names))) for _ in range(draw(st.integers(1, 3)))]
        dotted = ".".join(parts)
        match draw(st.integers(0, 3)):
            case 0:
                lines.append(f"{draw(blank)}[{dotted}]{draw(blank)}")
            case 1:
                lines.append(f"[[{dotted}]]")
            case _:
                lines.append(f"{dotted}={draw(blank)}{draw(value_text())}")
    return "".join(line + draw(newline) for line in lines)


@settings(max_examples=400, deadline=None)
@given(documents())
def test_it_sees_the_keys_that_tomli_sees(text: str) -> None:
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError:
        return  # a random document may name a key twice
    assert set(scan(text)) == set(paths(data))


@settings(max_examples=200, deadline=None)
@given(documents())
def test_a_place_points_at_its_key(text: str) -> None:
    try:
        tomli.loads(text)
    except tomli.TOMLDecodeError:
        return
    lines = text.split("\n")
    for path, (line, column) in scan(text).items():
        rest = lines[line - 1][column - 1 :]
        if isinstance(path[-1], str):
            written = basic(path[-1])
            assert rest.startswith((path[-1], written, f"'{path[-1]}'", '"')), (path, rest)
        else:
            assert rest[:1].strip(), (path, rest)


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("a = 1", ("a",), (1, 1)),
        ("\n  a.b = 1", ("a", "b"), (2, 5)),
        ("[t]\nk = { x = 1, yy = [2,\n 3] }", ("t", "k", "yy", 1), (3, 2)),
        ("[t]\nk = { x = 1, yy = 2 }", ("t", "k", "yy"), (2, 14)),
        ("[[l]]\na = 1\n[[l]]\na = 2", ("l", 1, "a"), (4, 1)),
        ("[[l]]\n[l.sub]\na = 1", ("l", 0, "sub", "a"), (3, 1)),
        ("[a.b]\n[a]\nx = 1", ("a",), (2, 2)),
        ('"q \\u0041" = 1', ("q A",), (1, 1)),
        ('s = """\nx = 1\n"""\ny = 2', ("y",), (4, 1)),
        ("d = 1979-05-27 07:32:00 # c\ny = 2", ("y",), (2, 1)),
        ("é = 1".replace("é", '"é"') + "\n[ü]".replace("ü", '"ü"'), ("ü",), (2, 2)),
    ],
)
def test_places(text: str, path: Path, place: tuple[int, int]) -> None:
    assert scan(text)[path] == place


def test_it_costs_little() -> None:
    text = "\n".join(f"[t{i}]\nkey-{i} = {{ a = 1, b = [1, 2, 3] }}\nlong.dotted.key = 'text'" for i in range(200))
    start = time.process_time()
    found = scan(text)
    assert time.process_time() - start < 0.2  # a profile is a hundredth of this
    assert len(found) == len(set(paths(tomli.loads(text))))
