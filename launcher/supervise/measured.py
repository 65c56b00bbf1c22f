"""Keep what an engine really allocated, for the next plan of the same (launcher/measured.py reads it)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from launcher.supervise.spec import LaunchSpec


def keep_measured(spec: LaunchSpec, actual: Mapping[tuple[str, str], int]) -> None:
    """Note what the engine really allocated, for the next plan of the same. A full disk costs only that."""
    if not spec.measured_file or not actual:
        return
    lines = [{"item": item, "device": device, "bytes": size} for (item, device), size in actual.items()]
    file = Path(spec.measured_file)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"schema": 1, "memory": lines}))
        fresh.replace(file)
