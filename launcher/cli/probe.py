"""`kvlaunch probe`: the machine as a table or as JSON; with --bandwidth, measured copies and what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import JsonOption

if TYPE_CHECKING:
    from rich.table import Table

    from launcher.machine.bandwidth import Bandwidth
    from launcher.machine.measuring import Measured
    from launcher.machine.types import Cpu, Device, Machine, Memory, PcieLink

WakeOption = Annotated[bool, typer.Option("--wake", help="Wake GPUs that sleep to save power, and ask them too.")]
BandwidthOption = Annotated[
    bool, typer.Option("--bandwidth", help="Measure copies between host and devices, and keep the figures.")
]
EngineOption = Annotated[
    Path | None,
    typer.Option("--engine", metavar="BINARY", help="Add the devices that this llama-server lists (default: ours)."),
]
RpcOption = Annotated[
    list[str] | None, typer.Option("--rpc", metavar="HOST:PORT", help="Add the devices of an rpc worker. May repeat.")
]


def probe(
    bandwidth: BandwidthOption = False,
    wake: WakeOption = False,
    engine: EngineOption = None,
    rpc: RpcOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show what this machine has: devices, links, memory under its limits, CPU features."""
    from launcher.machine.figures import FOLDER, with_measured
    from launcher.machine.probe import probe as look
    from launcher.paths import places

    machine = look(wake=wake or bandwidth)
    cache = places().cache / FOLDER
    measured: Measured | None = None
    if engine is not None or rpc or bandwidth:
        machine = _with_engine(machine, engine, rpc or [], required=engine is not None or bool(rpc))
    if bandwidth:
        measured = _measure(machine, cache, engine, rpc or [])
        machine = measured.machine
    else:
        machine = with_measured(machine, cache)
    if json_output:
        print(json.dumps(machine.as_json() | _bandwidth_json(measured)))
    else:
        _draw(machine, measured)


def _with_engine(machine: Machine, engine: Path | None, rpc: Sequence[str], *, required: bool) -> Machine:
    """The machine with the engine's own list in it."""
    from launcher.errors import BuildError
    from launcher.machine.engine_devices import merge, parse_devices
    from launcher.machine.engine_process import list_devices

    server = engine or _newest()
    if server is None:
        if required:
            raise BuildError("no engine is built yet that could be asked", help="kvlaunch build, or --engine BINARY")
        return machine
    return merge(machine, parse_devices(list_devices(server, rpc=rpc)))


def _newest(program: str = "llama-server") -> Path | None:
    """The newest engine in the store that has the program (engines of older versions lack the measuring one)."""
    from launcher.engine.store import Store
    from launcher.paths import places

    found = (engine.binaries / program for engine in Store.of(places()).all())
    return next((path for path in found if path.is_file()), None)


def _measure(machine: Machine, cache: Path, engine: Path | None, rpc: Sequence[str]) -> Measured:
    from launcher.machine.engine_copies import PROGRAM
    from launcher.machine.measuring import Program, measure

    program: Program | None = None
    if engine is not None:
        program = Program(engine.parent / PROGRAM, str(engine))
    elif (path := _newest(PROGRAM)) is not None:
        program = Program(path, path.parent.parent.name)
    say = (lambda text: print(f"measuring {text} …", file=sys.stderr)) if sys.stderr.isatty() else (lambda text: None)
    return measure(machine, cache, program=program, rpc=rpc, say=say)


def _bandwidth_json(measured: Measured | None) -> dict[str, object]:
    if measured is None:
        return {}
    results = [
        figures.as_json() | {"verdict": verdict.as_json() if verdict else None} for figures, verdict in measured.results
    ]
    return {"bandwidth": results, "bandwidth_notes": list(measured.notes)}


def _draw(machine: Machine, measured: Measured | None) -> None:
    from rich.console import Console

    # rich would wrap a piped table at 80 columns; a pipe has no width
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    console.print(_host_table(machine))
    if machine.devices:
        console.print()
        console.print(_device_table(machine.devices))
    else:
        console.print("\nNo GPU or other device: the engine computes on the CPU.")
    if measured is not None:
        _draw_bandwidth(console.print, measured)
    notes = (*machine.notes, *(measured.notes if measured else ()))
    for note in notes:
        console.print(f"note: {note}")


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        right = column in ("memory", "free", "1 MiB", "16 MiB", "64 MiB")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    return table


