"""The HTTP client for indexes and downloads: proxies and netrc from the environment, certificates from the settings."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import httpx

from launcher.fetch.settings import IndexSettings

_TIMEOUT = httpx.Timeout(30, connect=15)


def open_client(settings: IndexSettings) -> httpx.Client:
    """A client that follows redirects and trusts what pip is told to trust."""
    verify: ssl.SSLContext | bool = True
    if settings.certificates:
        path = Path(settings.certificates).expanduser()
        verify = ssl.create_default_context(cafile=str(path) if path.is_file() else None,
                                            capath=str(path) if path.is_dir() else None)  # fmt: skip
    auth: httpx.NetRCAuth | None = None
    if (Path.home() / ".netrc").is_file():
        try:
            auth = httpx.NetRCAuth()
        except Exception:  # a broken netrc is no reason not to try without
            auth = None
    return httpx.Client(verify=verify, auth=auth, follow_redirects=True, timeout=_TIMEOUT)


def redacted(text: str) -> str:
    """Without the user and password that a URL may carry."""
    return re.sub(r"://[^/@\s]+@", "://…@", text)
