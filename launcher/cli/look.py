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

_LEVELS = ("debug", "info", "warn", "error")


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One instance; without it, all of them.")] = None,
    as_json: JsonOption = False,
) -> int:
    """How an instance is: state, slots, memory planned and actual, restarts, the last exit."""
    from launcher.cli.status import show

    return show(name, as_json)


def ps(as_json: JsonOption = False) -> None:
    """List what runs, a line each."""
    from launcher.cli.instances import statuses
    from launcher.cli.status import since

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
        lines.append((one["name"], one["state"], pid, since(one), slots, url))
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
