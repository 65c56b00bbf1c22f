"""cmake and ninja: run with a clean environment, progress read from ninja's own counter, faults read from the output.

Both come from the Python packages that we depend on, never from PATH: a user's box has neither.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.engine.report import Reporter
from launcher.errors import BuildError
from launcher.fetch.disk import disk_error
from launcher.paths import shipped

_COUNTER = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_ERROR = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)")
_LINK_ERROR = re.compile(r"(?:undefined reference to .*|multiple definition of .*|cannot find -l\S+.*)")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|final (?:link|close) failed.*space", re.IGNORECASE)
_KILLED = re.compile(r"Killed signal terminated program|\bKilled\b|out of memory allocating", re.IGNORECASE)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_JOB_MEMORY = 1_600 << 20  # what the largest compile job took here (a joined file of server-context), with a margin

# Flags of the caller would change the result without changing the key; git would tell of the repository around us.
_SCRUBBED = re.compile(
    r"(C|CXX|CPP|LD|ASM|CUDA|HIP)FLAGS|CMAKE_.*|NINJA_STATUS|MAKEFLAGS|GIT_.*|C(PLUS)?_INCLUDE_PATH|CPATH"
)


@dataclass(frozen=True, slots=True)
class BuildPlace:
    """Where one build happens: the patched source, the build folder, the log that keeps everything."""

    source: Path
    build: Path
    log: Path


def tools() -> tuple[Path, Path]:
    """cmake and ninja of our own environment."""
    try:
        import cmake
        import ninja
    except ImportError as error:
        raise BuildError(
            f"the Python package {error.name} is missing", help="Install kvlaunch with its dependencies."
        ) from error
    return Path(cmake.CMAKE_BIN_DIR) / "cmake", Path(ninja.BIN_DIR) / "ninja"


def environment(environ: Mapping[str, str], base: Path) -> dict[str, str]:
    """The caller's environment without what would change the result, and with a cache that works across trees."""
    env = {name: value for name, value in environ.items() if not _SCRUBBED.fullmatch(name)}
    env |= {"LC_ALL": "C", "GIT_DIR": os.devnull, "NINJA_STATUS": "[%f/%t] "}
    env.setdefault("CCACHE_BASEDIR", str(base))
    env.setdefault("CCACHE_NOHASHDIR", "1")  # no debug information: the folder is in no object
    return env


def launcher(environ: Mapping[str, str]) -> str | None:
    """ccache or sccache, where one is installed."""
    return next((p for name in ("ccache", "sccache") if (p := shutil.which(name, path=environ.get("PATH")))), None)


def configure(place: BuildPlace, options: Mapping[str, str], env: Mapping[str, str]) -> None:
    """cmake, fresh whenever an option changed: a cached answer to another question is worse than 1 s."""
    cmake, ninja = tools()
    cache = launcher(env)
    full = dict(options)
    full["CMAKE_MAKE_PROGRAM"] = str(ninja)
    full["CMAKE_PROJECT_llama.cpp_INCLUDE"] = str(shipped("build") / "cmake" / "glue.cmake")
    # assert messages name their file: not by where it was built
    remap = f"-ffile-prefix-map={place.source}=llama.cpp -ffile-prefix-map={place.build}=build"
    full |= {"CMAKE_C_FLAGS": remap, "CMAKE_CXX_FLAGS": remap}
    if cache:
        full |= {"CMAKE_C_COMPILER_LAUNCHER": cache, "CMAKE_CXX_COMPILER_LAUNCHER": cache}
        full |= {"KVLAUNCH_CCACHE": cache} if Path(cache).name == "ccache" else {}
    record = place.build / "kvlaunch-options.json"
    wanted = json.dumps(full | {"": f"{env.get('CC')} {env.get('CXX')}"}, sort_keys=True)
    before = record.read_text() if record.is_file() else None
    command = [str(cmake), "-S", str(place.source), "-B", str(place.build), "-G", "Ninja", "-Wno-dev"]
    if before != wanted:
        command.append("--fresh")
        record.unlink(missing_ok=True)
    command += [f"-D{name}={value}" for name, value in sorted(full.items())]
    lines: list[str] = []
    code = _run(command, env, place, lines.append)
    if code:
        raise _configure_fault(lines, place)
    record.write_text(wanted)


