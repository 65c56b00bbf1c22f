"""`check --fix`: writes into the profile what is certain, and leaves comments, order and all the rest as it is.

Certain is what has one right answer whatever the user wants. Where a person has to choose, a finding says so instead.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import ProfileError
from launcher.profile.schema import SCHEMA

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from launcher.diagnostic import Diagnostic
    from launcher.profile.schema import Profile


def fix_profile(profile: Profile, findings: Sequence[Diagnostic]) -> tuple[str, ...]:
    """Mends the profile's own file and says each change in a line; nothing to mend: nothing is written.

    Raises ProfileError where the file can't be read or written.
    """
    file = profile.file
    document = _read(file)
    changes = list(_migrate(document))
    for found in findings:
        change = fix_one(document, found, profile)
        if change is not None and found.place is not None and Path(found.place.file) == file:
            changes.append(change)
    if changes:
        _write(file, document)
    return tuple(f"{file}: {change}" for change in changes)


def fix_one(document: TOMLDocument, found: Diagnostic, profile: Profile) -> str | None:
    """Mends one finding in the document; None where there is nothing certain to write."""
    match found.rule:
        case "KV103":
            # the slots and the total were written together: one pool is what both of them say
            return _set(document, ("context", "unified"), True)
        case "KV303":
            path = _path(found.key)
            tier = profile.kv.tier if path == ("kv", "tier") else profile.kv.tiers[int(path[2])].tier
            return _set(document, path, tier.k)
        case "KV205" | "KV507" | "KV609":
            # this model has nothing for the key to act on; where a key waits for another one, a person chooses
            return _remove(document, _path(found.key))
    return None


def _migrate(document: TOMLDocument) -> Iterator[str]:
    """From an older schema to ours. Schema 0 was 1 before it had a number: the keys are the same."""
    written = document.get("schema")
    if isinstance(written, int) and written < SCHEMA:
        document["schema"] = SCHEMA
        yield f"schema {written} is now {SCHEMA}"


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _spelled(table: Any, name: str) -> str:
    """The key as this file spells it: with - or with _."""
    return next((key for key in table if str(key).replace("-", "_") == name), name)


def _inside(document: TOMLDocument, path: tuple[str, ...], *, make: bool) -> Any:
    """The table or array that holds the last part of the path; None where it is not written here."""
    node: Any = document
    for part in path[:-1]:
        key = int(part) if part.isdigit() else _spelled(node, part)
        if isinstance(key, str) and key not in node:
            if not make:
                return None
            import tomlkit

            node[key] = tomlkit.table()
        node = node[key]
    return node


def _set(document: TOMLDocument, path: tuple[str, ...], value: bool | str) -> str:
    node = _inside(document, path, make=True)
    key = _spelled(node, path[-1])
    old = node.get(key)
    node[key] = value
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f"{'.'.join(path)} = {shown}" + (f" (it was {old})" if old is not None else "")


def _remove(document: TOMLDocument, path: tuple[str, ...]) -> str | None:
    import tomlkit
    from tomlkit.items import InlineTable

    node = _inside(document, path, make=False)
    if node is None or not hasattr(node, "remove"):
        return None
    key = _spelled(node, path[-1])
    if key not in node:
        return None
    if isinstance(node, InlineTable):
        # taking a pair out leaves its blanks behind: write the line anew
        rest = tomlkit.inline_table()
        rest.update({name: value for name, value in node.items() if name != key})
        above = _inside(document, path[:-1], make=False)
        above[_spelled(above, path[-2])] = rest
    else:
        node.remove(key)
    return f"{'.'.join(path)} is gone: it did nothing"


def _read(file: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ProfileError(f"{file}: {error.strerror}") from error
    except (TOMLKitError, ValueError) as error:
        raise ProfileError(f"{file} can't be mended: {error}", help="mend its syntax first") from error


def _write(file: Path, document: TOMLDocument) -> None:
    """Beside it first, then in its place: an interrupted write leaves the old file whole."""
    import tomlkit

    text = tomlkit.dumps(document)
    target = file.resolve()
    try:
        mode = target.stat().st_mode & 0o7777
        old = target.read_bytes()
        if 0 < old.count(b"\n") == old.count(b"\r\n"):  # what was added ends its lines as all others do
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode("utf-8"))
                os.fchmod(stream.fileno(), mode)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(target)
        except OSError:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ProfileError(f"{file} can't be written: {error.strerror}") from error
