from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.errors import BuildError
from launcher.fetch.index import find_file, parse_html
from launcher.fetch.settings import IndexSettings

from .server import Site, serve

JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def page(*files: Mapping[str, object]) -> bytes:
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "some-thing", "files": list(files)}).encode()


def test_json_index(tmp_path: Path) -> None:
    listing = page(
        {"filename": "some_thing-1.0.tar.gz", "url": "../../f/1.tar.gz", "hashes": {"sha256": "ab"}, "size": 7},
        {"filename": "some_thing-2.0.tar.gz", "url": "https://files.test/x.tar.gz", "hashes": {}},
    )  # fmt: skip
    with serve(Site({"/simple/some-thing/": (JSON_TYPE, listing)})) as site:
        settings = IndexSettings((f"{site.url}/simple",))
        one = find_file("Some.Thing", "1.0", kind="sdist", settings=settings)
        two = find_file("some_thing", "2.0.0", kind="sdist", settings=settings)
    assert (one.url, one.size, one.sha256) == (f"{site.url}/f/1.tar.gz", 7, "ab")
    assert (two.url, two.size, two.sha256) == ("https://files.test/x.tar.gz", None, None)


def test_html_index_with_hash_and_base() -> None:
    text = '<html><head><base href="/other/"></head><a href="a-1.tar.gz#sha256=cd">a</a><a name="none">no</a>'
    (file,) = parse_html("https://x.test/simple/a/", text)
    assert (file.url, file.filename, file.sha256) == ("https://x.test/other/a-1.tar.gz", "a-1.tar.gz", "cd")


def test_a_wheel_for_any_platform_is_preferred(tmp_path: Path) -> None:
    listing = page(
        *(
            {"filename": f"some_thing-1.0-py3-none-{tag}.whl", "url": tag}
            for tag in ("win_amd64", "any", "linux_x86_64")
        )
    )
    with serve(Site({"/some-thing/": (JSON_TYPE, listing)})) as site:
        found = find_file("some-thing", "1.0", kind="wheel", settings=IndexSettings((site.url,)))
    assert found.filename == "some_thing-1.0-py3-none-any.whl"


def test_find_links_folder_comes_first_and_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "some_thing-1.0.tar.gz").write_bytes(b"here")
    settings = IndexSettings(("http://127.0.0.1:9/simple",), (str(tmp_path),))
    found = find_file("some-thing", "1.0", kind="sdist", settings=settings)
    assert found.url == (tmp_path / "some_thing-1.0.tar.gz").as_uri()
    assert found.size == 4


def test_file_index_of_html_pages(tmp_path: Path) -> None:
    folder = tmp_path / "simple" / "some-thing"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text('<a href="../../some_thing-1.0.tar.gz#sha256=ef">x</a>')
    settings = IndexSettings(((tmp_path / "simple").as_uri(),))
    found = find_file("some-thing", "1.0", kind="sdist", settings=settings)
    assert (found.url, found.sha256) == ((tmp_path / "some_thing-1.0.tar.gz").as_uri(), "ef")


def test_an_index_that_fails_does_not_hide_the_next(tmp_path: Path) -> None:
    listing = page({"filename": "some_thing-1.0.tar.gz", "url": "a"})
    with serve(Site({"/b/some-thing/": (JSON_TYPE, listing)}, status={"/a/some-thing/": [500]})) as site:
        settings = IndexSettings((f"{site.url}/a", f"{site.url}/b"))
        assert find_file("some-thing", "1.0", kind="sdist", settings=settings).url == f"{site.url}/b/some-thing/a"


def test_what_was_tried_is_told_without_passwords(tmp_path: Path) -> None:
    with serve(Site({"/some-thing/": (JSON_TYPE, page())})) as site:
        address = site.url.replace("://", "://me:secret@")
        settings = IndexSettings((address, "http://127.0.0.1:9"), (str(tmp_path),))
        with pytest.raises(BuildError) as caught:
            find_file("some-thing", "1.0", kind="sdist", settings=settings)
    assert "does not know some-thing" in caught.value.message
    assert "127.0.0.1:9: " in caught.value.message
    assert "secret" not in caught.value.message
