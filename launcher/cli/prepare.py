"""What stands between a profile's name and a launch: read, fetch, build, plan. Each stage has its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import reserve
from launcher.cli.instances import refuse_running
from launcher.cli.stages import Stages
from launcher.errors import ProfileError
from launcher.flow import Case, judge, read_case, refine
from launcher.launch import build_spec, describe, fetch_model, require_good
from launcher.plan.kv import HOST
from launcher.plan.verdict import Fit
from launcher.rules.render import summary

if TYPE_CHECKING:
    from launcher.supervise.spec import LaunchSpec

_OWN = ("kv", "recurrent", "compute", "output")
"""What a running engine holds of host memory for itself: its mapped weights count as free already."""


def prepare_start(
    ref: str, sets: Sequence[str], stages: Stages, *, detached: bool, anyway: bool
) -> tuple[LaunchSpec, Case]:
    """The launch for `up`. A stage that fails raises what says so; what the start will take is reserved."""
    stages.stage("check", ref)
    case = read_case(ref, sets)
    refuse_running(case.profile.name, case.profile.file, case.places)
    stages.done("check", note=summary(case.diagnostics) if case.diagnostics else "")
    case = _with_model_and_engine(case, stages, anyway=anyway)
    with reserve.lock(case.places):
        case = refine(case)
        stages.stage("plan", describe(case))
        require_good(case, anyway=anyway)
        assert case.plan is not None
        spec = build_spec(case, detached=detached)
        reserve.reserve(case.places, case.profile.name, case.plan.at_start)
    stages.done("plan")
    return spec, case


def prepare_reload(old: LaunchSpec, memory: Sequence[Mapping[str, Any]], stages: Stages) -> tuple[LaunchSpec, bool]:
    """The launch for a running instance's changed profile, and whether both engines fit side by side.

    `memory`: what the running one takes, as its status says. What doesn't fit even in its place is refused.
    """
    stages.stage("check", old.profile)
    case = read_case(old.profile, old.sets, directory=Path(old.directory) if old.directory else None)
    if case.profile.name != old.name:
        raise ProfileError(
            f"{old.profile} is named {case.profile.name} now, and an instance keeps its name",
            help=f'`kvlaunch down {old.name}` and `kvlaunch up {old.profile}`, or write name = "{old.name}"',
        )
    stages.done("check", note=summary(case.diagnostics) if case.diagnostics else "")
    case = refine(_with_model_and_engine(case, stages, anyway=True))
    assert case.plan is not None
    stages.stage("plan", describe(case))
    beside = case.plan.verdict is Fit.FITS
    if not beside:
        freed: dict[str, int] = dict(case.reserved)
        for line in memory:
            if line["device"] != HOST or line["item"] in _OWN:
                freed[line["device"]] = freed.get(line["device"], 0) - int(line.get("actual") or 0)
        case = judge(replace(case, reserved=freed))
    require_good(case)
    stages.done("plan", note="beside the running one" if beside else "in its place")
    return build_spec(case, detached=old.detached), beside


def _with_model_and_engine(case: Case, stages: Stages, *, anyway: bool) -> Case:
    """The case with its model fetched and its engine built, each if need be."""
    case = fetch_model(case, stages)
    require_good(case, anyway=anyway)
    if case.profile.engine.binary is not None:
        return case
    from launcher.engine.builder import build_engine
    from launcher.engine.request import request_for

    request = request_for(case.profile.engine.patches, case.profile.compute.backend, case.machine)
    return replace(case, engine=build_engine(request, case.places, stages))
