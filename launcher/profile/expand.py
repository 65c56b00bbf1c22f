"""What a string of a profile may hold: `${VAR}`, `~`, and paths relative to the file that wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.profile.bad import BadValue

# Every key whose value is a path, `*` for any index; a test holds this list to the schema's own types.
PATH_KEYS = frozenset(
    {
        ("model", "path"),
        ("model", "mmproj"),
        ("model", "draft", "path"),
        ("model", "lora", "*", "path"),
        ("kv", "calibration"),
        ("serve", "api_key_file"),
        ("engine", "binary"),
    }
)
# … and those that are one only if they look like it.
_MAYBE_PATHS: Mapping[tuple[str, ...], Callable[[str], bool]] = {
    ("model", "chat_template"): lambda text: "/" in text or text.endswith((".jinja", ".jinja2", ".j2")),
    ("serve", "host"): lambda text: text.endswith(".sock"),
    ("serve", "host", "*"): lambda text: text.endswith(".sock"),
    ("supervise", "metrics"): lambda text: text.endswith(".sock"),
    ("supervise", "on_event", "*"): lambda text: text.startswith(("./", "../", "~")),
}

_DOLLAR = re.compile(r"\$(?:(\$)|\{([^}]*)(\}?))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """`${VAR}` from the environment, `$$` a dollar, any other dollar as it is. Raises BadValue (KV007)."""

    def replace(match: re.Match[str]) -> str:
        dollar, name, closed = match.groups()
        if dollar:
            return "$"
        if not closed or not _NAME.fullmatch(name):
            written = f"${{{name[:40]}{closed}"
            raise BadValue("KV007", f"{written} names no variable", "write ${NAME}, or $${ for a dollar and a brace")
        if name not in environ:
            raise BadValue("KV007", f"the variable {name} is not set", f"set {name}, or write the value itself")
        return environ[name]

    return _DOLLAR.sub(replace, text)


def is_path(path: tuple[str | int, ...], text: str) -> bool:
    """Whether the value of this key names a file."""
    key = tuple("*" if isinstance(part, int) else part for part in path)
    if not text:
        return False
    return key in PATH_KEYS or (key in _MAYBE_PATHS and _MAYBE_PATHS[key](text))


def resolve(text: str, directory: Path, environ: Mapping[str, str]) -> Path:
    """`~` is HOME; a relative path is below `directory`. `..` stays, since a link may stand before it."""
    if text == "~" or text.startswith("~/"):
        home = environ.get("HOME") or str(Path.home())
        return Path(home) / text[2:]
    return directory / text
