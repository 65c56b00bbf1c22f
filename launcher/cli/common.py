"""The arguments and options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProfileArg = Annotated[
    str,
    typer.Argument(metavar="PROFILE", help="A profile: a path, or a name (looked up here, in your config, shipped)."),
]
NameArg = Annotated[str, typer.Argument(metavar="NAME", help="A running instance, or its profile.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key: --set context.slots=2. May be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (contract: schema 1).")]
MachineOption = Annotated[
    Path | None, typer.Option("--machine", metavar="FILE", help="Plan for another box: its `kvlaunch probe --json`.")
]
EngineHelpOption = Annotated[
    Path | None,
    typer.Option("--engine-help", metavar="FILE", help="Take a binary's --help text instead of a built engine."),
]
