"""The command `kvlaunch`. What must be quick is answered before anything heavy is imported."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Entry point of the console script; never returns."""
    # ^C in the middle of an import ends us without a traceback; the frame makes an exception of it again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    argv = sys.argv[1:]
    if argv in (["--version"], ["-V"]):
        from launcher import __version__

        print(f"kvlaunch {__version__}")
        sys.exit(0)
    if argv[:1] == ["status"] and (asked := _plain(argv[1:])) is not None:
        from launcher.cli.frame import framed
        from launcher.cli.status import show

        sys.exit(framed(argv, lambda: show(asked[0] if asked else None, "--json" in argv)))
    # what is imported stays: to look for garbage in it as often as Python does takes 15 ms of 300
    gc.set_threshold(100_000)
    # pydantic would look through all installed distributions for plugins of its own: 11 ms, and there are none
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from launcher.cli.app import run

    sys.exit(run(argv))


def _plain(words: list[str]) -> list[str] | None:
    """At most one name, and no option but --json; None for all else, which typer reads."""
    names = [word for word in words if word != "--json"]
    return names if len(names) <= 1 and not any(name.startswith("-") for name in names) else None


if __name__ == "__main__":
    main()
