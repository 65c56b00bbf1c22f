"""The command `kvlaunch`. What must be quick is answered before anything heavy is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script; never returns."""
    argv = sys.argv[1:]
    if argv in (["--version"], ["-V"]):
        from launcher import __version__

        print(f"kvlaunch {__version__}")
        sys.exit(0)
    from launcher.cli.app import run

    sys.exit(run(argv))


if __name__ == "__main__":
    main()
