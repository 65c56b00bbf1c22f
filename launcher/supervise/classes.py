"""Why an engine ended, as a small set of classes, told from its exit and from its own words. Pure.

A class says whether trying again unchanged can help, which exit code of ours it becomes, and what a person can do.
The words were collected from the pinned engine (one case each, run) and from ggml's backends (read).
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. Exactly one of `code` and `signal` is set."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(self.signal).name}"
            return f"killed by signal {self.signal}"
        return f"exit code {self.code}"


class ExitClass(StrEnum):
    STOPPED_BY_US = "stopped-by-us"
    ENDED = "ended"
    """Exit code 0 without our asking: somebody else sent it a signal."""
    BAD_OPTION = "bad-option"
    NOT_EXECUTABLE = "not-executable"
    MODEL_MISSING = "model-missing"
    MODEL_CORRUPT = "model-corrupt"
    PORT_TAKEN = "port-taken"
    ADDRESS_UNUSABLE = "address-unusable"
    """Nobody has it, but it isn't ours to listen on."""
    OOM_LOAD = "oom-load"
    OOM_RUNTIME = "oom-runtime"
    HOST_OOM = "host-oom"
    ILLEGAL_INSTRUCTION = "illegal-instruction"
    GPU_MISSING = "gpu-missing"
    GPU_LOST = "gpu-lost"
    HUNG = "hung"
    START_STALLED = "start-stalled"
    SHORT_OF_PLAN = "short-of-plan"
    """It runs, but is not what was planned, and the profile says `strict`."""
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a class means for policy and for people."""

    code: int
    deterministic: bool
    """Unchanged, it will end the same way: not retried."""
    memory: bool
    """Giving something up (`supervise.fallback`) can help."""
    help: str


_C = ExitClass
KINDS: dict[ExitClass, Kind] = {
    _C.STOPPED_BY_US: Kind(0, False, False, ""),
    _C.ENDED: Kind(0, False, False, ""),
    _C.BAD_OPTION: Kind(13, True, False, "the engine does not take these options: see `kvlaunch check`"),
    _C.NOT_EXECUTABLE: Kind(13, True, False, "see `kvlaunch engines`, or engine.binary in the profile"),
    _C.MODEL_MISSING: Kind(10, True, False, "see model.path in the profile: is the file (or its disk) there?"),
    _C.MODEL_CORRUPT: Kind(13, True, False, "the model file is damaged, incomplete or too new: fetch it again"),
    _C.PORT_TAKEN: Kind(16, True, False, "free it, or choose another serve.port or serve.host"),
    _C.ADDRESS_UNUSABLE: Kind(10, True, False, "see serve.host and serve.port in the profile, and `ip addr`"),
    _C.OOM_LOAD: Kind(11, True, True, "see `kvlaunch plan`: a smaller context or tier, or supervise.fallback"),
    _C.OOM_RUNTIME: Kind(14, False, True, "leave more memory free, or name what may go in supervise.fallback"),
    _C.HOST_OOM: Kind(14, False, True, "the system ran out of memory: plan for less, or raise the limit"),
    _C.ILLEGAL_INSTRUCTION: Kind(13, True, False, "built for another CPU: `kvlaunch build` makes one for this"),
    _C.GPU_MISSING: Kind(14, False, False, "the device was not there: is its driver loaded? see `kvlaunch doctor`"),
    _C.GPU_LOST: Kind(14, False, False, "the device failed while running: see the kernel's log (dmesg)"),
    _C.HUNG: Kind(14, False, False, "the engine stopped doing anything: `kvlaunch report` collects what is known"),
    _C.START_STALLED: Kind(14, False, False, "loading stood still: is the model on a slow or lost disk?"),
    _C.SHORT_OF_PLAN: Kind(13, True, False, "supervise.strict wants the plan in full: see the list above"),
    _C.CRASH: Kind(14, False, False, "`kvlaunch report` collects what is known for a bug report"),
}


@dataclass(frozen=True, slots=True)
class _Words:
    kind: ExitClass
    pattern: str
    """Compiled when an engine has ended: at the start it would cost the spawn 10 ms."""


def _words(kind: ExitClass, *alternatives: str) -> _Words:
    return _Words(kind, "|".join(alternatives))


_OOM = (
    r"insufficient memory", r"out of memory", r"cannot allocate memory", r"std::bad_alloc", r"failed to allocate",
    r"unable to allocate", r"OutOfDeviceMemory", r"OutOfHostMemory", r"cudaMalloc failed", r"hipMalloc failed",
)  # fmt: skip

# the first that matches any of the error lines wins, so the particular stands before the general
_AT_LOAD = (
    _words(_C.NOT_EXECUTABLE, r"^error: cannot execute "),
    _words(_C.PORT_TAKEN, r"couldn't bind HTTP server socket", r"couldn't start HTTP listener"),
    _words(_C.BAD_OPTION, r"^error: invalid argument", r"^error while handling (argument|environment)",
           r"^error: unknown argument", r"^error: (?!cannot execute)"),
    _words(_C.MODEL_MISSING, r"failed to open GGUF file .*No such file", r"failed to open .*\.gguf.*No such file"),
    _words(_C.GPU_MISSING, r"no CUDA-capable device", r"failed to initialize (CUDA|HIP)", r"no ROCm-capable device",
           r"no usable GPU", r"no devices found", r"driver version is insufficient", r"Failed to connect to \S+:\d+"),
    _words(_C.OOM_LOAD, *_OOM),
    _words(_C.MODEL_CORRUPT, r"invalid magic", r"corrupted or incomplete", r"not within the file bounds",
           r"unknown model architecture", r"error loading model", r"failed to load model"),
    _words(_C.BAD_OPTION, r"failed to create.?context", r"failed to initialize the context", r"llama_init_from_model"),
)  # fmt: skip
_AT_RUN_TIME = (
    _words(_C.OOM_RUNTIME, *_OOM),
    _words(_C.GPU_LOST, r"CUDA error", r"ROCm error", r"hipError", r"DeviceLost", r"device lost",
           r"unspecified launch failure", r"Remote RPC server crashed", r"fell off the bus"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about one end."""

    exit: Exit
    ready: bool
    """Whether it had been ready: the same words mean another thing while loading."""
    ours: ExitClass | None = None
    """Set when we ended it: stopped, hung, stalled, short of the plan."""
    oom_kill: bool = False
    """The cgroup counted a kill for memory meanwhile."""
    errors: Sequence[str] = ()
    """Its error lines, the first first."""


def classify(evidence: Evidence) -> tuple[ExitClass, str | None]:
    """The class, and the engine's own line that shows it (else its first error line)."""
    first = evidence.errors[0] if evidence.errors else None
    if evidence.ours is not None:
        return evidence.ours, first
    if evidence.exit.signal == signal.SIGILL:
        return _C.ILLEGAL_INSTRUCTION, first
    if evidence.exit.signal == signal.SIGKILL:
        return (_C.HOST_OOM if evidence.oom_kill else _C.CRASH), first
    if evidence.exit.code == 0:
        return _C.ENDED, None
    for rule in _AT_RUN_TIME if evidence.ready else _AT_LOAD:
        for line in evidence.errors:
            if re.search(rule.pattern, line, re.IGNORECASE):
                return rule.kind, line
    return _C.CRASH, first
