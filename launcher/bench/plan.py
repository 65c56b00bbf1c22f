"""Planned against allocated: a grid of starts of the real engine, every buffer that it names against the plan's line.

The models are the two real ones and, where `KVLAUNCH_BENCH_ZOO` names a folder, the tiny ones of all architectures that
the engine's own `test-llama-archs -o FOLDER` writes. Nothing is served: a start ends when its memory is reserved.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from launcher.bench.instance import free_port
from launcher.bench.record import check, row
from launcher.bench.starts import Start, start
from launcher.errors import KvlaunchError
from launcher.machine.probe import probe
from launcher.model.shape import ModelShape, read_shape
from launcher.plan.context import ContextSplit, allocate
from launcher.plan.dryrun import DryRun, parse_dry_run
from launcher.plan.kv import HOST, KvSettings
from launcher.plan.ledger import Demand, LedgerLine, ledger
from launcher.plan.placement import Loading, Placement, place
from launcher.profile.tier import Tier, parse_tier
from launcher.units import MIB

_ROUNDING = 0.005  # MiB: the log has two digits
_NO_FLASH = frozenset({"grok"})  # src/models/grok.cpp: its attention is computed without flash attention
_SECONDS, _QUICK_SECONDS = 1200, 90
_ITEMS = ("kv", "recurrent", "weights", "output", "compute")


@dataclass(frozen=True, slots=True)
class Case:
    """One start. `devices`: rpc workers that take all layers, or as many as `layers`."""

    model: Path
    context: int
    slots: int
    unified: bool
    tier: Tier
    ubatch: int = 512
    swa_full: bool = False
    devices: int = 0
    layers: int | None = None

    @property
    def name(self) -> str:
        """As the table shows it."""
        words = [self.model.stem, f"c{self.context}", f"np{self.slots}", "kvu" if self.unified else "split"]
        words += [str(self.tier), f"ub{self.ubatch}"]
        words += ["swa-full"] if self.swa_full else []
        words += (
            [f"{self.devices}×rpc" + (f"/{self.layers}" if self.layers is not None else "")] if self.devices else []
        )
        return " ".join(words)

    def argv(self, endpoints: Sequence[str] = ()) -> list[str]:
        """The engine's arguments."""
        words = ["--rpc", ",".join(endpoints)] if self.devices else []
        words += ["-m", str(self.model), "-c", str(self.context), "-np", str(self.slots)]
        words += ["-kvu" if self.unified else "-no-kvu", "-ub", str(self.ubatch)]
        words += ["-ctk", self.tier.k, "-ctv", self.tier.v]
        words += ["--swa-full"] if self.swa_full else []
        words += ["-ngl", str(99 if self.layers is None else self.layers)] if self.devices else []
        return words


@dataclass(slots=True)
class Error:
    """Errors of one item: in MiB beyond the log's rounding, and as a share of what was allocated."""

    mib: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    worst: str = ""

    def add(self, case: str, planned: float, seen: float, lines: int = 1) -> None:
        """One comparison, in MiB. The two digits of `lines` log lines are not our error."""
        off = max(abs(planned - seen) - _ROUNDING * lines, 0.0)
        relative = off / seen if seen > 0 else 0.0
        if not self.share or relative > max(self.share):
            self.worst = case
        self.mib.append(off)
        self.share.append(relative)

    def within(self, limit: float) -> float:
        """Which part of the starts is within this share."""
        return sum(share <= limit for share in self.share) / len(self.share) if self.share else 1.0


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """The rows and checks of `kvlaunch bench plan`."""
    zoo = _zoo()
    cases = grid(list(models.values()), zoo, quick=quick, seed=seed)
    loading = Loading(cpu_features=frozenset(probe().cpu.features))
    workers = server.with_name("ggml-rpc-server")
    fit = server.with_name("llama-fit-params")
    tally = Tally(set(models.values()))
    skipped = [] if zoo else ["architectures of the zoo: KVLAUNCH_BENCH_ZOO names no folder"]
    if not workers.exists():
        skipped.append("starts on rpc workers: this engine has no ggml-rpc-server")
        cases = [case for case in cases if not case.devices]
    if not fit.exists():
        skipped.append("dry runs: this engine has no llama-fit-params")
    deadline = time.monotonic() + (_QUICK_SECONDS if quick else _SECONDS)
    with _rpc(workers, 2 if any(case.devices for case in cases) else 0) as endpoints:
        for number, case in enumerate(cases):
            if time.monotonic() > deadline:
                skipped.append(f"{len(cases) - number} starts of {len(cases)}: out of time")
                break
            _one(server, fit if fit.exists() else None, case, endpoints[: case.devices], loading, tally)
    return {"rows": tally.rows(), "checks": tally.checks(), "skipped": skipped + tally.refused}


