"""`status`: what a person sees of an instance.

Without typer: it is asked while something is wrong, and by scripts again and again, and typer's import takes longer
than all the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from launcher.cli.instances import last_status, running, statuses
from launcher.cli.render import colour
from launcher.errors import NotRunning
from launcher.paths import places
from launcher.units import format_bytes, format_duration

_LOG_GRAIN = 10486  # the engine's log gives buffers in MiB with two decimals
_STATE_COLOURS = {
    "ready": "green",
    "degraded": "yellow",
    "backoff": "yellow",
    "failed": "red",
    "gone": "red",
    "no answer": "red",
}


def show(name: str | None, as_json: bool) -> int:
    """One instance, or all of them; of one that has ended its last word, and NotRunning."""
    if name is None:
        found = list(statuses())
        if as_json:
            print(json.dumps({"schema": 1, "instances": found}))
        elif not found:
            print("nothing runs")
        else:
            print("\n\n".join(_text(one) for one in found))
        return 0
    try:
        one = running(name).status()
    except NotRunning as error:
        last = last_status(name, places())
        if last is None or as_json:
            raise
        print(_text(_ended(last)))
        raise NotRunning(error.message, help=error.help) from None
    print(json.dumps({"schema": 1, **one}) if as_json else _text(one))
    return 0


def _ended(last: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an instance that is gone wrote last. Only a supervisor that could say so wrote that it ended."""
    if last.get("state") in ("stopped", "failed"):
        return last
    reason = f"its supervisor was killed; its last word was: {last.get('state')}"
    return {**last, "state": "gone", "reason": reason, "engine_pid": None, "slots": [], "memory": []}


def _text(one: Mapping[str, Any]) -> str:
    state = colour(str(one["state"]), _STATE_COLOURS.get(one["state"], "dim"), "bold")
    reason = f"  {one['reason']}" if one.get("reason") else ""
    out = [f"{one['name']}  {state}  {one.get('url') or ''}{reason}".rstrip()]
    if one.get("engine_pid") or one.get("restarts") is not None:
        restarts = f"{one['restarts']} restart{'s' if one['restarts'] != 1 else ''}"
        pid = f", pid {one['engine_pid']}" if one.get("engine_pid") else ""
        lead = "up" if one["state"] in ("ready", "degraded") else one["state"]
        out.append(f"  {lead} {since(one)}, {restarts}, engine {one.get('engine') or 'given binary'}{pid}")
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
    out += [_memory(line) for line in one.get("memory") or []]
    out += _techniques(one.get("requested") or {}, one.get("active") or {})
    if last := one.get("last_exit"):
        how = f"signal {last['signal']}" if last.get("signal") else f"code {last.get('code')}"
        out.append(
            f"  last exit: {last['class']} ({how}) at {last['at']}"
            + (f"\n    {last['line']}" if last.get("line") else "")
        )
    return "\n".join(out)


def _techniques(requested: Mapping[str, bool], active: Mapping[str, bool | None]) -> list[str]:
    """What was asked for, by what the engine shows of it: some techniques show nothing at all."""
    asked = [name for name, wanted in requested.items() if wanted]
    on = [name for name in asked if active.get(name) is not False]
    off = [name for name in asked if active.get(name) is False]
    lines = [f"  techniques {', '.join(on)}"] if on else []
    return lines + ([f"  asked for, but not active: {', '.join(off)}"] if off else [])


def _memory(line: Mapping[str, Any]) -> str:
    """One line of the ledger: planned and actual. `?`: not planned, or the engine's log doesn't say."""
    planned, actual = line.get("planned"), line.get("actual")
    drift = ""
    if actual and planned and abs(actual - planned) > max(planned // 100, _LOG_GRAIN):
        drift = f"  drift {actual / planned - 1:+.1%}"
    shown = [format_bytes(size) if size is not None else "?" for size in (planned, actual)]
    return f"    {line['item']:<12} {line['device']:<8} planned {shown[0]:>10}  actual {shown[1]:>10}{drift}"


def since(one: Mapping[str, Any]) -> str:
    """How long it has been in its state."""
    try:
        began = datetime.fromisoformat(str(one["since"]))
    except (KeyError, ValueError):
        return "?"
    return format_duration((datetime.now(UTC) - began).total_seconds())