def _host_table(machine: Machine) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    grid.add_row("CPU", _cpu_words(machine.cpu))
    grid.add_row("features", " ".join(machine.cpu.features) or "unknown")
    grid.add_row("memory", _memory_words(machine.memory))
    system = [f"Linux {machine.kernel}" if machine.kernel else "unknown kernel"]
    system += ["WSL"] if machine.wsl else []
    system += [f"in a container ({machine.container})"] if machine.container else []
    grid.add_row("system", ", ".join(system))
    return grid


def _cpu_words(cpu: Cpu) -> str:
    parts = [cpu.model or "unknown model"]
    if cpu.cores is not None:
        parts.append(f"{cpu.cores} core{'s' if cpu.cores != 1 else ''}")
    if cpu.fast_cores is not None:
        parts.append(f"{cpu.fast_cores} of them fast")
    if cpu.threads is not None and cpu.threads != cpu.cores:
        parts.append(f"{cpu.threads} threads")
    if cpu.quota is not None:
        parts.append(f"at most {cpu.quota:g} processors' worth of time")
    if cpu.numa_nodes is not None and cpu.numa_nodes > 1:
        parts.append(f"{cpu.numa_nodes} NUMA nodes")
    return ", ".join(parts)


def _memory_words(memory: Memory) -> str:
    parts = [f"{_size(memory.available)} available of {_size(memory.total)}"]
    if memory.limit is not None:
        parts.append(f"limited to {_size(memory.limit)}" + (f" by {memory.limited_by}" if memory.limited_by else ""))
    if memory.swap_total:
        parts.append(f"{_size(memory.swap_free)} of {_size(memory.swap_total)} swap free")
    if memory.gbps is not None:
        parts.append(f"read at {memory.gbps:.1f} GB/s")
    return ", ".join(parts)


def _device_table(devices: Sequence[Device]) -> Table:
    table = _table("id", "name", "kind", "memory", "free", "link", "ReBAR", "used by")
    for device in devices:
        name = device.name if device.usable is not False else f"{device.name} (this engine can't use it)"
        table.add_row(
            device.id,
            name,
            device.kind or "?",
            _size(device.memory_total),
            "asleep" if device.suspended else _size(device.memory_free),
            _link_words(device.pcie, device.address) or _rate(device.copy_gbps),
            device.rebar or "?",
            _users(device),
        )
    return table


def _link_words(link: PcieLink | None, address: str | None) -> str:
    if link is None:
        return ""
    if link.gen_max is None:
        return link.state or "?"
    text = f"gen {link.gen_max} x{link.width or link.width_max or '?'}"
    if link.state == "narrow":
        text += f" of x{link.width_max}"
    elif link.state == "idle":
        text += f" (idle at gen {link.gen})"
    if link.bottleneck is not None and link.bottleneck != address:
        text += f" at {link.bottleneck}"
    if link.gbps is not None:
        return f"{text}, {link.gbps:.1f} GB/s measured"
    return f"{text}, ≤ {link.gbps_max:.1f} GB/s" if link.gbps_max is not None else text


def _users(device: Device) -> str:
    if not device.processes:
        return "" if device.processes is not None else "?"
    shown = [f"{p.pid} ({_size(p.bytes)})" for p in device.processes[:3]]
    more = len(device.processes) - len(shown)
    return ", ".join(shown) + (f", {more} more" if more else "")


def _draw_bandwidth(show: object, measured: Measured) -> None:
    assert callable(show)
    for figures, verdict in measured.results:
        show("")
        if figures.read_gbps is not None:
            show(f"host RAM, {figures.conditions.method}: read at {figures.read_gbps:.1f} GB/s")
            continue
        show(_copy_table(figures))
        for sentence in verdict.sentences if verdict else ():
            show(f"  {sentence}")


def _copy_table(figures: Bandwidth) -> Table:
    from launcher.units import format_bytes

    sizes = sorted({copy.size for copy in figures.copies})
    table = _table(f"{figures.device}, GB/s", *(f"{format_bytes(size).replace('.0 ', ' ')}" for size in sizes))
    for direction, words in (("h2d", "host to device"), ("d2h", "device to host")):
        for host in ("pinned", "pageable"):
            rates = [figures.rate(direction, host, size) for size in sizes]
            if any(rate is not None for rate in rates):
                table.add_row(f"{words}, {host}", *(f"{rate:.2f}" if rate is not None else "?" for rate in rates))
    if figures.latency_us is not None:
        table.add_row(f"one small read: {figures.latency_us:.0f} µs")
    return table


def _size(count: int | None) -> str:
    from launcher.units import format_bytes

    return "?" if count is None else format_bytes(count)


def _rate(gbps: float | None) -> str:
    return "" if gbps is None else f"{gbps:.1f} GB/s measured"
