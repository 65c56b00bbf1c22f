"""`kvlaunch patches`: list, check, open, save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.common import JsonOption

app = typer.Typer(help="The patch series: show it, try it on the source, work on it with git.", no_args_is_help=True)

PinOption = Annotated[str | None, typer.Option("--pin", metavar="NAME", help="Another pin of build/pins.toml.")]
PatchesOption = Annotated[
    Path | None, typer.Option("--patches", metavar="DIR", help="Another folder with a series.", file_okay=False)
]
FolderArg = Annotated[Path, typer.Argument(metavar="DIR", file_okay=False)]


@app.command("list")
def list_(patches: PatchesOption = None, as_json: JsonOption = False) -> None:
    """Show the series: number, technique, options, what it depends on."""
    from launcher.engine.series import read_series

    series = read_series(patches)
    if as_json:
        rows = [
            {
                "id": p.id, "name": p.name, "technique": p.technique, "options": p.options, "depends": p.depends,
                "experimental": p.experimental, "fields": dict(p.fields), "file": str(p.path),
            }
            for p in series
        ]  # fmt: skip
        print(json.dumps({"schema": 1, "patches": rows}))
        return
    if not series:
        print("the series is empty")
        return
    for p in series:
        stage = " (experimental)" if p.experimental else ""
        print(f"{p.id}  {p.technique}{stage}")
        if p.options:
            print(f"      {'  '.join(p.options)}")
        if p.depends:
            print(f"      needs {', '.join(p.depends)}")


@app.command()
def check(patches: PatchesOption = None, pin: PinOption = None, as_json: JsonOption = False) -> None:
    """Try every patch on the pin; name every file and hunk that does not apply. Writes nothing."""
    from launcher.cli.stages import Stages
    from launcher.engine.pins import read_pin
    from launcher.engine.series import read_series
    from launcher.engine.source import pristine
    from launcher.engine.worktree import try_all
    from launcher.errors import BuildError
    from launcher.paths import places

    the_pin, series = read_pin(pin), read_series(patches)
    stages = Stages(quiet=as_json)
    try:
        source = pristine(the_pin, places(), stages)
    finally:
        stages.close()
    patched, failures = try_all(source, series)
    if as_json:
        told = [
            {"patch": f.patch, "file": f.file, "hunk": f.hunk or None, "line": f.line or None, "reason": f.reason}
            for f in failures
        ]
        print(json.dumps({"schema": 1, "pin": the_pin.name, "ok": not failures, "failures": told}))
        if failures:
            raise typer.Exit(BuildError.code)
        return
    if failures:
        raise BuildError(
            f"{len({f.patch for f in failures})} of {len(series)} patches do not apply to {the_pin.name}:\n  "
            + "\n  ".join(map(str, failures)),
            help="`kvlaunch patches open DIR` stops at the first, with what applies in place.",
        )
    print(f"all {len(series)} patches apply to {the_pin.name}; they touch {len(patched.files)} files")


@app.command("open")
def open_(
    folder: FolderArg,
    patches: PatchesOption = None,
    pin: PinOption = None,
    resume: Annotated[bool, typer.Option("--continue", help="Go on after a patch that was mended by hand.")] = False,
) -> None:
    """Make DIR a git repository of the pin with one commit a patch."""
    from launcher.cli.stages import Stages
    from launcher.engine.pins import read_pin
    from launcher.engine.series import read_series
    from launcher.engine.source import pristine
    from launcher.engine.workbench import open_series
    from launcher.paths import places

    the_pin, series = read_pin(pin), read_series(patches)
    stages = Stages()
    try:
        source = pristine(the_pin, places(), stages)
    finally:
        stages.close()
    count = open_series(source, the_pin, series, folder.absolute(), resume=resume)  # git works from within it
    # resumed, it is of the pin that it began with
    made = f"{count} more commits" if resume else f"{the_pin.name} and {count} commits"
    print(f"{folder}: {made}; edit, commit, `kvlaunch patches save {folder}`")


@app.command()
def save(folder: FolderArg, patches: PatchesOption = None) -> None:
    """Write the commits in DIR back as patches. What did not change keeps its bytes."""
    from launcher.engine.workbench import save_series
    from launcher.paths import shipped

    saved = save_series(folder.absolute(), (patches or shipped("patches")).absolute())
    for verb, names in (("written", saved.written), ("removed", saved.removed)):
        for name in names:
            print(f"{verb}  {name}.patch")
    print(f"{len(saved.kept)} unchanged")
