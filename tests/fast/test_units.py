from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.units import format_tokens, parse_bytes, parse_duration, parse_tokens


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("12GiB", 12 << 30),
        ("8GB", 8 * 10**9),
        ("512 B", 512),
        ("1.5MiB", 3 << 19),
        ("0b", 0),
        ("9007199254740993B", 2**53 + 1),
    ],
)
def test_sizes_are_exact(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["12", "12G", "-1GiB", "GiB", "1e9B", "1 000 MB", "", "99999999999TiB"])
def test_a_size_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)


def test_k_means_1024_tokens() -> None:
    assert parse_tokens("32k") == 32768
    assert parse_tokens("1m") == 1 << 20
    assert parse_tokens("100") == 100


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("5min", 300), ("250ms", 0.25), ("1.5h", 5400), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.text())
def test_no_text_does_worse_than_a_value_error(text: str) -> None:
    for parse in (parse_bytes, parse_tokens, parse_duration):
        try:
            assert parse(text) >= 0
        except ValueError as refused:
            assert "write" in str(refused) or "larger" in str(refused) or "longer" in str(refused)


@given(st.integers(min_value=0, max_value=1 << 40))
def test_format_tokens_reads_back(count: int) -> None:
    assert parse_tokens(format_tokens(count)) == count
