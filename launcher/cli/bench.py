"""`bench`: run the proof of one technique, bounded; show its figures and checks; record them when asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import JsonOption

if TYPE_CHECKING:
    from launcher.bench.record import Record

BENCHES: dict[str, str] = {
    "startup": "spawn to first token under kvlaunch against the bare engine; what the commands cost",
    "build": "cold build against plain cmake and ninja; rebuild after an edit",
    "off-path": "the patched engine with every option off against the unpatched one",
    "affinity": "sessions that return: tokens prefilled, with and without (0006)",
    "eviction": "context shift: what is kept, and at which cost (0010)",
    "cpu-attention": "attention on the CPU against upstream's (0040)",
    "plan": "planned against allocated bytes over a grid of starts",
    "rules": "check against the engine's own verdict over mutated profiles",
    "chaos": "faults by seed, and what must hold after each",
    "reload": "reloads under clients",
}


def bench(
    technique: Annotated[str, typer.Argument(help="One of: " + ", ".join(BENCHES))],
    quick: Annotated[bool, typer.Option("--quick", help="Within two minutes: fewer cases, same checks.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")] = 1,
    record: Annotated[bool, typer.Option("--record", help="Write the figures under results/.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Run the proof of one technique. Exit code 20 when a hard check fails."""
    from launcher.errors import UsageError

    if technique not in BENCHES:
        from difflib import get_close_matches

        near = get_close_matches(technique, BENCHES, 1)
        raise UsageError(
            f"no bench {technique!r}", help=f"did you mean {near[0]}?" if near else "there are " + ", ".join(BENCHES)
        )
    result = _run(technique, quick, seed)
    if record:
        path = result.write(Path("results"))
        typer.echo(f"recorded in {path}", err=True)
        if technique == "cpu-attention":
            from launcher.bench.cpu_attention_plot import draw

            typer.echo(f"drawn in {draw(path)}", err=True)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        _show(result)
    return 20 if result.failed else 0


def _run(technique: str, quick: bool, seed: int) -> Record:
    from importlib import import_module

    from launcher.bench.record import Record
    from launcher.bench.setup import bench_engine, bench_models
    from launcher.cli.stages import Stages
    from launcher.machine.probe import probe

    stages = Stages()
    try:
        engine = bench_engine(stages)
        models = bench_models(stages)
    finally:
        stages.close()
    result = Record(technique, engine.key, probe().as_json())
    module = import_module(f"launcher.bench.{technique.replace('-', '_')}")
    result.take(module.run(engine.server, models, quick, seed))
    return result


def _show(result: Record) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (("case", "left"), ("metric", "left"), ("value", "right"), ("unit", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for figure in result.rows:
        value = figure["value"]
        shown = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(str(figure["case"]), str(figure["metric"]), shown, str(figure["unit"]))
    console.print(table)
    for check in result.checks:
        mark = "[green]ok  [/]" if check["ok"] else "[red]FAIL[/]" if check["hard"] else "[yellow]soft[/]"
        value = check["value"]
        shown = f"{value:.4g}" if isinstance(value, float) else value
        console.print(f"{mark} {check['name']}: {shown} (target {check['target']})", highlight=False)
    for skipped in result.skipped:
        console.print(f"[dim]skipped[/] {skipped}", highlight=False)
