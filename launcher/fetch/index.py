"""Where a file of a package lies: the simple API (PEP 503, 691) of the indexes that pip or uv is set up with.

Not `pip download`: for a source distribution that runs its whole build to learn the metadata. Knows nothing of what
the file is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from launcher.errors import BuildError
from launcher.fetch.settings import IndexSettings, load_settings
from launcher.fetch.transport import open_client, redacted

Kind = Literal["sdist", "wheel"]
GetPage = Callable[[str], tuple[str, str, bytes] | None]
"""A URL to (final URL, content type, body), or None where the index has no such page."""

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file an index offers. `size` and `sha256` are None where the index does not tell."""

    url: str
    filename: str
    size: int | None
    sha256: str | None


def find_file(
    project: str,
    version: str,
    *,
    filename: str | None = None,
    kind: Kind,
    settings: IndexSettings | None = None,
) -> RemoteFile:
    """The file of `project` `version`, from the first place that has it. Raises BuildError with what was tried."""
    settings = settings or load_settings()
    tried: list[str] = []
    with open_client(settings) as client:

        def get(url: str) -> tuple[str, str, bytes] | None:
            response = client.get(url, headers={"Accept": _ACCEPT})
            if response.status_code in (404, 410):
                return None
            response.raise_for_status()
            return str(response.url), response.headers.get("content-type", ""), response.content

        for place, files in _offers(project, settings, get, tried):
            matching = [f for f in files if _matches(f.filename, project, version, filename, kind)]
            if matching:
                return min(matching, key=lambda f: _wheel_rank(f.filename))
            tried.append(f"{redacted(place)}: has no {filename or f'{kind} of version {version}'}")
    wanted = filename or f"the {kind} of {project} {version}"
    raise BuildError(
        f"no index has {wanted}:\n  " + "\n  ".join(tried or ["no index is set"]),
        help="Looked where pip and uv are set up to look (their configuration files and environment variables).",
    )


def _offers(
    project: str, settings: IndexSettings, get: GetPage, tried: list[str]
) -> Iterator[tuple[str, list[RemoteFile]]]:
    """Each place with what it offers, nearest first; a place that fails is noted in `tried` and passed over."""
    places = [*((link, link) for link in settings.find_links)]
    places += [(base, f"{base.rstrip('/')}/{canonicalize_name(project)}/") for base in settings.indexes]
    for place, page in places:
        try:
            files = list(_listing(page, get))
        except Exception as error:  # whatever one index does must not hide the next
            tried.append(f"{redacted(place)}: {redacted(str(error)) or type(error).__name__}")
            continue
        if files:
            yield place, files
        else:
            tried.append(f"{redacted(place)}: does not know {project}")


def _listing(url: str, get: GetPage) -> Iterable[RemoteFile]:
    local = _local_path(url)
    if local is not None:
        return _local_listing(local)
    if url.endswith((".tar.gz", ".whl", ".zip")):  # find-links may name an archive itself
        return [_link(url)]
    page = get(url)
    if page is None:
        return []
    final, content_type, body = page
    return parse_json(final, body) if "json" in content_type else parse_html(final, body.decode("utf-8", "replace"))


def _local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(url).expanduser() if not parts.scheme else None


def _local_listing(path: Path) -> list[RemoteFile]:
    if path.is_file() and path.suffix not in (".html", ".htm"):
        return [RemoteFile(path.as_uri(), path.name, path.stat().st_size, None)]
    page = path / "index.html" if path.is_dir() else path
    if page.is_file():
        return parse_html(page.resolve().as_uri(), page.read_text("utf-8", "replace"))
    if not path.is_dir():
        return []
    return [
        RemoteFile(f.resolve().as_uri(), f.name, f.stat().st_size, None) for f in sorted(path.iterdir()) if f.is_file()
    ]


def parse_json(base: str, body: bytes) -> list[RemoteFile]:
    """PEP 691."""
    found = []
    for entry in json.loads(body)["files"]:
        sha256 = (entry.get("hashes") or {}).get("sha256")
        found.append(RemoteFile(urljoin(base, entry["url"]), entry["filename"], entry.get("size"), sha256))
    return found


def parse_html(base: str, text: str) -> list[RemoteFile]:
    """PEP 503: anchors, the hash in the fragment."""
    parser = _Anchors()
    parser.feed(text)
    base = urljoin(base, parser.base) if parser.base else base
    return [_link(urljoin(base, href)) for href in parser.hrefs]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.hrefs.append(href)
        elif tag == "base" and href:
            self.base = href


def _link(url: str) -> RemoteFile:
    plain, fragment = urldefrag(url)
    sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
    return RemoteFile(plain, unquote(urlsplit(plain).path).rsplit("/", 1)[-1], None, sha256)


def _matches(name: str, project: str, version: str, wanted: str | None, kind: Kind) -> bool:
    if wanted is not None:
        return name == wanted
    try:
        found = parse_sdist_filename(name) if kind == "sdist" else parse_wheel_filename(name)[:2]
        return found == (canonicalize_name(project), Version(version))
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return False


def _wheel_rank(name: str) -> int:
    """A wheel for any platform first: what we take out of wheels is data."""
    return 0 if name.endswith(("-none-any.whl", ".tar.gz")) else 1
