"""From a profile's name to a plan and its diagnostics: the readers on the left, the pure middle, nothing started.

Commands call this and render what comes back. Nothing is built, downloaded or hashed here (contract: `check`); what
fetches and builds is in `prepare`, for `up`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.diagnostic import Diagnostic, Severity
from launcher.engine.capability import Capability, from_binary, from_help_file, of_pin, parse_help
from launcher.engine.second_opinion import dry_run
from launcher.errors import KvlaunchError, ProfileError
from launcher.machine.engine_process import with_workers
from launcher.machine.figures import FOLDER, with_measured
from launcher.machine.probe import probe
from launcher.machine.types import Machine
from launcher.measured import measured_file, read_measured
from launcher.model import sources
from launcher.model.shape import ModelShape, read_shape
from launcher.paths import Places, places
from launcher.plan.dryrun import DryRun, parse_dry_run
from launcher.plan.kv import HOST
from launcher.plan.plan import Given, Plan, make_plan, with_context
from launcher.plan.verdict import Fit, overall
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile
from launcher.reserve import reserved

if TYPE_CHECKING:
    from launcher.engine.store import Engine
    from launcher.plan.search import Front
    from launcher.rules.case import Files


@dataclass(frozen=True, slots=True)
class Case:
    """One profile on one machine with one engine. `shape` and `plan` are None while the model isn't here yet.

    dry_run, measured, reserved  see plan.Given: what was learnt before this judgement
    elsewhere                    the machine was read from a file: this one's addresses say nothing of it
    """

    profile: Profile
    places: Places
    machine: Machine
    capability: Capability
    model: Path | None
    shape: ModelShape | None
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    skipped: tuple[str, ...]
    engine: Engine | None = None
    dry_run: DryRun | None = None
    measured: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)
    elsewhere: bool = False

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
    directory: Path | None = None,
    elsewhere: bool = False,
) -> Case:
    """Read everything and judge it; `machine`: None looks at this box; `directory`: where relative paths in `sets`
    start from, if not from the working directory; `elsewhere`: that machine is another than this.

    Raises ProfileError for a document that can't be read, with all its faults.
    """
    here = places()
    profile = load_profile(ref, sets, os.environ, directory=directory)
    # [env] may name the GPUs: CUDA_VISIBLE_DEVICES
    machine = machine or with_measured(probe(environ={**os.environ, **profile.env}), here.cache / FOLDER)
    capability = read_capability(profile, here, engine_help, engine)
    model = locate_model(profile, here)
    return judge(Case(profile, here, machine, capability, model, None, None, (), (), engine, elsewhere=elsewhere))


def with_engine(case: Case) -> Case:
    """The case as the engine in the store answers it, if one is built."""
    engine = built_engine(case)
    return case if engine is None or case.plan is None else refine(replace(case, engine=engine))


def refine(case: Case) -> Case:
    """Judge a case anew with all that its engine knows: its own options, its dry run, what it took before.

    With a binary that was given there is nothing more to ask; what other starts reserve counts either way.
    """
    if case.engine is None:
        return judge(replace(case, reserved=reserved(case.places, besides=case.profile.name)))
    capability = read_capability(case.profile, case.places, None, case.engine)
    machine = with_workers(case.machine, case.engine.server, case.profile.compute.rpc)
    # the settings of a plan are the key of what the engine said before, so a plan comes first; rules see the last one
    files = look_at_files(case)
    case, _ = _with_plan(replace(case, capability=capability, machine=machine), files)
    return judge(replace(case, **second_opinions(case)) if case.plan is not None else case, files)


def second_opinions(case: Case) -> dict[str, Any]:
    """What this very engine said or did before with these settings, and what other starts are about to take."""
    plan, engine, model = case.plan, case.engine, case.model
    assert plan is not None and engine is not None and model is not None
    said = dry_run(engine.fit_params, engine.key, plan.settings, model, case.places.cache)
    return {
        "dry_run": parse_dry_run(said) if said else None,
        "measured": read_measured(measured_file(case.places.cache, engine.key, model, plan.settings)),
        "reserved": reserved(case.places, besides=case.profile.name),
    }


def concede(case: Case, name: str) -> Case:
    """The case with one thing given up (`supervise.fallback`): for a restart after memory did not suffice."""
    from launcher.plan.fallback import concession

    plan = case.plan
    if plan is None:
        return case

    def fits(per_slot: int) -> bool:
        return overall(with_context(plan, per_slot)[2]) is not Fit.NO

    sets = concession(name, case.profile, case.capability.options, plan.split.per_slot, fits)
    here = Path(case.profile.sets_directory) if case.profile.sets else None
    given = [*case.profile.sets, *sets]
    return read_case(str(case.profile.file), given, machine=case.machine, directory=here, elsewhere=case.elsewhere)


def case_for_model(model: Path, name: str, slots: int) -> Case:
    """A case for someone who has only a file: every other key at its default."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.toml"
        file.write_text(f"[model]\npath = {json.dumps(str(model.absolute()))}\n[context]\nslots = {slots}\n")
        return read_case(str(file))


