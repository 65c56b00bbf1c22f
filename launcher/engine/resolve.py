"""A request with all that its key covers, and the engine that is there for it: milliseconds, no network.

`up` passes here every time, so nothing of the building itself is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.engine.manifest import commit_name
from launcher.engine.pins import Pin, read_pin
from launcher.engine.recipe import CompilerMissing, Recipe, engine_key, read_recipe
from launcher.engine.request import BuildRequest
from launcher.engine.series import Patch, read_series, select
from launcher.engine.store import Engine, Store
from launcher.paths import Places


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with all that its key covers."""

    request: BuildRequest
    pin: Pin
    patches: tuple[Patch, ...]
    recipe: Recipe
    key: str

    @property
    def commit(self) -> str:
        """What `--version` and `/props` show beside the pin's number: the ids of the patches."""
        return commit_name([patch.id for patch in self.patches])


def resolve(request: BuildRequest, environ: Mapping[str, str] | None = None) -> Resolved:
    """The key of a request, and what it is made of: milliseconds, no network. Raises ProfileError, BuildError."""
    pin = read_pin(request.pin)
    patches = select(read_series(request.patches_dir), request.patches)
    backend = "cpu" if request.backend == "auto" else request.backend
    recipe = read_recipe(backend, flags=request.cpu_flags, unity=not request.dev, environ=environ)
    return Resolved(request, pin, patches, recipe, engine_key(pin, request.from_git, patches, recipe))


def find_engine(request: BuildRequest, places: Places) -> Engine | None:
    """The finished engine for a request, if it is in the store. Refuses one that this CPU cannot run.

    Where there is no compiler (a store that was copied to a small box), one of the same source and patches will do.
    """
    store = Store.of(places)
    try:
        engine = store.find(resolve(request).key)
    except CompilerMissing:
        engine = next((e for e in store.all() if _same_but_compiler(request, e)), None)
        if engine is None:
            raise
    if engine is not None and request.cpu_flags is None:
        engine.check_cpu()
    return engine


def _same_but_compiler(request: BuildRequest, engine: Engine) -> bool:
    pin = read_pin(request.pin)
    told = engine.manifest
    wanted = {patch.id: patch.digest for patch in select(read_series(request.patches_dir), request.patches)}
    return (
        told.pin == pin.name
        and told.source == ("git" if request.from_git else pin.sha256)
        and told.backend == ("cpu" if request.backend == "auto" else request.backend)
        and {patch.id: patch.digest for patch in told.patches} == wanted
    )
