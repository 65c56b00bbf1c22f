"""Around every command: the one place where an error becomes words and an exit code. Without typer: not all need it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence

from launcher.errors import KvlaunchError


def framed(argv: Sequence[str], command: Callable[[], object]) -> int:
    """Run a command; the exit code of contract.md comes back. `argv` is what was typed, for the words of a failure."""
    _have_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _ended(argv, command)
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
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123


def _to_nowhere() -> None:
    """What is left in the buffer can't be written, and the interpreter must not try again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _ended(argv: Sequence[str], command: Callable[[], object]) -> int:
    try:
        result = command()
    except KvlaunchError as error:
        return _fail(error, "--json" in argv)
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
        return _our_fault(error, argv)
    return result if isinstance(result, int) else 0


def _our_fault(error: Exception, argv: Sequence[str]) -> int:
    """Exit code 1: a traceback is for us, not for the person, so it goes into a file that a bug report can hold."""
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
