"""`plan` and `init`: what a profile comes to, byte by byte; the best settings; a profile for a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import EngineHelpOption, JsonOption, MachineOption, ProfileArg, SetOption

if TYPE_CHECKING:
    from launcher.flow import Case
    from launcher.plan.plan import Plan
    from launcher.plan.search import Front


def plan(
    profile: ProfileArg,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Every line with its formula and source.")] = False,
    max_context: Annotated[bool, typer.Option("--max-context", help="The largest context a slot that fits.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="The best trades of context, slots, speed, quality.")
    ] = False,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Save what was found.")] = None,
    sets: SetOption = None,
    machine: MachineOption = None,
    engine_help: EngineHelpOption = None,
    spec: Annotated[bool, typer.Option("--spec", hidden=True, help="The supervisor's launch spec.")] = False,
    give_up: Annotated[list[str] | None, typer.Option("--give-up", hidden=True, help="One step less.")] = None,
    as_json: JsonOption = False,
) -> int:
    """The plan: context per slot, a bar for each device, the verdict, and the exact command line."""
    from launcher.flow import concede, read_case, read_machine, with_engine

    box = read_machine(machine) if machine else None
    case = read_case(profile, sets or [], machine=box, engine_help=engine_help, elsewhere=box is not None)
    for step in give_up or []:
        case = concede(case, step)
    if engine_help is None and machine is None:
        case = with_engine(case)
    if spec:
        return _print_spec(case, tuple(sets or ()))
    _need_model(case)
    if search:
        return _search(case, write, as_json)
    if max_context or write is not None:
        return _max_context(case, write, as_json)
    if as_json:
        print(json.dumps(_as_json(case)))
    else:
        from launcher.cli.plan_table import show_plan

        show_plan(case, verbose=verbose)
    return _code(case, shown=not as_json)


def init(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF, its first shard, or a llamafile.")],
    out: Annotated[Path | None, typer.Option("-o", "--output", help="Default: NAME.toml here.")] = None,
    slots: Annotated[int, typer.Option("--slots", min=1, max=256, help="Conversations at the same time.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Write a profile for a model: the largest context that fits this machine, explained."""
    from launcher.errors import DoesNotFit, UsageError
    from launcher.flow import case_for_model
    from launcher.model.shape import read_shape
    from launcher.plan.verdict import Fit

    name = _name_of(model)
    target = out or Path(f"{name}.toml")
    if target.exists():
        raise UsageError(f"{target} exists already", help="give another file with -o, or change it by hand")
    read_shape(model)  # its faults are about the file, not about a profile that nobody wrote
    case = case_for_model(model, name, slots)
    found = _need_model(case)
    split, kv = found.split, case.profile.kv.tier
    if found.verdict is Fit.NO:
        advice = [f"{device.device}: {device.advice}" for device in found.devices if device.advice]
        raise DoesNotFit(f"{model} does not fit this machine", rule="KV201", help="\n".join(advice))
    _save(target, _profile_text(model.absolute(), split.slots, split.per_slot, str(kv)))
    advice = [f"{device.device}: {device.advice}" for device in found.devices if device.advice]
    if as_json:
        result = {"schema": 1, "profile": str(target), "context": split.as_json(), "advice": "; ".join(advice) or None}
        print(json.dumps(result))
        return 0
    print(f"wrote {target}: {split.slots} × {split.per_slot} tokens; `kvlaunch up {target}`")
    for line in advice:
        print(f"  {found.verdict}: {line}")
    return 0


def _need_model(case: Case) -> Plan:
    """The plan. Raises where there is none: the model isn't here, or can't be read."""
    from launcher.errors import ProfileError
    from launcher.flow import errors_of

    if case.plan is not None:
        return case.plan
    if (error := errors_of(case)) is not None:
        raise error
    raise ProfileError(
        f"{case.profile.file}: the model isn't on this machine yet, so nothing can be counted",
        help=f"`kvlaunch up {case.profile.file}` fetches it",
    )


def _code(case: Case, *, shown: bool) -> int:
    """0, or the error that the case ends with; what was `shown` already is not said again."""
    import sys

    from launcher.errors import KvlaunchError
    from launcher.launch import require_good
    from launcher.rules.render import summary

    try:
        require_good(case)
    except KvlaunchError as error:
        if not shown:
            raise
        print(f"{case.profile.file}: {summary(case.diagnostics)}", file=sys.stderr)
        return int(error.code)
    return 0


def _as_json(case: Case) -> dict[str, object]:
    assert case.plan is not None
    return {
        "schema": 1,
        "profile": str(case.profile.file),
        **case.plan.as_json(),
        "argv": case.argv,
        "engine": case.capability.source,
        "diagnostics": [found.as_json() for found in case.diagnostics],
    }


def _print_spec(case: Case, sets: tuple[str, ...]) -> int:
    """The launch. `sets` is what the person said: what was given up for memory must not stick to later reloads."""
    from dataclasses import replace

    from launcher.launch import build_spec, require_good

    require_good(case)
    print(json.dumps(replace(build_spec(case, detached=True), sets=sets).as_json()))
    return 0


