"""The engine for a request: the one in the store, or a new one, built and verified (chain.py)."""

from __future__ import annotations

from pathlib import Path

from launcher.engine.report import Reporter
from launcher.engine.request import BuildRequest
from launcher.engine.request import request_for as request_for
from launcher.engine.resolve import find_engine, resolve
from launcher.engine.store import Engine
from launcher.fetch.disk import disk_error
from launcher.paths import Places


def build_engine(request: BuildRequest, places: Places, report: Reporter) -> Engine:
    """The engine for a request: found, or built. Raises BuildError (12); nothing half stays behind."""
    if not request.force and (engine := find_engine(request, places)):
        return engine
    wanted = resolve(request)
    from launcher.engine.chain import Build, locked

    try:
        places.engines.mkdir(parents=True, exist_ok=True)
        with locked(places.engines / f".{wanted.key}.lock", report, f"engine {wanted.key}"):
            if not request.force and (engine := find_engine(request, places)):
                return engine
            return Build(wanted, places, report).run()
    except OSError as error:  # a folder that can't be written, a disk that is full at an odd moment
        raise disk_error(error, Path(error.filename) if error.filename else places.engines) from error
