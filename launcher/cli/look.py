"""`status`, `ps`, `logs`, `events`, `report`: look at instances; nothing here changes one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.common import JsonOption, NameArg

if TYPE_CHECKING:
    from launcher.cli.instances import Instance

_LOG_GRAIN = 10486  # the engine's log gives buffers in MiB with two decimals
_LEVELS = ("debug", "info", "warn", "error")
_STATE_COLOURS = {
    "ready": "green",
    "degraded": "yellow",
    "backoff": "yellow",
    "failed": "red",
    "gone": "red",
    "no answer": "red",
}


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One instance; without it, all of them.")] = None,
    as_json: JsonOption = False,
) -> int:
    """How an instance is: state, slots, memory planned and actual, restarts, the last exit."""
    from launcher.cli.instances import last_status, running, statuses
    from launcher.errors import NotRunning
    from launcher.paths import places

    if name is None:
        found = list(statuses())
        if as_json:
            print(json.dumps({"schema": 1, "instances": found}))
        elif not found:
            print("nothing runs")
        else:
            print("\n\n".join(_status_text(one) for one in found))
        return 0
    try:
        one = running(name).status()
    except NotRunning as error:
        last = last_status(name, places())
        if last is None or as_json:
            raise
        print(_status_text(_ended(last)))
        raise NotRunning(error.message, help=error.help) from None
    print(json.dumps({"schema": 1, **one}) if as_json else _status_text(one))
    return 0


def ps(as_json: JsonOption = False) -> None:
    """List what runs, a line each."""
    from launcher.cli.instances import statuses

    found = list(statuses())
    if as_json:
        print(json.dumps({"schema": 1, "instances": found}))
        return
    if not found:
        print("nothing runs")
        return
    lines = [("NAME", "STATE", "PID", "UP", "SLOTS", "URL")]
    for one in found:
        busy = sum(bool(slot.get("busy")) for slot in one.get("slots") or [])
        slots = f"{busy}/{len(one.get('slots') or [])}"
        pid, url = str(one.get("engine_pid") or "-"), str(one.get("url") or "-")
        lines.append((one["name"], one["state"], pid, _since(one), slots, url))
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def logs(
    name: NameArg,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="So many of the last lines.")] = 200,
    since: Annotated[str | None, typer.Option("--since", help='Only what is younger, such as "10min".')] = None,
    level: Annotated[str, typer.Option("--level", help="debug, info, warn or error, and what is above.")] = "info",
    as_json: JsonOption = False,
) -> None:
    """The engine's and the supervisor's log lines."""
    from launcher.errors import UsageError

    if level not in _LEVELS:
        raise UsageError(f"no level {level!r}", help=f"there are {', '.join(_LEVELS)}")
    oldest = _oldest(since)
    for record in _log_records(name, follow, lines, level):
        if "dropped" in record:  # we read too slowly for what came (control.py)
            print(json.dumps(record) if as_json else f"… {record['dropped']} lines were passed over", flush=follow)
            continue
        if oldest is not None and _time(record) < oldest:
            continue
        print(json.dumps(record) if as_json else _log_text(record), flush=follow)


def events(
    name: NameArg,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Each change of state with its cause, one JSON object a line."""
    from launcher.cli.instances import running

    del as_json  # they are JSON either way
    for event in running(name).client.events(follow=follow):
        print(json.dumps(event), flush=follow)


