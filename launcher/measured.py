"""What engines really allocated: kept by engine, model and settings, so that the next plan of the same starts from it.

The supervisor writes a file of it when an instance is ready; the plan reads it. Nothing is interpolated: another
context or another tier is another key, and the formulas speak for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from launcher.engine.options import Value

# settings that change no byte of memory
_IDLE = frozenset(
    {"host", "port", "alias", "api_key_file", "metrics", "threads", "similarity", "keep", "context_shift"}
)


def measured_file(cache: Path, engine_key: str, model: Path, settings: Mapping[str, Value]) -> Path:
    """Where the figures of this engine, model and settings are kept."""
    stat = model.stat()
    told = {name: value for name, value in settings.items() if name not in _IDLE and name != "model"}
    words = json.dumps([engine_key, stat.st_size, stat.st_mtime_ns, told], sort_keys=True)
    return cache / "measured" / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json"


def read_measured(file: Path) -> dict[tuple[str, str], int]:
    """(item, device) → bytes; empty where nothing was kept, or what was kept is damaged."""
    try:
        lines = json.loads(file.read_text("utf-8"))["memory"]
        return {(line["item"], line["device"]): int(line["bytes"]) for line in lines}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