def _one(server: Path, fit: Path | None, case: Case, endpoints: Sequence[str], loading: Loading, tally: Tally) -> None:
    try:
        shape = read_shape(case.model)
    except KvlaunchError as fault:
        tally.refused.append(f"{case.name}: {fault.message}")
        return
    began = start(server, case.argv(endpoints), workers=endpoints)
    if not began.ready:
        tally.refused.append(f"{case.name}: the engine refused it (exit {began.exit_code})")
        return
    demand = demand_of(case, shape, loading)
    tally.take(case, demand, ledger(demand), began)
    if fit is not None and not case.unified:
        said = dry_run(fit, case, endpoints)
        if said is not None:
            tally.take_dry_run(case, demand, said, began)


def demand_of(case: Case, shape: ModelShape, loading: Loading) -> Demand:
    """What the plan makes of a case."""
    names = [f"RPC{number}" for number in range(case.devices)]
    context: ContextSplit = allocate(case.context, case.slots, case.unified)
    settings = KvSettings(tier=case.tier, swa_full=case.swa_full, ubatch=case.ubatch, flash=shape.arch not in _NO_FLASH)
    placement: Placement = place(shape, devices=names, gpu_layers=case.layers, weights=[1.0] * len(names))
    return Demand(shape, context, settings, placement, loading, prompt_cache=0, checkpoints=0)


