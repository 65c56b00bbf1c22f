"""`python -m launcher.supervise SPEC.json`: the resident process of one instance. The command line starts it.

With `- WHAT` the spec's path comes as a line on standard input: the imports are done by then.
"""

from __future__ import annotations

import signal
import sys

# ^C before the supervisor listens for it ends us without a traceback: nothing runs yet
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# structlog would import rich for its console renderer, which is not used here: 5 MiB of the 32 that we may have
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]

import asyncio  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

from launcher.errors import KvlaunchError  # noqa: E402
from launcher.supervise.files import InstanceFiles  # noqa: E402
from launcher.supervise.logs import Log  # noqa: E402
from launcher.supervise.spec import LaunchSpec, SpecError  # noqa: E402
from launcher.supervise.supervisor import Supervisor, take_name  # noqa: E402
from launcher.supervise.view import View  # noqa: E402


def main(argv: list[str]) -> int:
    waits = len(argv) == 2 and argv[0] == "-"
    if len(argv) != 1 and not waits:
        print("error: usage: python -m launcher.supervise SPEC.json", file=sys.stderr)
        return 2
    name = sys.stdin.readline().rstrip("\n") if waits else argv[0]
    if not name:
        return 0  # whoever started us has found a reason not to
    path = Path(name)
    try:
        spec = LaunchSpec.read(path)
        if waits:
            _leave_the_terminal(spec.complaints)
        if path.parent == Path(spec.state_dir) and path.name.startswith("launch."):
            path.unlink(missing_ok=True)  # it was handed over to us alone
        files = take_name(spec)
    except SpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KvlaunchError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.code
    files.write("launch", spec.as_json())
    if sys.version_info < (3, 12):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())  # the default one there is a thread a child
    return asyncio.run(_live(spec, files))


def _leave_the_terminal(complaints: Path) -> None:
    """What we say to nobody in particular goes into that file from now on."""
    with open(os.devnull, "rb") as nothing, complaints.open("ab") as file:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


async def _live(spec: LaunchSpec, files: InstanceFiles) -> int:
    for_people = not spec.detached and sys.stderr.isatty()
    log = Log(Path(spec.log_dir), echo=sys.stdout if not spec.detached and not for_people else None)
    supervisor = Supervisor(spec, files, log)
    if for_people:
        view = View(spec.name, spec.expected.alias)
        log.listeners.append(view.record)
        supervisor.journal.watchers.append(view.event)
    code = await supervisor.run()
    log.close()
    if code not in (0, 130) and not for_people:
        print(f"error: {supervisor.status()['reason']}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
