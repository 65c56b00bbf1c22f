"""From a profile's name to a plan and its diagnostics: the readers on the left, the pure middle, nothing started.

Commands call this and render what comes back. Nothing is built, downloaded or hashed here (contract: `check`); what
fetches and builds is in `prepare`, for `up`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.diagnostic import Diagnostic, Severity
from launcher.engine.capability import Capability, from_binary, from_help_file, of_pin, parse_help
from launcher.errors import KvlaunchError, ProfileError
from launcher.machine.probe import probe
from launcher.machine.types import Machine
from launcher.model import sources
from launcher.model.shape import ModelShape, read_shape
from launcher.paths import Places, places
from launcher.plan.plan import Plan, make_plan
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile

if TYPE_CHECKING:
    from launcher.engine.store import Engine


@dataclass(frozen=True, slots=True)
class Case:
    """One profile on one machine with one engine. `shape` and `plan` are None while the model isn't here yet."""

    profile: Profile
    places: Places
    machine: Machine
    capability: Capability
    model: Path | None
    shape: ModelShape | None
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    skipped: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No error among the diagnostics."""
        return not any(found.severity is Severity.ERROR for found in self.diagnostics)

    @property
    def argv(self) -> list[str]:
        """The engine's arguments. Raises ProfileError where the engine lacks one of them."""
        assert self.plan is not None
        return self.plan.argv(self.capability.options, self.profile.engine.args)


def read_case(
    ref: str,
    sets: Sequence[str] = (),
    *,
    machine: Machine | None = None,
    engine_help: Path | None = None,
    engine: Engine | None = None,
) -> Case:
    """Read everything and judge it; `machine`: None looks at this box.

    Raises ProfileError for a document that can't be read, with all its faults.
    """
    here = places()
    profile = load_profile(ref, sets, os.environ)
    machine = machine or probe()
    capability = read_capability(profile, here, engine_help, engine)
    model = locate_model(profile, here)
    case = Case(profile, here, machine, capability, model, None, None, (), ())
    return judge(case)


def judge(case: Case) -> Case:
    """Read the model's header, plan, and hold every rule against the result."""
    from launcher.rules import check

    shape = plan = None
    faults: list[Diagnostic] = []
    if case.model is not None:
        try:
            shape = read_shape(case.model)
            plan = make_plan(
                case.profile,
                shape,
                case.machine,
                case.capability.options,
                model=case.model,
                state_dir=case.places.instance(case.profile.name),
            )
        except ProfileError as error:
            faults.append(_as_diagnostic(error, case.profile))
    found, skipped = check(case.profile, shape, case.machine, case.capability, plan)
    return replace(case, shape=shape, plan=plan, diagnostics=(*faults, *found), skipped=skipped)


def read_machine(path: Path) -> Machine:
    """`--machine FILE`: the output of `probe --json`, of this box or another. Raises ProfileError."""
    import json

    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ProfileError(f"--machine {path}: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(
            f"--machine {path} is no JSON: {error}", help="write it with `kvlaunch probe --json`"
        ) from error
    return Machine.from_json(data)


def read_capability(profile: Profile, here: Places, engine_help: Path | None, engine: Engine | None) -> Capability:
    """What the engine can do, from the first source that applies (contract.md)."""
    if engine_help is not None:
        return from_help_file(engine_help)
    if profile.engine.binary is not None:
        return from_binary(profile.engine.binary, here.cache)
    if engine is not None:
        return parse_help(
            engine.help_text.read_text("utf-8"), f"engine {engine.key}", sorted(engine.manifest.patch_ids)
        )
    return of_pin(profile.engine.patches)


def locate_model(profile: Profile, here: Places) -> Path | None:
    """The model's file where it lies already. A path that isn't there is given back as it is: reading it says so."""
    model = profile.model
    if model.path is not None:
        return model.path
    return sources.locate(path=None, packages=model.package, hub=model.hub, cache=here.cache)


def errors_of(case: Case) -> KvlaunchError | None:
    """The error that a command ends with when a case has errors; None when it has none."""
    if case.ok:
        return None
    from launcher.rules.render import summary

    count = summary(found for found in case.diagnostics if found.severity is Severity.ERROR)
    first = next(found for found in case.diagnostics if found.severity is Severity.ERROR)
    return ProfileError(f"{case.profile.file}: {count}", rule=first.rule, diagnostics=case.diagnostics)


def _as_diagnostic(error: ProfileError, profile: Profile) -> Diagnostic:
    key = "model.path" if profile.model.path else "model.package" if profile.model.package else "model.hub"
    return Diagnostic(
        error.rule or "KV900",
        "model-unreadable",
        Severity.ERROR,
        key,
        error.message,
        help=error.help,
        place=profile.nearest_place(key),
    )
