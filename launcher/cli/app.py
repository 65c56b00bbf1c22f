"""All commands in one table, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer

from launcher.errors import KvlaunchError, UsageError

app = typer.Typer(
    name="kvlaunch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """One TOML profile in; a running, right-sized, supervised long-context llama-server out."""
    # a callback makes typer keep the command's name even where only one is registered


# command, the room's module that holds it, the function there. Help lists them in this order.
_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("up", "run", "up"),
    ("down", "run", "down"),
    ("restart", "run", "restart"),
    ("reload", "run", "reload"),
    ("status", "look", "status"),
    ("ps", "look", "ps"),
    ("top", "top", "top"),
    ("logs", "look", "logs"),
    ("events", "look", "events"),
    ("ask", "ask", "ask"),
    ("env", "ask", "env"),
    ("report", "look", "report"),
    ("check", "check", "check"),
    ("explain", "check", "explain"),
    ("plan", "plan", "plan"),
    ("probe", "probe", "probe"),
    ("build", "build", "build"),
    ("engines", "engines", "engines"),
    ("prune", "engines", "prune"),
    ("bench", "bench", "bench"),
    ("init", "plan", "init"),
    ("schema", "check", "schema"),
)


def _register(only: str | None) -> None:
    """Add the commands; where one is named, import that one alone (the rest cost their imports for nothing)."""
    from importlib import import_module

    for name, module, function in _COMMANDS:
        if only is None or only == name:
            app.command(name)(getattr(import_module(f"launcher.cli.{module}"), function))
    if only in (None, "patches"):
        app.add_typer(import_module("launcher.cli.patches").app, name="patches")


def run(argv: Sequence[str]) -> int:
    """Run one command line; the exit code of contract.md comes back."""
    _have_streams()
    code = _run(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _to_nowhere()  # the reader of a pipe went away: nothing is left to say
    except OSError as error:
        _to_nowhere()
        print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
        return code or 1
    return code


def _have_streams() -> None:
    """A shell may close them (`>&-`); Python then has None in their place, and a file opened next would be stdout."""
    import os

    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123


def _to_nowhere() -> None:
    """What is left in the buffer can't be written, and the interpreter must not try again at its end."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run(argv: Sequence[str]) -> int:
    names = {name for name, _, _ in _COMMANDS} | {"patches"}
    _register(argv[0] if argv and argv[0] in names else None)
    as_json = "--json" in argv
    try:
        result = app(args=list(argv), prog_name="kvlaunch", standalone_mode=False)
    except KvlaunchError as error:
        return _fail(error, as_json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except SystemExit as end:
        # click ends the process itself when a pipe's reader has gone
        return 0 if isinstance(end.__context__, BrokenPipeError) else int(end.code or 0)
    except BrokenPipeError:
        _to_nowhere()
        return 0
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError" and hasattr(error, "format_message"):
            print(error.format_message(), file=sys.stderr)  # that is the help page, not a sentence
            return UsageError.code
        # typer's own exceptions: it carries click inside under a private name, so they are known by their shape
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _fail(UsageError(error.format_message(), help=_usage_help(error)), as_json)
        if type(error).__name__ == "Abort":  # what typer makes of ^C
            print("interrupted", file=sys.stderr)
            return 130
        return _our_fault(error, argv)
    return result if isinstance(result, int) else 0


def _usage_help(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` lists what it takes" if context is not None else ""


def _our_fault(error: Exception, argv: Sequence[str]) -> int:
    """Exit code 1: a traceback is for us, not for the person, so it goes into a file that a bug report can hold."""
    import os
    import traceback

    from launcher.paths import places

    if os.environ.get("KVLAUNCH_DEBUG"):
        raise error
    what = f"a fault of ours: {type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:  # a disk, a permission: the world's fault as often as ours
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = f"kvlaunch {' '.join(argv)}\n" + "".join(traceback.format_exception(error))
    file = places().logs / "fault.txt"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(text)
        where = f"the details are in {file}"
    except OSError:
        where = "KVLAUNCH_DEBUG=1 shows the details"
    return _fail(KvlaunchError(what, help=where), "--json" in argv)


def _fail(error: KvlaunchError, as_json: bool) -> int:
    if as_json:
        print(json.dumps(error.as_json()))
    else:
        from launcher.cli.render import print_error

        print_error(error)
    return error.code