def report(
    name: NameArg,
    out: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A redacted bundle for a bug report: profile, plan, versions, last exits, the tail of the log."""
    from launcher.supervise.report import write_report

    path = write_report(name, out)
    print(json.dumps({"schema": 1, "report": str(path)}) if as_json else f"wrote {path}: read it before you send it")


def _log_records(name: str, follow: bool, lines: int, level: str) -> Iterable[Mapping[str, Any]]:
    """From the running instance; from its log file where it doesn't run any more."""
    from launcher.cli.instances import running
    from launcher.errors import NotRunning
    from launcher.paths import places

    try:
        instance: Instance = running(name)
    except NotRunning:
        kept = _kept_records(places().logs / name / "log.jsonl", level)
        if not kept:
            raise
        return kept[-lines:] if lines else []
    return instance.client.logs(follow=follow, lines=lines, level=level)


def _kept_records(file: Path, level: str) -> list[dict[str, Any]]:
    """The records of a log file at or above a level. A line that a full disk cut short is passed over."""
    wanted = _LEVELS[_LEVELS.index(level) :]
    records = []
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("level") in wanted:
            records.append(record)
    return records


def _ended(last: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an instance that is gone wrote last. Only a supervisor that could say so wrote that it ended."""
    if last.get("state") in ("stopped", "failed"):
        return last
    reason = f"its supervisor was killed; its last word was: {last.get('state')}"
    return {**last, "state": "gone", "reason": reason, "engine_pid": None, "slots": [], "memory": []}


def _status_text(one: Mapping[str, Any]) -> str:
    from launcher.cli.render import colour

    state = colour(str(one["state"]), _STATE_COLOURS.get(one["state"], "dim"), "bold")
    reason = f"  {one['reason']}" if one.get("reason") else ""
    out = [f"{one['name']}  {state}  {one.get('url') or ''}{reason}".rstrip()]
    if one.get("engine_pid") or one.get("restarts") is not None:
        restarts = f"{one['restarts']} restart{'s' if one['restarts'] != 1 else ''}"
        pid = f", pid {one['engine_pid']}" if one.get("engine_pid") else ""
        lead = "up" if one["state"] in ("ready", "degraded") else one["state"]
        out.append(f"  {lead} {_since(one)}, {restarts}, engine {one.get('engine') or 'given binary'}{pid}")
    if one.get("next_try"):
        out.append(f"  next try {one['next_try']}")
    context = one.get("context") or {}
    if context:
        pool = "in one pool" if context.get("unified") else "a share each"
        slots = f"{context.get('slots')} slots, {pool}" if context.get("slots") != 1 else "one slot"
        out.append(f"  context {context.get('total')} tokens, {slots}")
    for slot in one.get("slots") or []:
        session = f"  {slot['session']}" if slot.get("session") else ""
        used = "?" if slot.get("used") is None else slot["used"]
        out.append(
            f"    slot {slot['id']}  {used:>7} of {slot['size']}  {'busy' if slot.get('busy') else 'idle'}{session}"
        )
    out += [_memory_text(line) for line in one.get("memory") or []]
    out += _technique_texts(one.get("requested") or {}, one.get("active") or {})
    if last := one.get("last_exit"):
        how = f"signal {last['signal']}" if last.get("signal") else f"code {last.get('code')}"
        out.append(
            f"  last exit: {last['class']} ({how}) at {last['at']}"
            + (f"\n    {last['line']}" if last.get("line") else "")
        )
    return "\n".join(out)


def _technique_texts(requested: Mapping[str, bool], active: Mapping[str, bool | None]) -> list[str]:
    """What was asked for, by what the engine shows of it: some techniques show nothing at all."""
    asked = [name for name, wanted in requested.items() if wanted]
    on = [name for name in asked if active.get(name) is not False]
    off = [name for name in asked if active.get(name) is False]
    lines = [f"  techniques {', '.join(on)}"] if on else []
    return lines + ([f"  asked for, but not active: {', '.join(off)}"] if off else [])


def _memory_text(line: Mapping[str, Any]) -> str:
    """One line of the ledger: planned and actual. `?`: not planned, or the engine's log doesn't say."""
    from launcher.units import format_bytes

    planned, actual = line.get("planned"), line.get("actual")
    drift = ""
    if actual and planned and abs(actual - planned) > max(planned // 100, _LOG_GRAIN):
        drift = f"  drift {actual / planned - 1:+.1%}"
    shown = [format_bytes(size) if size is not None else "?" for size in (planned, actual)]
    return f"    {line['item']:<12} {line['device']:<8} planned {shown[0]:>10}  actual {shown[1]:>10}{drift}"


def _since(one: Mapping[str, Any]) -> str:
    from launcher.units import format_duration

    try:
        began = datetime.fromisoformat(str(one["since"]))
    except (KeyError, ValueError):
        return "?"
    return format_duration((datetime.now(UTC) - began).total_seconds())


def _oldest(since: str | None) -> datetime | None:
    from datetime import timedelta

    from launcher.errors import UsageError
    from launcher.units import parse_duration

    if since is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(since))
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error


def _time(record: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(record["at"]))


def _log_text(record: Mapping[str, Any]) -> str:
    from launcher.cli.render import colour

    names = {"error": ("red",), "warn": ("yellow",)}.get(str(record["level"]), ("dim",))
    at = _time(record).astimezone().strftime("%H:%M:%S")
    return f"{at} {colour(str(record['level'])[:5].ljust(5), *names)} {record['text']}"
