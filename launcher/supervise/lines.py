"""One line of the engine's output, and what the supervisor learns from it.

The engine writes JSON objects with `--log-jsonl`; what dies writes plain text beside them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from launcher.units import MIB

_START_LINES = 3000
LEVELS = ("debug", "info", "warn", "error")

_PREFIX = re.compile(r"^(?:srv|slot|cmn|spec|que|res|init)\s+\S+: ")
_ABORT = re.compile(r"^(?:error\b|terminate called|GGML_ASSERT|\S+\.(?:cpp|c|cu|h|hpp|m|comp):\d+: )", re.IGNORECASE)
# without --log-jsonl no line says its level
_PLAIN_ERROR = re.compile(r"\b(?:error|failed|insufficient memory|out of memory|cannot|couldn't|exception)\b", re.I)
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_BUFFER = re.compile(r"^\s*\S+:\s+(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_ITEMS = {"model": "weights", "KV": "kv", "RS": "recurrent", "compute": "compute", "output": "output"}
_FLAG = re.compile(r"llama_context: (n_ctx|n_ctx_seq|n_batch|n_ubatch|kv_unified)\s+= (\S+)$")


@dataclass(frozen=True, slots=True)
class Line:
    level: str
    text: str
    """Without the engine's own prefix of where it was written; may hold several lines."""


def parse(raw: bytes) -> Line:
    """Never fails: what is no JSON object of the engine is plain text."""
    text = raw.decode(errors="replace").rstrip()
    if text.startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if isinstance(data, dict) and isinstance(data.get("msg"), str):
            level = data.get("level")
            return Line(level if level in LEVELS else "info", _PREFIX.sub("", data["msg"].rstrip()))
        if isinstance(data, dict):
            return Line("info", text)
    is_error = _ABORT.match(text) or _PLAIN_ERROR.search(text)
    return Line("error" if is_error else "info", _PREFIX.sub("", text))


@dataclass(slots=True)
class Facts:
    """What one run of the engine has said about itself so far."""

    lines: int = 0
    loaded: bool = False
    listening: bool = False
    offloaded: int | None = None
    layers: int | None = None
    buffers: dict[tuple[str, str], int] = field(default_factory=dict)
    """(item, device) -> bytes, by the words of the ledger."""
    context: dict[str, str] = field(default_factory=dict)
    flash_attention: bool | None = None
    errors: list[str] = field(default_factory=list)
    """The first error lines; a flood of them is not kept."""
    start: list[str] = field(default_factory=list)
    """The lines of the start, until somebody has judged them: what was asked for and is not done is said there."""

    def learn(self, line: Line) -> None:
        self.lines += 1
        text = line.text
        if line.level == "error" and len(self.errors) < 20:
            self.errors.append(text)
        if self.listening:
            return  # a request's own lines tell nothing about the start
        if len(self.start) < _START_LINES:
            self.start.append(text)
        if found := _BUFFER.match(text):
            name = found[1].partition("[")[0]  # RPC0[127.0.0.1:50052]
            # CPU_Mapped, CPU_REPACK, and a device's pinned host memory
            device = "host" if name.startswith("CPU") or name.endswith("_Host") else name
            key = (_ITEMS[found[2]], device)
            size = round(float(found[3]) * MIB)
            # a later reserve of compute buffers replaces the earlier; all else is one buffer of several
            self.buffers[key] = size if key[0] == "compute" else self.buffers.get(key, 0) + size
        elif found := _OFFLOADED.search(text):
            self.offloaded, self.layers = int(found[1]), int(found[2])
        elif found := _FLAG.match(text):
            self.context.setdefault(found[1], found[2])
        elif "Flash Attention" in text:
            self.flash_attention = text.rstrip().endswith("enabled")
        elif text.startswith("model loaded"):
            self.loaded = True
        elif text.startswith("listening on"):
            self.listening = True
