"""`kvlaunch build`: the engine for a profile, or for this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.common import JsonOption, SetOption


def build(
    profile: Annotated[str | None, typer.Argument(metavar="[PROFILE]", help="Build what this profile needs.")] = None,
    sets: SetOption = None,
    backend: Annotated[str | None, typer.Option("--backend", help="auto, cpu, cuda, vulkan or rocm.")] = None,
    patches: Annotated[
        str | None, typer.Option("--patches", metavar="LIST", help="default, none, or ids: 0006,0010.")
    ] = None,
    pin: Annotated[str | None, typer.Option("--pin", metavar="NAME", help="Another pin of build/pins.toml.")] = None,
    source: Annotated[str, typer.Option("--source", help="package, or git: the pin's tag.")] = "package",
    dev: Annotated[bool, typer.Option("--dev", help="A tree for work on patches: quick after an edit.")] = False,
    series: Annotated[
        Path | None, typer.Option("--series", metavar="DIR", help="Another folder with a series.", file_okay=False)
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Compile jobs at once; 0: by CPUs and memory.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Build and verify although it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the engine from its pinned source and verify it; nothing to do when it is there."""
    from launcher.cli.stages import Stages
    from launcher.engine.builder import build_engine
    from launcher.engine.request import BuildRequest, choose_backend
    from launcher.engine.resolve import find_engine
    from launcher.errors import UsageError
    from launcher.machine.probe import probe
    from launcher.paths import places

    if source not in ("package", "git"):
        raise UsageError(f"--source {source}: package or git")
    wanted_patches, wanted_backend = _from_profile(profile, sets or [])
    if patches is not None:
        wanted_patches = patches if patches in ("default", "none") else tuple(patches.replace(" ", "").split(","))
    wanted_backend = backend or wanted_backend
    if wanted_backend == "auto":
        wanted_backend = choose_backend(probe())
    request = BuildRequest(
        backend=wanted_backend,
        patches=wanted_patches,
        pin=pin,
        from_git=source == "git",
        dev=dev,
        force=force,
        jobs=jobs,
        patches_dir=series,
    )
    here = places()
    there = None if force else find_engine(request, here)
    stages = Stages(quiet=as_json)
    try:
        engine = there or build_engine(request, here, stages)
    finally:
        stages.close()
    if as_json:
        body = {"schema": 1, "key": engine.key, "path": str(engine.path), "built": there is None}
        print(json.dumps(body | {"manifest": engine.manifest.as_json()}))
        return
    told = engine.manifest
    ids = " ".join(patch.id for patch in told.patches) or "none"
    print(f"engine {engine.key}  {told.pin} {told.backend}  patches {ids}")
    if told.dropped:
        print(f"without {', '.join(told.dropped)}: listed by this CPU, but they do not work here")
    print(engine.server)


def _from_profile(profile: str | None, sets: list[str]) -> tuple[str | tuple[str, ...], str]:
    """What `engine.patches` and `compute.backend` of the profile say."""
    from launcher.errors import ProfileError, UsageError
    from launcher.profile.load import load_profile

    if profile is None:
        if sets:
            raise UsageError("--set changes a key of a profile: name one")
        return "default", "auto"
    read = load_profile(profile, sets, os.environ)
    if read.engine.binary is not None:
        raise ProfileError(f"{read.file} has engine.binary: there is nothing to build")
    wanted = read.engine.patches
    return wanted if isinstance(wanted, str) else tuple(wanted), read.compute.backend
