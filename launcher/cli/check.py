"""`check`, `explain`, `schema`: what is wrong with a profile, why a rule is, what a profile may say."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import EngineHelpOption, JsonOption, MachineOption, SetOption

if TYPE_CHECKING:
    from launcher.diagnostic import Diagnostic
    from launcher.flow import Case
    from launcher.machine.types import Machine


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    GITHUB = "github"


def check(
    profiles: Annotated[list[str], typer.Argument(metavar="PROFILE...", help="One profile or many.")],
    fix: Annotated[
        bool, typer.Option("--fix", help="Write what is certain into the file; comments and order stay.")
    ] = False,
    sets: SetOption = None,
    machine: MachineOption = None,
    engine_help: EngineHelpOption = None,
    format: Annotated[Format, typer.Option("--format", help="text, or annotations for a forge's CI.")] = Format.TEXT,
    as_json: JsonOption = False,
) -> int:
    """Diagnostics only: starts no server, builds nothing, downloads nothing. Exit code 10 when there is an error."""
    from launcher.errors import KvlaunchError
    from launcher.flow import read_case
    from launcher.profile.find import find_profile

    box = _machine(machine)
    worst = 0
    for ref in profiles:
        read = partial(read_case, ref, sets or (), machine=box, engine_help=engine_help, elsewhere=machine is not None)
        found: Sequence[Diagnostic]
        try:
            case = read()
            if fix and _fix(case):
                case = read()
            found, skipped, shown = case.diagnostics, case.skipped, str(find_profile(ref))
        except KvlaunchError as error:
            found = getattr(error, "diagnostics", ())
            skipped, shown = (), ref
            if not found:
                if len(profiles) == 1:
                    raise
                worst = max(worst, error.code)
                _show_failure(error, as_json)
                continue
        bad = any(one.severity == "error" for one in found)
        worst = max(worst, 10 if bad else 0)
        _show(shown, found, skipped, not bad, format, as_json)
    return worst


def explain(
    rule: Annotated[str, typer.Argument(help="A code such as KV103, or a slug.")], as_json: JsonOption = False
) -> None:
    """Why a rule is, what it costs to ignore it, and an example."""
    from launcher.rules.explain import explain as text_of
    from launcher.rules.explain import explain_json

    print(json.dumps(explain_json(rule)) if as_json else text_of(rule))


def schema(as_json: JsonOption = False) -> None:
    """Print the JSON Schema of profiles (for editors)."""
    from launcher.profile.schema_json import schema as schema_of

    del as_json  # it is JSON either way
    print(json.dumps(schema_of(), indent=2))


def _machine(file: Path | None) -> Machine:
    from launcher.flow import read_machine
    from launcher.machine.probe import probe

    return read_machine(file) if file is not None else probe()


def _fix(case: Case) -> bool:
    """Mend what is certain, and say what was changed; whether anything was."""
    from launcher.rules.fix import fix_profile

    changes = fix_profile(case.profile, case.diagnostics)
    for change in changes:
        print(change, file=sys.stderr)
    return bool(changes)


def _show_failure(error: Exception, as_json: bool) -> None:
    from launcher.cli.render import print_error
    from launcher.errors import KvlaunchError

    assert isinstance(error, KvlaunchError)
    if as_json:
        print(json.dumps(error.as_json()))
    else:
        print_error(error)


def _show(
    profile: str, found: Sequence[Diagnostic], skipped: Sequence[str], ok: bool, format: Format, as_json: bool
) -> None:
    from launcher.cli.render import wants_colour
    from launcher.rules.render import render_diagnostics, render_github, summary

    if as_json:
        diagnostics = [one.as_json() for one in found]
        print(
            json.dumps(
                {"schema": 1, "profile": profile, "ok": ok, "skipped": list(skipped), "diagnostics": diagnostics}
            )
        )
        return
    if format is Format.GITHUB:
        if found:
            print(render_github(found))
        return
    if found:
        print(render_diagnostics(found, colour=wants_colour(sys.stdout)), end="\n\n")
    print(f"{profile}: {summary(found)}")
    if skipped:
        print(f"  {len(skipped)} rules were not asked: they need the model's header (--json lists them)")
