"""Which indexes this user's pip and uv are set up with: environment, then their configuration files.

uv reads nothing of pip's configuration and pip nothing of uv's; a user has one of the two, so both are read. Where
neither names a default index, pip's or uv's own built-in one holds: it is asked for, not written down here.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from launcher.errors import BuildError

_SYSTEM = Path("/etc")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """`indexes`: base URLs of simple APIs, in the order to ask. `find_links`: pages, folders or files to look at."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    certificates: str | None = None


def load_settings(environ: Mapping[str, str] | None = None) -> IndexSettings:
    """The settings for this process. Raises BuildError when no index can be named at all."""
    env = os.environ if environ is None else environ
    pip, uv = _pip(env), _uv(env)
    extra = [*uv.extra, *pip.extra]
    default = uv.default or pip.default
    if default is None and not (pip.no_index or uv.no_index):
        default = built_in_index(env)
        if default is None and not extra and not pip.find_links and not uv.find_links:
            raise BuildError(
                "no package index is known: neither pip nor uv is here, and none is configured",
                help="Set UV_DEFAULT_INDEX or PIP_INDEX_URL to the address of a simple index.",
            )
    if pip.no_index or uv.no_index:
        default, extra = None, []
    indexes = dict.fromkeys([*extra, *([default] if default else [])])
    certificates = pip.certificates or env.get("SSL_CERT_FILE")
    return IndexSettings(tuple(indexes), (*uv.find_links, *pip.find_links), certificates)


@dataclass(slots=True)
class _Found:
    default: str | None = None
    extra: Sequence[str] = ()
    find_links: Sequence[str] = ()
    no_index: bool = False
    certificates: str | None = None


def _pip(env: Mapping[str, str]) -> _Found:
    values: dict[str, str] = {}
    if env.get("PIP_CONFIG_FILE") != os.devnull:
        for path in _pip_files(env):
            parser = configparser.RawConfigParser()
            try:
                parser.read(path, encoding="utf-8")
            except (configparser.Error, OSError, UnicodeDecodeError):
                continue  # pip itself will complain about its own file
            for section in ("global", "install", "download"):
                if parser.has_section(section):
                    values |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    values |= {k[4:].lower().replace("_", "-"): v for k, v in env.items() if k.startswith("PIP_")}
    return _Found(
        values.get("index-url") or None,
        values.get("extra-index-url", "").split(),
        values.get("find-links", "").split(),
        values.get("no-index", "").lower() in ("1", "true", "yes", "on"),
        values.get("cert") or None,
    )


def _pip_files(env: Mapping[str, str]) -> list[Path]:
    """In pip's order: global, user, site, then the one the environment names."""
    home = Path(env.get("HOME") or Path.home())
    folders = [Path(d) for d in env.get("XDG_CONFIG_DIRS", "").split(":") if d] or [_SYSTEM / "xdg"]
    files = [folder / "pip/pip.conf" for folder in reversed(folders)] + [_SYSTEM / "pip.conf"]
    files += [home / ".pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    if named := env.get("PIP_CONFIG_FILE"):
        files.append(Path(named))
    return files


def _uv(env: Mapping[str, str]) -> _Found:
    found = _Found()
    for path in _uv_files(env):  # the user's file, last, wins
        try:
            table = tomli.loads(path.read_text("utf-8"))
        except (OSError, tomli.TOMLDecodeError, UnicodeDecodeError):
            continue
        _uv_table(found, table)
        _uv_table(found, table.get("pip", {}))
    extra = [_nameless(url) for url in env.get("UV_INDEX", "").split()] + env.get("UV_EXTRA_INDEX_URL", "").split()
    found.extra = extra or found.extra
    found.default = _nameless(env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or "") or found.default
    found.find_links = re.split(r"[,\s]+", env["UV_FIND_LINKS"]) if env.get("UV_FIND_LINKS") else found.find_links
    found.no_index = found.no_index or env.get("UV_NO_INDEX", "").lower() in ("1", "true")
    return found


def _uv_files(env: Mapping[str, str]) -> list[Path]:
    if env.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return []
    if named := env.get("UV_CONFIG_FILE"):
        return [Path(named)]
    home = Path(env.get("HOME") or Path.home())
    folders = [Path(d) for d in env.get("XDG_CONFIG_DIRS", "").split(":") if d] or [_SYSTEM / "xdg"]
    files = [_SYSTEM / "uv/uv.toml", *(folder / "uv/uv.toml" for folder in reversed(folders))]
    return [*files, Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"]


def _uv_table(found: _Found, table: Mapping[str, Any]) -> None:
    listed = [entry for entry in table.get("index", []) if isinstance(entry, dict) and "url" in entry]
    extra = [str(entry["url"]) for entry in listed if not entry.get("default")]
    found.extra = [*extra, *map(str, table.get("extra-index-url", []))] or found.extra
    for entry in listed:
        if entry.get("default"):
            found.default = str(entry["url"])
    found.default = table.get("index-url") or found.default
    found.find_links = [str(link) for link in table.get("find-links", [])] or found.find_links
    found.no_index = bool(table.get("no-index", found.no_index))


def _nameless(index: str) -> str:
    """uv lets an index carry a name: `internal=https://…`."""
    return re.sub(r"^[A-Za-z0-9_.-]+=(?=[a-z+]+:|/)", "", index)


def built_in_index(env: Mapping[str, str]) -> str | None:
    """The index that pip, or uv, uses when nobody has said anything."""
    try:
        from pip._internal.models.index import PyPI  # type: ignore[import-not-found,unused-ignore]

        return str(PyPI.simple_url)
    except ImportError:
        return _uv_built_in(env) or _bundled_pip_index()


def _uv_built_in(env: Mapping[str, str]) -> str | None:
    """uv prints its index when it locks; an empty requirement list needs no network."""
    uv = env.get("UV") or shutil.which("uv", path=env.get("PATH"))
    if not uv:
        return None
    command = [uv, "pip", "compile", "--quiet", "--no-config", "--emit-index-url", "--offline", "-"]
    try:
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^--(?:default-index|index-url)\s+(\S+)", done.stdout, re.MULTILINE)
    return match[1] if match else None


def _bundled_pip_index() -> str | None:
    """The pip that Python carries for new environments (ensurepip), unpacked nowhere: its constant is enough."""
    folders = [Path(os.__file__).parent / "ensurepip/_bundled", Path("/usr/share/python-wheels")]
    for wheel in (w for folder in folders for w in sorted(folder.glob("pip-*.whl"))):
        try:
            with zipfile.ZipFile(wheel) as archive:
                source = archive.read("pip/_internal/models/index.py").decode()
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        if match := re.search(r"PyPI = PackageIndex\(\s*\"([^\"]+)\"", source):
            return match[1].rstrip("/") + "/simple"
    return None
