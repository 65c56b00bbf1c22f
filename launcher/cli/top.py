"""`top`: one instance, live: state, slots, speeds, memory planned and actual, restarts. ^C or q leaves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.common import JsonOption, NameArg

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_BAR = 24


def top(
    name: NameArg,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch one instance: state, slots, tokens per second, memory planned and actual."""
    import json

    from rich.console import Console
    from rich.live import Live

    from launcher.cli.instances import running
    from launcher.errors import NotRunning

    instance = running(name)
    if as_json or once:
        found = instance.status()
        if as_json:
            print(json.dumps({"schema": 1, **found}))
        else:
            Console().print(_screen(found, None, interval))
        return
    before: Mapping[str, Any] | None = None
    with Live(refresh_per_second=4, screen=True) as live:
        while True:
            try:
                found = instance.status()
            except NotRunning:
                break
            live.update(_screen(found, before, interval))
            before = found
            time.sleep(interval)
    print(f"{instance.name} has ended")


def _screen(now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> Group:
    from rich.console import Group
    from rich.text import Text

    style = {"ready": "bold green", "degraded": "bold yellow", "backoff": "yellow", "failed": "bold red"}
    head = Text.assemble(
        (str(now["name"]), "bold"),
        "  ",
        (str(now["state"]), style.get(now["state"], "dim")),
        f"  {now.get('url') or ''}  pid {now.get('engine_pid') or '-'}  restarts {now['restarts']}",
    )
    if now.get("reason"):
        head.append(f"\n{now['reason']}", "yellow")
    speeds = _speeds(now, before, seconds)
    parts: list[Text | Table] = [head, Text(speeds, "cyan")] if speeds else [head]
    parts += [_slots(now), _memory(now)]
    if last := now.get("last_exit"):
        parts.append(Text(f"last exit: {last['class']} at {last['at']}  {last.get('line') or ''}", "dim"))
    return Group(*parts)


def _speeds(now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> str:
    """Tokens per second read and written since the last look, from the engine's own counters."""
    counters, older = now.get("counters"), (before or {}).get("counters")
    if not counters or not older:
        return ""
    read = (counters["prompt_tokens"] - older["prompt_tokens"]) / seconds
    written = (counters["predicted_tokens"] - older["predicted_tokens"]) / seconds
    return f"reading {read:8.1f} tokens/s   writing {written:8.1f} tokens/s"


def _slots(now: Mapping[str, Any]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading in ("slot", "context", "", "session"):
        table.add_column(heading)
    for slot in now.get("slots") or []:
        used, size = slot.get("used") or 0, slot["size"]
        full = round(used / size * _BAR) if size else 0
        bar = "█" * full + "░" * (_BAR - full)
        busy = "busy" if slot.get("busy") else "idle"
        table.add_row(str(slot["id"]), f"{bar} {used:>7} of {size}", busy, str(slot.get("session") or ""))
    return table


def _memory(now: Mapping[str, Any]) -> Table:
    from rich.table import Table

    from launcher.units import format_bytes

    table = Table(box=None, header_style="dim", pad_edge=False)
    for heading, justify in (("memory", "left"), ("device", "left"), ("planned", "right"), ("actual", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for line in now.get("memory") or []:
        sizes = [format_bytes(line[key]) if line.get(key) is not None else "?" for key in ("planned", "actual")]
        table.add_row(str(line["item"]), str(line["device"]), *sizes)
    return table
