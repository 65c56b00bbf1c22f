"""The engine's own dry run: its no-alloc fit print for the same settings, kept by engine, model and settings.

`llama-fit-params` builds the real graph without allocating, in 0.2 to 0.6 s. It knows nothing of unified caches
(tools/fit-params takes no such option), so it is asked only where each slot has its own share.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from launcher.engine.options import OPTIONS, Value, spell

_SECONDS = 60.0
# what changes memory and what that program takes
_ASKED = (
    "rpc", "model", "context", "slots", "rope_scaling", "rope_scale", "cache_type_k", "cache_type_v", "swa_full",
    "devices", "gpu_layers", "split", "tensor_split", "main_gpu", "cpu_moe", "n_cpu_moe", "flash_attention", "batch",
    "ubatch", "load",
)  # fmt: skip


def dry_run(program: Path, engine_key: str, settings: Mapping[str, Value], model: Path, cache: Path) -> str | None:
    """What it prints: a line a device. None where it can't be asked, or fails: then there is no second opinion."""
    if settings.get("unified") or not program.exists():
        return None
    asked = {name: value for name, value in settings.items() if name in _ASKED}
    known = {spelling for option in OPTIONS.values() for spelling in option.spellings}
    words = [*spell(asked, known), "--fit-print", "on"]
    kept = cache / "dry-runs" / f"{_key(engine_key, model, words)}.json"
    try:
        return str(json.loads(kept.read_text())["said"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_", "GGML_", "AIP_"))}
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, errors="replace", timeout=_SECONDS, env=env, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"said": done.stdout, "words": words}))
    return done.stdout


def _key(engine_key: str, model: Path, words: list[str]) -> str:
    stat = model.stat()
    told = json.dumps([engine_key, stat.st_size, stat.st_mtime_ns, words])
    return hashlib.sha256(told.encode()).hexdigest()[:32]
