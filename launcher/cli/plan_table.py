"""The plan as a person wants it: context per slot, a bar for each device with its parts, the verdict, the next step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.cli.render import colour
from launcher.supervise.view import columns
from launcher.units import format_bytes, format_tokens

if TYPE_CHECKING:
    from launcher.flow import Case
    from launcher.plan.ledger import LedgerLine
    from launcher.plan.plan import Plan
    from launcher.plan.verdict import DeviceVerdict

_BAR = 56  # columns, where the terminal has so many
_FILL = {
    "weights": ("█", "blue"),
    "kv": ("▓", "green"),
    "recurrent": ("▓", "green"),
    "compute": ("▒", "yellow"),
    "prompt-cache": ("░", "dim"),
    "checkpoints": ("░", "dim"),
}
_VERDICTS = {"fits": "green", "tight": "yellow", "no": "red"}


def show_plan(case: Case, *, verbose: bool) -> None:
    """Print it. With `verbose` every ledger line has its formula, its numbers and their source."""
    plan = case.plan
    assert plan is not None and case.shape is not None
    shape = case.shape
    print(f"{colour(case.profile.name, 'bold')}  {shape.name or shape.arch}, {format_bytes(shape.size)}, {shape.arch}")
    print(f"  {_context(case, plan)}")
    print(f"  {_cache(case, plan)}")
    active = [name for name, on in plan.techniques.active.items() if on]
    print(f"  techniques: {', '.join(active) or 'none'}; options known from {case.capability.source}")
    for note in case.machine.notes:
        print(f"  {colour(note, 'yellow')}")
    for verdict in plan.devices:
        print()
        _device(plan, verdict, verbose)
    _next_larger(plan)
    if verbose:
        print("\n  " + " ".join(case.argv))
    if case.diagnostics:
        from launcher.cli.render import wants_colour
        from launcher.rules.render import render_diagnostics

        print("\n" + render_diagnostics(case.diagnostics, colour=wants_colour(sys.stdout)))


def _context(case: Case, plan: Plan) -> str:
    split = plan.split
    many = f"{split.slots} slots × " if split.slots > 1 else ""
    how = "in one pool" if split.unified else "each its own share" if split.slots > 1 else "one slot"
    text = f"{many}{format_tokens(split.per_slot)} tokens, {how}; {split.total} cells allocated"
    if split.train and split.per_slot == split.train:
        text += ", all that the model was trained for"
    elif case.profile.context.per_slot is None and case.profile.context.total is None:
        text += ", the most that fits"
    if split.wasted:
        text += f", {split.wasted} of them out of reach"
    return text


def _cache(case: Case, plan: Plan) -> str:
    """The caches by kind, whichever devices hold their layers."""
    layers: dict[tuple[str, int], int] = {}
    for part in plan.kv:
        key = (part.kind if part.cache == "main" else part.cache, part.cells)
        layers[key] = layers.get(key, 0) + part.layers
    parts = [f"{kind} {_many(count, 'layer')} × {cells} cells" for (kind, cells), count in layers.items()]
    return f"cache {format_bytes(plan.kv_bytes)} as {case.profile.kv.tier}: {' + '.join(parts)}"


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _device(plan: Plan, verdict: DeviceVerdict, verbose: bool) -> None:
    lines = [line for line in plan.ledger if line.device == verdict.device]
    need = format_bytes(verdict.need)
    if verdict.free is None and not verdict.short:
        print(f"  {colour(verdict.device, 'bold')}  {need}; not judged: {verdict.unknown} of this machine is not known")
    elif verdict.free is None:
        word = colour(_word(verdict), _VERDICTS[verdict.fit], "bold")
        print(f"  {colour(verdict.device, 'bold')}  {need} of {format_bytes(verdict.total or 0)} in all  {word}")
    else:
        word = colour(_word(verdict), _VERDICTS[verdict.fit], "bold")
        print(f"  {colour(verdict.device, 'bold')}  {need} of {format_bytes(verdict.free)} free  {word}")
        print(f"  {_bar(lines, verdict.free, verdict.need, min(_BAR, max(columns(sys.stdout) - 5, 8)))}")
    for line in lines:
        mark, paint = _FILL.get(line.item, ("▪", "dim"))
        notes = [
            word for word, on in (("mapped, can be dropped", line.reclaimable), ("grows with use", line.grows)) if on
        ]
        tail = f"  {colour(', '.join(notes), 'dim')}" if notes else ""
        print(f"    {colour(mark, paint)} {line.item:<13}{format_bytes(line.bytes):>11}{tail}")
        if verbose:
            print(f"        {line.formula}  [{line.source}]")
    if verdict.advice:
        print(f"    {colour('→', _VERDICTS[verdict.fit])} {verdict.advice}")


def _word(verdict: DeviceVerdict) -> str:
    if verdict.unknown and not verdict.short:
        return "not judged"
    return {"no": "does not fit"}.get(str(verdict.fit), str(verdict.fit))


def _bar(lines: list[LedgerLine], free: int, need: int, width: int = _BAR) -> str:
    """The whole width is what is free; where more is needed it is that, and ┃ stands where what is free ends."""
    whole = max(free, need, 1)
    shown: list[str] = []
    used = 0
    for line in lines:
        mark, paint = _FILL.get(line.item, ("▪", "dim"))
        used += line.bytes
        shown += [colour(mark, paint)] * (round(used / whole * width) - len(shown))
    shown += ["·"] * (width - len(shown))
    if need > free:
        shown[min(round(free / whole * width), width - 1)] = colour("┃", "red", "bold")
    return f"▕{''.join(shown)}▏"


def _next_larger(plan: Plan) -> None:
    """What twice the context would take, or that the model has no use for more."""
    from launcher.plan.plan import with_context

    split = plan.split
    if split.train and split.per_slot * 2 > split.train:
        if split.per_slot < split.train:
            print(f"\n  it was trained for {split.train} tokens: {split.train - split.per_slot} more could be used")
        return
    larger = split.per_slot * 2
    _, _, verdicts = with_context(plan, larger)
    words = ", ".join(f"{v.device} {format_bytes(v.need)} {_word(v)}" for v in verdicts)
    print(f"\n  with {format_tokens(larger)} tokens a slot: {words}")
