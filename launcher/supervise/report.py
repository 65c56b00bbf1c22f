"""`kvlaunch report NAME`: what a bug report needs in one archive, without what is nobody's business.

It works on the files that an instance leaves, so also after its end. Redacted: the values of `[env]`, every key of the
key file, whatever an option or key named like a secret holds, and the home directory.
"""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import launcher
from launcher.errors import NotRunning
from launcher.paths import Places, places

_TAIL = 2000
_SECRET = re.compile(r"(?i)key|token|secret|passw|credential|bearer")
_GONE = "[redacted]"
_ASSIGNED = re.compile(r"""(?ix) ( [\w.-]* (?:key|token|secret|passw|credential) [\w.-]* ["']? \s* [=:] \s* ) (.+)""")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")


def write_report(name: str, out: Path | None, here: Places | None = None) -> Path:
    """Write `kvlaunch-report-NAME-TIME.tar.gz` (or `out`). Raises NotRunning where no instance of the name ever was."""
    here = here or places()
    state, logs = here.instance(name), here.logs / name
    if not (state / "launch.json").is_file():
        raise NotRunning(f"{name} has never run here", help="`kvlaunch ps` lists what runs")
    launch = _read(state / "launch.json")
    clean = Redactor(_secrets(launch))
    parts: dict[str, str] = {
        "versions.json": json.dumps(_versions(launch), indent=1),
        "launch.json": json.dumps(clean.data(launch), indent=1),
        "profile.toml": clean.text(_text(launch.get("profile"))),
    }
    for file in ("status", "last-exit", "tally"):
        if (state / f"{file}.json").is_file():
            parts[f"{file}.json"] = json.dumps(clean.data(_read(state / f"{file}.json")), indent=1)
    parts["log.jsonl"] = clean.text("\n".join(_tail(logs, _TAIL)))
    parts["supervisor.err"] = clean.text(_text(logs / "supervisor.err"))
    path = out or Path.cwd() / f"kvlaunch-report-{name}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for part, text in parts.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{name}/{part}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    path.chmod(0o600)
    return path


class Redactor:
    """Takes out known secrets wherever they stand, and what is named like one."""

    def __init__(self, secrets: Iterable[str], home: Path | None = None) -> None:
        # the longest first: one may contain another
        self._secrets = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        self._home = str(home or Path.home())

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _GONE)
        text = _BEARER.sub(rf"\1{_GONE}", text)
        if len(self._home) > 1:
            text = text.replace(self._home, "~")
        return "\n".join(self._line(line) for line in text.split("\n"))

    def data(self, value: Any, key: str = "") -> Any:
        """The same for JSON; every value below `env` goes."""
        if isinstance(value, Mapping):
            inside = key == "env"
            return {k: _GONE if inside else self.data(v, str(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, key) for item in value]
        if isinstance(value, str):
            return self.text(value)
        return value

    @staticmethod
    def _line(line: str) -> str:
        """`api_key = "x"` and the like; a key file's path is no secret."""
        if not _SECRET.search(line) or "_file" in line or line.startswith("{"):
            return line
        return _ASSIGNED.sub(rf"\1{_GONE}", line)


def _secrets(launch: Mapping[str, Any]) -> list[str]:
    """The keys of the key file and the values of `[env]`."""
    found = [str(value) for value in launch.get("env", {}).values()]
    for line in _text(launch.get("api_key_file")).splitlines():
        if line.strip() and not line.startswith("#"):
            found.append(line.strip())
    return found


def _versions(launch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kvlaunch": launcher.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "engine": launch.get("engine_key"),
        "manifest": _read(Path(str(launch.get("binary", ""))).parent.parent / "manifest.json"),
    }


def _tail(logs: Path, count: int) -> list[str]:
    """The newest lines, over the rotated files."""
    lines: list[str] = []
    for file in (logs / "log.jsonl", *(logs / f"log.jsonl.{n}" for n in range(1, 5))):
        lines = _text(file).splitlines() + lines
        if len(lines) >= count:
            break
    return lines[-count:]


def _text(path: object) -> str:
    try:
        return Path(str(path)).read_text(errors="replace") if path else ""
    except OSError:
        return ""


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
