"""One reading of a key file for the rules and for our own requests: the engine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.keyfile import first_key, keys_in


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"# a comment\n\none", ["one"]),
        (b"a key\n", ["a key"]),
        (b" # no comment to the engine, and no key to a client\none\n", ["one"]),
        (b"carried with its end of line\r\none\n", ["one"]),
        (b"blank at its end \n\tat its beginning\n", []),
        ("schlüssel\n".encode(), []),
        (b"\xff\xfe\x00\n", []),
        (b"#\n", []),
        (b"", []),
    ],
)
def test_keys(tmp_path: Path, written: bytes, keys: list[str]) -> None:
    file = tmp_path / "keys"
    file.write_bytes(written)
    assert keys_in(file) == keys
    assert first_key(str(file)) == (keys[0] if keys else None)


def test_no_file_is_no_key(tmp_path: Path) -> None:
    assert first_key(None) is None
    assert first_key(str(tmp_path / "keys")) is None
    with pytest.raises(FileNotFoundError):
        keys_in(tmp_path / "keys")