def largest_context(case: Case) -> tuple[int, str] | None:
    """The most tokens a slot that fit, at most what the model was trained for, and what is to be changed for it beside
    the context (nothing, where there is room for all that grows with use); None where nothing fits."""
    from launcher.plan.plan import at_rest
    from launcher.plan.search import most_context
    from launcher.plan.verdict import judge as judge_devices

    plan = case.plan
    assert plan is not None

    def fits(per_slot: int, growth: bool) -> bool:
        _, lines, verdicts = with_context(plan, per_slot)
        return overall(verdicts if growth else judge_devices(at_rest(lines), plan.rooms)) is Fit.FITS

    found = most_context(fits, plan.split.train)
    if found is None:
        return None
    advice = [f"{one.device}: {one.advice}" for one in with_context(plan, found)[2] if one.advice]
    return found, "; ".join(advice)


def search_front(case: Case) -> tuple[Front, float, bool]:
    """The Pareto front over tier, residency, slots and context, the seconds it took, and whether it has room for the
    prompt cache: where nothing fits beside that, it is looked for without it."""
    from time import monotonic

    from launcher.plan.search import Space, Speeds, search, useful_tiers

    plan = case.plan
    assert plan is not None
    host = (case.machine.memory.gbps or 0) * 1e9
    memory = {device.id: (device.memory_gbps or 0) * 1e9 for device in case.machine.devices} | {HOST: host}
    link = {device.id: (device.copy_gbps or 0) * 1e9 for device in case.machine.devices}
    began = monotonic()
    tiers = useful_tiers(case.capability.cache_types)
    demand = plan.demand
    front = search(demand, plan.rooms, Speeds(memory, link), Space(tiers))
    if whole := not front.candidates and demand.prompt_cache > 0:
        front = search(replace(demand, prompt_cache=0), plan.rooms, Speeds(memory, link), Space(tiers))
    return front, monotonic() - began, not whole


def judge(case: Case, files: Files | None = None) -> Case:
    """Read the model's header, plan, and hold every rule against the result. `files`: where they were looked at."""
    from launcher.rules import check

    files = files or look_at_files(case)
    case, faults = _with_plan(case, files)
    found, skipped = check(case.profile, case.shape, case.machine, case.capability, case.plan, files)
    return replace(case, diagnostics=(*faults, *found), skipped=skipped)


def look_at_files(case: Case) -> Files:
    """What the world outside says of the files and addresses that the profile names."""
    from launcher.rules.files import look

    return look(case.profile, elsewhere=case.elsewhere)


def _with_plan(case: Case, files: Files) -> tuple[Case, tuple[Diagnostic, ...]]:
    """The case with its model's shape and its plan as far as both can be had, and why not."""
    if case.model is None:
        return replace(case, shape=None, plan=None), ()
    # a case is judged again as more is learnt; its model's header says the same each time
    shape = case.shape if case.shape is not None and case.shape.path == case.model else None
    try:
        shape = shape or read_shape(case.model)
        plan = make_plan(
            case.profile,
            shape,
            case.machine,
            case.capability.options,
            model=case.model,
            state_dir=case.places.instance(case.profile.name),
            given=Given(files.shapes, case.dry_run, case.measured, case.reserved),
        )
    except ProfileError as error:
        model = case.profile.model
        key = "model.path" if model.path else "model.package" if model.package else "model.hub"
        found = _as_diagnostic(error, case.profile, key, error.rule or "KV900", "model-unreadable")
        return replace(case, shape=shape, plan=None), (found,)
    return replace(case, shape=shape, plan=plan), ()


def read_machine(path: Path) -> Machine:
    """`--machine FILE`: the output of `probe --json`, of this box or another. Raises ProfileError."""
    return Machine.load(path)


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
    try:
        return of_pin(profile.engine.patches)
    except ProfileError as error:
        if not profile.is_set("engine.patches"):
            raise
        found = _as_diagnostic(error, profile, "engine.patches", "KV004", "bad-value")
        raise ProfileError(error.message, help=error.help, rule=found.rule, diagnostics=[found]) from error


def built_engine(case: Case) -> Engine | None:
    """The engine in the store that `up` would take; None where it isn't built yet, or a binary is given."""
    from launcher.engine.request import request_for
    from launcher.engine.resolve import find_engine

    profile = case.profile
    if profile.engine.binary is not None:
        return None
    return find_engine(request_for(profile.engine.patches, profile.compute.backend, case.machine), case.places)


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

    errors = [found for found in case.diagnostics if found.severity is Severity.ERROR]
    first, file = errors[0], case.profile.file
    # the whole list is shown before it; a script that gets only this has the first finding itself
    message = f"{file}: {first.message}" if len(errors) == 1 else f"{file}: {summary(errors)}, first: {first.message}"
    return ProfileError(message, help=first.help, rule=first.rule, diagnostics=case.diagnostics)


def _as_diagnostic(error: ProfileError, profile: Profile, key: str, rule: str, slug: str) -> Diagnostic:
    """What one value led to, as a finding at the place that wrote it."""
    place = profile.nearest_place(key)
    return Diagnostic(rule, slug, Severity.ERROR, key, error.message, help=error.help, place=place)
