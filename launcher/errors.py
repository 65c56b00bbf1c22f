"""The short list of errors. Each knows its exit code (contract.md) and says what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from launcher.diagnostic import Diagnostic


class KvlaunchError(Exception):
    """What went wrong, in words for a person. `help` says what to do; `rule` names a diagnostic, where there is one."""

    code: ClassVar[int] = 1

    def __init__(self, message: str, *, help: str = "", rule: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.rule = rule

    def as_json(self) -> dict[str, object]:
        """What `--json` prints for a failure."""
        error = {"code": self.code, "rule": self.rule, "message": self.message, "help": self.help}
        return {"schema": 1, "error": error}


class UsageError(KvlaunchError):
    """The command line itself is wrong."""

    code = 2


class ProfileError(KvlaunchError):
    """The profile is invalid or in conflict, the model is missing or no GGUF, a needed patch is not in the engine."""

    code = 10

    def __init__(
        self, message: str, *, help: str = "", rule: str | None = None, diagnostics: Sequence[Diagnostic] = ()
    ) -> None:
        super().__init__(message, help=help, rule=rule)
        self.diagnostics = tuple(diagnostics)

    def as_json(self) -> dict[str, object]:
        """With every finding, where there are some: the message has room for the first."""
        shown = super().as_json()
        return shown | {"diagnostics": [found.as_json() for found in self.diagnostics]} if self.diagnostics else shown


class DoesNotFit(KvlaunchError):
    """The plan does not fit this machine's memory."""

    code = 11


class BuildError(KvlaunchError):
    """Fetching, building or verifying the engine failed."""

    code = 12


class EngineRefused(KvlaunchError):
    """The engine cannot start like this: a bad option, a corrupt model, an illegal instruction."""

    code = 13


class GaveUp(KvlaunchError):
    """Retried as the profile allows, and gave up: a hang, a crash, memory at run time, a missing GPU."""

    code = 14


class AlreadyRunning(KvlaunchError):
    """An instance of this name runs already."""

    code = 15


class PortTaken(KvlaunchError):
    """Somebody else listens on the port."""

    code = 16


class NotRunning(KvlaunchError):
    """No instance of this name runs."""

    code = 17


def by_code(code: int) -> type[KvlaunchError]:
    """The error of an exit code: what a detached instance ended with is raised again as what it was."""
    return next((kind for kind in KvlaunchError.__subclasses__() if kind.code == code), KvlaunchError)
