"""All commands in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from launcher.cli.frame import framed
from launcher.errors import UsageError

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
    return framed(argv, lambda: _run(argv))


def _run(argv: Sequence[str]) -> object:
    names = {name for name, _, _ in _COMMANDS} | {"patches"}
    _register(argv[0] if argv and argv[0] in names else None)
    try:
        return app(args=list(argv), prog_name="kvlaunch", standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError" and hasattr(error, "format_message"):
            print(error.format_message(), file=sys.stderr)  # that is the help page, not a sentence
            return UsageError.code
        # typer's own exceptions: it carries click inside under a private name, so they are known by their shape
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            raise UsageError(error.format_message(), help=_usage_help(error)) from error
        if type(error).__name__ == "Abort":  # what typer makes of ^C
            raise KeyboardInterrupt from error
        raise


def _usage_help(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` lists what it takes" if context is not None else ""