def _max_context(case: Case, write: Path | None, as_json: bool) -> int:
    from launcher.errors import DoesNotFit
    from launcher.flow import largest_context

    answer = largest_context(case)
    if answer is None:
        raise DoesNotFit(
            "not even 256 tokens a slot fit", rule="KV201", help="`kvlaunch plan` shows what takes the memory"
        )
    found, advice = answer
    slots = case.profile.context.slots
    whole = case.plan is not None and found == case.plan.split.train
    if write is not None:
        _write(case, write, {"context.per_slot": found})
    if as_json:
        print(json.dumps({"schema": 1, "per_slot": found, "slots": slots, "advice": advice or None}))
        return 0
    text = f"{found} tokens for each of {slots} slots" if slots > 1 else f"{found} tokens"
    print(text + (", all that the model was trained for" if whole else "") + _wrote(write))
    if advice:
        print(f"  tight: {advice}")
    return 0


def _wrote(file: Path | None) -> str:
    return f"; wrote {file}" if file else ""


def _search(case: Case, write: Path | None, as_json: bool) -> int:
    from launcher.errors import DoesNotFit
    from launcher.flow import search_front

    front, seconds, room_for_cache = search_front(case)
    if not front.candidates:
        raise DoesNotFit("nothing fits", rule="KV201", help="`kvlaunch plan` shows what takes the memory")
    if write is not None:
        best = front.candidates[0]
        changes = {"context.per_slot": best.per_slot, "context.slots": best.slots, "kv.tier": str(best.tier)}
        _write(case, write, changes)
    if as_json:
        found = [candidate.as_json() for candidate in front.candidates]
        print(
            json.dumps(
                {"schema": 1, "tried": front.tried, "fitting": front.fitting, "seconds": seconds, "front": found}
                | {"prompt_cache": room_for_cache}
            )
        )
    else:
        assert case.plan is not None
        _show_front(front, seconds, on_device=bool(case.plan.demand.placement.gpu_layers))
        if not room_for_cache:
            print("  nothing fits beside the prompt cache: these are without it, so lower kv.reuse.ram too")
        if write is not None:
            print(f"  wrote {write} with the first of them")
    return 0


_ROWS = 24


def _show_front(front: Front, seconds: float, *, on_device: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from launcher.plan.search import thinned

    rows = thinned(front.candidates)

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("context a slot", "slots", "tier", "residency", "tokens/s, full", "quality"):
        table.add_column(
            heading, justify="right" if heading in ("context a slot", "slots", "tokens/s, full") else "left"
        )
    for one in rows[:_ROWS]:
        place = f"{one.residency.name} {one.residency.share:.0%}" if on_device else "host"
        table.add_row(str(one.per_slot), str(one.slots), str(one.tier), place, f"{one.speed:.1f}", one.quality)
    console = Console()
    console.print(table)
    rate = front.tried / seconds if seconds else 0
    shown = min(len(rows), _ROWS)
    console.print(
        f"{front.tried} settings looked at ({rate:,.0f} a second), {front.fitting} fit, {len(front.candidates)} that "
        f"no other beats; {shown} shown"
        + (", the others differ little: --json has all" if shown < len(front.candidates) else ""),
        highlight=False,
        soft_wrap=True,
    )


def _write(case: Case, target: Path, changes: dict[str, object]) -> None:
    """The profile with these keys changed, comments and order kept, in another file."""
    import tomlkit

    from launcher.profile.moved import anchor, lay_sets

    profile = case.profile
    document = tomlkit.parse(profile.file.read_text("utf-8"))
    if target.absolute().parent != profile.file.parent:
        anchor(document, profile.file.parent)
    lay_sets(document, profile.sets, Path(profile.sets_directory or "."))
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        node = document.setdefault(table, tomlkit.table())
        node[name] = value
    if "context.per_slot" in changes and "total" in document["context"]:
        del document["context"]["total"]  # of the two the one that was found stays
    _save(target, tomlkit.dumps(document))


def _save(target: Path, text: str) -> None:
    from launcher.errors import UsageError

    try:
        target.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", help="give another file") from error


def _name_of(model: Path) -> str:
    """A name for the instance out of the file's name, as the schema wants it."""
    import re

    stem = model.name.split("-00001-of-")[0].removesuffix(".gguf").removesuffix(".llamafile").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("-._")[:48] or "model"


def _profile_text(model: Path, slots: int, per_slot: int, tier: str) -> str:
    from launcher.units import format_tokens

    size = format_tokens(per_slot)
    shown = f'"{size}"' if not size.isdigit() else size
    share = "unified = false         # a share for each; true: one pool for all\n" if slots > 1 else ""
    return (
        "schema = 1\n\n[model]\n"
        f"path = {json.dumps(str(model))}\n\n[context]\n"
        f"per_slot = {shown:<12} # what one conversation can hold: the most that fits, at most the training length\n"
        f"slots = {slots:<15} # conversations at the same time\n{share}\n[kv]\n"
        f'tier = "{tier}"           # "q8_0" takes about half, with no loss that shows\n'
    )