def compile_targets(
    place: BuildPlace, targets: Sequence[str], env: Mapping[str, str], jobs: int, report: Reporter
) -> int:
    """ninja; gives the number of steps that ran. Raises BuildError with the first fault's file, line and log."""
    _, ninja = tools()
    steps = 0
    lines: list[str] = []

    def on_line(line: str) -> None:
        nonlocal steps
        if match := _COUNTER.match(line):
            steps, total = int(match[1]), int(match[2])
            report.progress(steps / total, f"{steps}/{total} {_step_name(match[3])}")
        lines.append(line)
        del lines[:-4000]

    code = _run([str(ninja), "-C", str(place.build), "-j", str(jobs), *targets], env, place, on_line)
    if code:
        raise _compile_fault(lines, place, jobs)
    return steps


def default_jobs() -> int:
    """As many jobs as CPUs that we may use and memory for: a swapping compiler is slower than a waiting one."""
    cpus = len(os.sched_getaffinity(0))
    try:
        with Path("/proc/meminfo").open() as file:
            available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return cpus
    return max(1, min(cpus, available // _JOB_MEMORY))


def _run(command: Sequence[str], env: Mapping[str, str], place: BuildPlace, on_line: Callable[[str], None]) -> int:
    """Run to the end, every line into the log. Leaves no process behind, whatever interrupts it."""
    place.log.parent.mkdir(parents=True, exist_ok=True)
    place.build.mkdir(parents=True, exist_ok=True)
    try:
        with (
            place.log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # ^C reaches us alone: we end the compilers in order
                preexec_fn=_die_with_us,
            ) as process,
        ):
            try:
                print(f"$ {' '.join(command)}", file=log)
                assert process.stdout is not None
                _pump(process.stdout, log, on_line)
                return process.wait()
            except BaseException:
                _end(process)
                raise
    except OSError as error:
        raise disk_error(error, place.build) from error


def _die_with_us() -> None:
    """Our death by KILL ends ninja too, and ninja its compilers: two of them in one tree would spoil it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _pump(stream: IO[str], log: IO[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        log.write(line)
        on_line(line.rstrip("\n"))


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt (ninja then removes half-written outputs), then kill."""
    for number, patience in ((signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            return


def _step_name(text: str) -> str:
    """`Building CXX object src/CMakeFiles/llama.dir/llama-vocab.cpp.o` to `llama-vocab.cpp`."""
    return re.sub(r"\.o$", "", text.rsplit("/", 1)[-1])[:40]


def _compile_fault(lines: Sequence[str], place: BuildPlace, jobs: int) -> BuildError:
    text = "\n".join(lines)
    help = f"The full log: {place.log}. Engines that are built already stay as they are."
    if _NO_SPACE.search(text):
        return _no_space(place)
    if _KILLED.search(text):
        return BuildError(
            f"the compiler was killed: not enough memory for {jobs} jobs at once", help=f"Try --jobs 1. {help}"
        )
    for pattern in (_ERROR, _LINK_ERROR):
        if match := pattern.search(text):
            where = ""
            if pattern is _ERROR:
                where = f"{_shown(match['file'], place)}:{match['line']}: "
            return BuildError(f"the engine does not compile: {where}{match['text'] if where else match[0]}", help=help)
    failed = [line for line in lines if line.startswith("FAILED: ")]
    return BuildError(f"the build failed: {(failed or list(lines[-1:]) or ['no output'])[0]}", help=help)


def _configure_fault(lines: Sequence[str], place: BuildPlace) -> BuildError:
    text = "\n".join(lines)
    if _NO_SPACE.search(text):
        return _no_space(place)
    match = re.search(r"^CMake Error at ([^\n]*?):(\d+)[^\n]*:\n((?:\s*\n|  [^\n]*\n?)+)", text, re.MULTILINE)
    told = " ".join(match[3].split())[:300] if match else (lines[-1] if lines else "no output")
    where = f"{_shown(match[1], place)}:{match[2]}: " if match else ""
    return BuildError(f"cmake refuses to configure the engine: {where}{told}", help=f"The full log: {place.log}.")


def _no_space(place: BuildPlace) -> BuildError:
    return disk_error(OSError(28, "No space left on device"), place.build, 1 << 30)


def _shown(file: str, place: BuildPlace) -> str:
    path = os.path.normpath(place.build / file)
    return os.path.relpath(path, place.source) if path.startswith(str(place.source)) else file
