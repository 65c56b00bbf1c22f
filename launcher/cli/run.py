"""`up`, `down`, `restart`, `reload`: bring an instance up, and change or end a running one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import JsonOption, NameArg, ProfileArg, SetOption

if TYPE_CHECKING:
    from launcher.cli.instances import Instance
    from launcher.flow import Case
    from launcher.supervise.spawn import Detached
    from launcher.supervise.spec import LaunchSpec


def up(
    profile: ProfileArg,
    detached: Annotated[
        bool, typer.Option("-d", "--detach", help="In the background; return when it is ready.")
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start although the plan says that it doesn't fit.")] = False,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check, plan, build if needed, start and supervise. In the foreground: ^C stops it, a second ^C kills it."""
    from launcher.supervise.spawn import Detached

    resident = Detached(profile) if detached else None
    from launcher.cli.prepare import prepare_start
    from launcher.cli.stages import Stages

    stages = Stages()
    try:
        spec, case = prepare_start(profile, sets or [], stages, anyway=anyway, detached=detached)
    finally:
        stages.close()
    _show_warnings(case)
    if resident is None:
        from launcher.supervise.spawn import run_foreground

        run_foreground(spec)
    return _start_detached(resident, spec, as_json)


def _show_warnings(case: Case) -> None:
    from launcher.cli.render import wants_colour
    from launcher.rules.render import render_diagnostics

    if case.diagnostics:
        print(render_diagnostics(case.diagnostics, colour=wants_colour(sys.stderr)), file=sys.stderr)


def _start_detached(resident: Detached, spec: LaunchSpec, as_json: bool) -> int:
    from launcher.errors import EngineRefused, by_code
    from launcher.supervise.spawn import wait_ready
    from launcher.supervise.view import View

    pid = resident.start(spec)
    try:
        outcome = wait_ready(spec, pid, View(spec.name, spec.expected.alias))
    except KeyboardInterrupt:
        print(f"\n{spec.name} goes on starting in the background: `kvlaunch status {spec.name}`", file=sys.stderr)
        return 130
    if outcome.code == 0 and outcome.status is None:  # an end that is no failure, but not what was asked for
        raise EngineRefused(
            f"{spec.name} ended before it was ready" + (f": {outcome.reason}" if outcome.reason else ""),
            help=f"`kvlaunch logs {spec.name}` has what the engine said",
        )
    if outcome.code or outcome.status is None:
        raise by_code(outcome.code)(outcome.reason or f"{spec.name} did not start")
    if as_json:
        print(json.dumps({"schema": 1, **outcome.status}))
    else:
        print(f"{spec.name} {outcome.status['state']} {outcome.status['url']}")
    return 0


def down(
    name: NameArg,
    now: Annotated[bool, typer.Option("--now", help="Kill it instead of letting requests end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop a running instance and wait until it is gone."""
    from launcher.cli.instances import running

    instance = running(name)
    if now:
        instance.client.kill()
    else:
        instance.client.stop()
    print(
        json.dumps({"schema": 1, "name": instance.name, "state": "stopped"}) if as_json else f"{instance.name} stopped"
    )


def restart(name: NameArg, as_json: JsonOption = False) -> int:
    """Stop and start a running instance; the tally of its deaths begins anew. Returns when it is ready."""
    from launcher.cli.instances import running

    instance = running(name)
    spec = instance.spec()
    since = instance.client.restart()
    return _follow_until_ready(instance, spec, since, as_json)


def _follow_until_ready(instance: Instance, spec: LaunchSpec, since: int, as_json: bool) -> int:
    from launcher.errors import by_code
    from launcher.supervise.view import View

    view = View(instance.name, spec.expected.alias)
    for event in instance.client.events(follow=True, since=since):
        view.event(event)
        if event.get("event") != "state":
            continue
        if event["state"] in ("ready", "degraded"):
            status = instance.client.status()
            print(
                json.dumps({"schema": 1, **status}) if as_json else f"{instance.name} {status['state']} {status['url']}"
            )
            return 0
        if event["state"] in ("failed", "stopped") and event.get("code") is not None:
            raise by_code(event["code"])(event.get("reason") or f"{instance.name} did not start again")
    raise by_code(1)(f"{instance.name} ended", help=f"`kvlaunch logs {instance.name}`")


def reload(
    name: NameArg,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what changes and what is interrupted.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Take the changed profile with the least interruption."""
    from launcher.cli.instances import running
    from launcher.cli.prepare import prepare_reload
    from launcher.cli.stages import Stages

    instance = running(name)
    old = instance.spec()
    stages = Stages(quiet=dry_run)
    try:
        spec, beside = prepare_reload(old, instance.status().get("memory") or (), stages)
    finally:
        stages.close()
    request = {"do": "reload", "spec": spec.as_json(), "beside": beside, "dry_run": dry_run}
    answer = instance.client.ask(request)
    how = answer["reload"]
    if as_json:
        print(json.dumps({"schema": 1, "name": instance.name, "reload": how}))
    else:
        print("\n".join([f"{instance.name}: {how['interrupts']}", *(f"  {change}" for change in how["changes"])]))
    if dry_run or how["way"] in ("nothing", "at-once"):
        return 0
    return _follow_reload(instance, answer["seq"], how["way"])


def _follow_reload(instance: Instance, since: int, way: str) -> int:
    """Wait until the new engine serves. A hand-over that fails leaves the old one serving, and is said."""
    from launcher.errors import EngineRefused, by_code

    for event in instance.client.events(follow=True, since=since):
        stage = event.get("stage") if event.get("event") == "reload" else None
        if stage == "failed":
            raise EngineRefused(
                f"{instance.name} was not reloaded: {event.get('reason')}", help="the old engine serves on"
            )
        if stage in ("switched", "done"):
            break
        if event.get("event") == "state" and way != "hand-over":
            if event["state"] in ("ready", "degraded"):
                break
            if event["state"] == "failed":
                raise by_code(event.get("code") or 1)(str(event.get("reason")))
    print(f"{instance.name} {instance.status()['state']}", file=sys.stderr)
    return 0
