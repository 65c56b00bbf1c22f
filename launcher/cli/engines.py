"""`kvlaunch engines` and `kvlaunch prune`: what is built, whether it still works, what can go."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import JsonOption

if TYPE_CHECKING:
    from launcher.engine.prune import Candidate
    from launcher.engine.store import Engine


def engines(
    verify: Annotated[bool, typer.Option("--verify", help="Run each again: inference, errors, version.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the built engines."""
    from launcher.engine.store import Store
    from launcher.errors import BuildError
    from launcher.paths import places

    found = list(Store.of(places()).all())
    states = {engine.key: _state(engine, verify) for engine in found}
    if as_json:
        rows = [
            engine.manifest.as_json() | {"path": str(engine.path), "bytes": engine.size, "state": states[engine.key]}
            for engine in found
        ]
        print(json.dumps({"schema": 1, "engines": rows}))
    elif not found:
        print("no engine is built; `kvlaunch build` makes one")
    else:
        _print_table(found, states)
    if verify and any(state != "works" for state in states.values()):
        raise typer.Exit(BuildError.code)


def _state(engine: Engine, verify: bool) -> str:
    """`here`, `works` (verified just now), or what is wrong."""
    from launcher.engine import verify as verification
    from launcher.errors import BuildError

    try:
        engine.check_cpu()
    except BuildError as error:
        return error.message
    if not verify:
        return "here"
    told = engine.manifest
    fault = verification.verify(engine.binaries, gpu=told.backend != "cpu", version=told.version_text)
    return str(fault) if fault else "works"


def _print_table(found: list[Engine], states: dict[str, str]) -> None:
    from launcher.units import format_bytes

    for engine in found:
        told = engine.manifest
        ids = " ".join(patch.id for patch in told.patches) or "no patches"
        size = format_bytes(engine.size)
        print(f"{engine.key}  {told.pin} {told.backend:<6}  {size:>9}  {told.built_at[:16]}  {states[engine.key]}")
        print(f"{'':16}  {ids}" + (f"  without {', '.join(told.dropped)}" if told.dropped else ""))


def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Also sources, build trees and downloads: the next build is a cold one.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what is unused; says first what that is, and its size."""
    from launcher.engine import prune as pruning
    from launcher.paths import places
    from launcher.units import format_bytes

    found = pruning.candidates(places(), everything=everything)
    total = sum(item.bytes for item in found)
    removed = bool(found) and (yes or (not as_json and sys.stdin.isatty() and _confirmed(found, total)))
    if not as_json and found and (yes or not sys.stdin.isatty()):
        _print_candidates(found, total)
    if removed:
        pruning.remove(found)
    if as_json:
        rows = [{"path": str(item.path), "bytes": item.bytes, "why": item.why} for item in found]
        print(json.dumps({"schema": 1, "removed": removed, "bytes": total, "items": rows}))
    elif not found:
        print("nothing is unused")
    elif removed:
        print(f"removed {format_bytes(total)}")
    else:
        print("nothing removed; --yes removes it")


def _print_candidates(found: list[Candidate], total: int) -> None:
    from launcher.units import format_bytes

    for item in found:
        print(f"{format_bytes(item.bytes):>10}  {item.path}  {item.why}")
    print(f"{format_bytes(total):>10}  in all")


def _confirmed(found: list[Candidate], total: int) -> bool:
    _print_candidates(found, total)
    return typer.confirm("Remove this?")