def dry_run(program: Path, case: Case, endpoints: Sequence[str] = ()) -> DryRun | None:
    """What `llama-fit-params` says of a case; it knows nothing of unified caches."""
    words = [word for word in case.argv(endpoints) if word not in ("-kvu", "-no-kvu")]
    command = [str(program), *words, "--fit-print", "on"]
    environ = {"PATH": os.environ.get("PATH", "")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
    return parse_dry_run(done.stdout) if done.returncode == 0 else None


@dataclass(slots=True)
class Tally:
    """Errors by item, of the real models and of the zoo apart: real ones are what the targets are for."""

    real: set[Path]
    starts: int = 0
    refused: list[str] = field(default_factory=list)
    errors: dict[tuple[str, str], Error] = field(default_factory=dict)

    def take(self, case: Case, demand: Demand, lines: Sequence[LedgerLine], began: Start) -> None:
        """Compare one start."""
        self.starts += 1
        group = self._group(case)
        for item in _ITEMS:
            for device in dict.fromkeys((*demand.placement.devices, HOST)):
                planned = sum(line.bytes for line in lines if (line.item, line.device) == (item, device)) / MIB
                seen = [a.mib for a in began.allocations if (a.item, a.device) == (item, device)]
                if planned or seen:
                    self._error(group, item).add(case.name, planned, sum(seen), len(seen))
        self._totals(group, "total per device", case, demand, lines, began)

    def take_dry_run(self, case: Case, demand: Demand, said: DryRun, began: Start) -> None:
        """Compare what a person gets: the ledger that knows the dry run. Its figures are whole MiB, so where they say
        what the formula says the ledger keeps the formula's; buffers of any size are held to that."""
        group, lines = self._group(case), ledger(replace(demand, dry_run=said))
        for device in dict.fromkeys((*demand.placement.devices, HOST)):
            planned = sum(line.bytes for line in lines if (line.item, line.device) == ("compute", device)) / MIB
            seen = began.total("compute", device)
            if planned or seen:
                self._error(group, "compute with dry run").add(case.name, planned, seen)
        self._totals(group, "total per device with dry run", case, demand, lines, began)

    def _totals(
        self, group: str, name: str, case: Case, demand: Demand, lines: Sequence[LedgerLine], began: Start
    ) -> None:
        """The sum of all buffers of each device."""
        for device in dict.fromkeys((*demand.placement.devices, HOST)):
            planned = sum(line.bytes for line in lines if line.device == device and line.item in _ITEMS) / MIB
            seen = [a.mib for a in began.allocations if a.device == device]
            self._error(group, name).add(case.name, planned, sum(seen), len(seen))

    def _group(self, case: Case) -> str:
        return "real" if case.model in self.real else "zoo"

    def _error(self, group: str, item: str) -> Error:
        return self.errors.setdefault((group, item), Error())

    def rows(self) -> list[dict[str, Any]]:
        """Largest and mean error of each item."""
        found = [
            row("all", "starts", self.starts, "starts"),
            row("all", "refused by the engine", len(self.refused), "starts"),
        ]
        for (group, item), error in sorted(self.errors.items()):
            name = f"{group}: {item}"
            found += [
                row(name, "comparisons", len(error.mib), "count"),
                row(name, "largest error", round(max(error.mib), 3), "MiB"),
                row(name, "mean error", round(sum(error.mib) / len(error.mib), 4), "MiB"),
                row(name, "largest error", round(100 * max(error.share), 3), "%"),
                row(name, "mean error", round(100 * sum(error.share) / len(error.share), 4), "%"),
                row(name, "within 5 %", round(100 * error.within(0.05), 1), "% of starts"),
                row(name, "within 20 %", round(100 * error.within(0.20), 1), "% of starts"),
                row(name, "worst start", error.worst, "case"),
            ]
        return found

    def checks(self) -> list[dict[str, Any]]:
        """The issue's targets, for real models and for every architecture of the zoo alike."""
        found = []
        for group in ("real", "zoo"):
            for item in ("kv", "recurrent"):
                if (error := self.errors.get((group, item))) is not None:
                    worst = max(error.mib)
                    found.append(check(f"{item}, {group}", worst <= 0.01, round(worst, 4), "≤ 0.01 MiB"))
            for item, limit in (
                ("weights", 0.001),
                ("compute", 0.20),
                ("compute with dry run", 0.05),
                ("total per device", 0.02),
                ("total per device with dry run", 0.02),
            ):
                if (error := self.errors.get((group, item))) is not None:
                    worst = max(error.share)
                    target = f"≤ {100 * limit:g} %"
                    found.append(check(f"{item}, {group}", worst <= limit, f"{100 * worst:.2f} %", target))
        found.append(check("starts", self.starts > 0, self.starts, "> 0"))
        return found


def grid(models: Sequence[Path], zoo: Sequence[Path], *, quick: bool, seed: int) -> list[Case]:
    """The starts: mixes of slots, pool, tier, ubatch and window on the real models, a few draws on the tiny ones."""
    dice = random.Random(seed)
    pairs = ("f16:f16", "q8_0:q8_0", "q8_0:q4_0", "q4_0:q4_0", "f16:q8_0")
    tiers = [parse_tier(pair) for pair in pairs]
    real = [
        Case(model, context, slots, unified, tier, ubatch, swa_full)
        for model in models
        for context, slots, unified, tier, ubatch, swa_full in product(
            (512, 3000, 8192), (1, 2, 3, 8), (False, True), tiers, (64, 512, 1024), (False, True)
        )
        if not (unified and slots == 1)
    ]
    remote = [
        Case(model, 4096, slots, False, tier, 512, devices=devices, layers=layers)
        for model in models
        for devices, layers in ((1, None), (1, 10), (2, None))
        for slots, tier in ((1, tiers[0]), (4, tiers[1]))
    ]
    small = [
        Case(model, context, slots, unified, tier, ubatch, swa_full)
        for model in zoo
        for context, slots, unified, tier, ubatch, swa_full in dice.sample(
            [
                (1024, 1, False, tiers[0], 512, False),
                (2048, 4, True, tiers[0], 128, False),
                (2048, 3, False, tiers[1], 256, False),
                (1024, 2, False, tiers[0], 64, True),
                (4096, 8, True, tiers[0], 512, False),
                (777, 5, False, tiers[0], 32, False),
            ],
            1 if quick else 2,
        )
    ]
    dice.shuffle(real)
    dice.shuffle(remote)
    dice.shuffle(small)
    chosen = [*real[: 24 if quick else 120], *remote[: 4 if quick else 12], *(small[:40] if quick else small)]
    dice.shuffle(chosen)  # a run that is out of time has looked at a bit of everything
    return chosen


def _zoo() -> list[Path]:
    folder = os.environ.get("KVLAUNCH_BENCH_ZOO", "")
    return sorted(Path(folder).glob("*.gguf")) if folder else []


@contextmanager
def _rpc(program: Path, count: int) -> Iterator[list[str]]:
    """So many workers on free ports of the loopback; ended by their own ids."""
    running: list[subprocess.Popen[bytes]] = []
    endpoints: list[str] = []
    try:
        for _ in range(count):
            port = free_port()
            command = [str(program), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            endpoints.append(f"127.0.0.1:{port}")
            _wait_for(port)
        yield endpoints
    finally:
        for worker in running:
            worker.send_signal(signal.SIGKILL)
            worker.wait()


def _wait_for(port: int) -> None:
    for _ in range(100):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
