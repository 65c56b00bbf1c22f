"""The command `kvlaunch`. What must be quick is answered before anything heavy is imported."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of the console script; never returns."""
    argv = sys.argv[1:]
    if argv in (["--version"], ["-V"]):
        from launcher import __version__

        print(f"kvlaunch {__version__}")
        sys.exit(0)
    # pydantic would look through all installed distributions for plugins of its own: 11 ms, and there are none
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from launcher.cli.app import run

    sys.exit(run(argv))


if __name__ == "__main__":
    main()
