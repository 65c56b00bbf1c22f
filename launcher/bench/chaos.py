"""`bench chaos`: faults by seed against one instance, and what must hold after each of them.

After each fault: no orphan, ready again, no loop, no descriptor and no memory gained. Then crashes under clients that
connect anew all the time: none is refused.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any

from launcher.bench import peers
from launcher.bench.clients import Clients
from launcher.bench.faults import FAULTS, TRUTH, Arena, Broken
from launcher.bench.instance import Instance, bare_start, bench_spec, wait_for
from launcher.bench.record import check, row
from launcher.bench.systemd import Unavailable
from launcher.errors import KvlaunchError
from launcher.machine.cgroups import levels
from launcher.machine.tree import Tree
from launcher.supervise import proc

_FULL, _QUICK = 300, 30
_BUDGET, _QUICK_BUDGET = 25 * 60.0, 75.0
_CRASHES, _QUICK_CRASHES = 50, 8
_REPAIRS, _QUICK_REPAIRS = 10, 3
_SLACK = 0.3
_GROWN_BYTES = 3 << 20
_GROWN_FILES = 3
_SPAWNS_A_FAULT = 3
_BARE_EVERY = 20


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="kvchaos-"))
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    skipped: list[str] = []
    try:
        _faults(server, models["smollm2"], home, quick, seed, rows, checks, skipped)
        _crashes_under_clients(server, models["smollm2"], home, quick, rows, checks, skipped)
        _peers(server, models["smollm2"], home, quick, rows, skipped)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {"rows": rows, "checks": checks, "skipped": skipped}


def _faults(
    server: Path,
    model: Path,
    home: Path,
    quick: bool,
    seed: int,
    rows: list[dict[str, Any]],
    checks: list[dict[str, Any]],
    skipped: list[str],
) -> None:
    cgroup = _cgroup(home)
    arena = _arena(server, model, home, seed, cgroup)
    bare_starts = [bare_start(arena.spec)]
    absent = {}
    if not arena.spec.listen_fd:
        absent["port theft"] = "this engine has no --listen-fd (patch 0016)"
    if cgroup is None:
        absent["cgroup's limit"] = "needs root and cgroups of version 1; tests/system has it for version 2"
    skipped += [f"{name}: {why}" for name, why in absent.items()]
    plan = _drawn(arena.random, _QUICK if quick else _FULL, absent)
    broken: list[str] = []
    repairs: list[float] = []
    done = 0
    drawn: Counter[str] = Counter()
    end = time.monotonic() + (_QUICK_BUDGET if quick else _BUDGET)
    arena.start()
    try:
        base = _size(arena.instance.pid)
        for name in plan:
            if time.monotonic() > end:
                skipped.append(f"{len(plan) - done} of {len(plan)} faults: the time is up")
                break
            if done % _BARE_EVERY == _BARE_EVERY - 1:
                bare_starts.append(bare_start(arena.spec, 1))  # what else the box does changes over so long a run
            supervisor, spawns = arena.instance.pid, _spawns(arena)
            _say(f"{done + 1} of {len(plan)}: {name}")
            try:
                repaired = FAULTS[name](arena)
                amiss = _after(arena, supervisor, spawns, base)
            except (Broken, AssertionError, KvlaunchError) as error:
                broken.append(f"{name}: {error}")
                _begin_anew(arena)
                base = _size(arena.instance.pid)
                continue
            finally:
                done += 1
                drawn[name] += 1
            if repaired is not None:
                repairs.append(repaired)
            broken += [f"{name}: {words}" for words in amiss]
            if arena.instance.pid != supervisor:
                base = _size(arena.instance.pid)
    finally:
        arena.instance.close()
        if cgroup is not None:
            _remove(cgroup)
    bare = statistics.median(bare_starts)
    rows.append(row("bare engine", "spawn to ready, median", round(bare, 3), "s"))
    for words in broken:
        rows.append(row("broken", words.split(":")[0], words, "fault"))
    _say("")
    rows.append(row("chaos", "faults", done, "count"))
    rows.extend(row("chaos", name, count, "count") for name, count in sorted(drawn.items()))
    checks.append(check("faults with every invariant held", not broken, f"{done - len(broken)}/{done}", "all"))
    rows.append(row("status beside a hung engine", "longest", round(arena.slowest_status, 3), "s"))
    checks.append(
        check("status beside a hung engine", arena.slowest_status <= 0.2, round(arena.slowest_status, 3), "≤ 0.2 s")
    )
    if repairs:
        middle, worst = statistics.median(repairs), max(repairs)
        rows.append(row("kill to ready again", "median", round(middle, 3), "s"))
        rows.append(row("kill to ready again", "longest", round(worst, 3), "s"))
        limit = bare + _SLACK
        checks.append(check("kill to ready again (median)", middle <= limit, round(middle, 3), f"≤ {limit:.3f} s"))


def _say(words: str) -> None:
    """Where it is, for a person who waits."""
    if sys.stderr.isatty():
        print(f"\r\033[2K{words}", end="", file=sys.stderr, flush=True)


def _cgroup(home: Path) -> Path | None:
    """A memory cgroup for this run; of version 1 alone, where root may make one without anybody's leave."""
    level = next((level for level in levels(Tree(), "memory") if level.version == 1), None)
    if level is None or os.geteuid() != 0:
        return None
    made = Path(level.directory, home.name)
    try:
        made.mkdir()
    except OSError:
        return None
    return made


def _arena(server: Path, model: Path, home: Path, seed: int, cgroup: Path | None) -> Arena:
    copy = home / "model.gguf"
    shutil.copyfile(model, copy)
    limits = home / "limits"
    limits.write_text("")
    ahead = home / "ahead"
    ahead.write_text("0")
    wrapper = home / "wrapped-engine"
    wrapper.write_text(f'#!/bin/sh\n. "{limits}"\nexec "{server}" "$@"\n')
    wrapper.chmod(0o755)
    spec = bench_spec(
        server,
        copy,
        home,
        name="chaos",
        stop_timeout=2.0,
        hang_timeout=4.0,
        # so short that each crash is the first one: what follows is measured, not the backoff (tests do that)
        tally_window=0.01,
        detached=True,
    )
    spec = type(spec).from_json({**spec.as_json(), "binary": str(wrapper)})
    return Arena(spec, copy, limits, None, ahead, cgroup, Random(seed))  # type: ignore[arg-type]  # start() makes the instance


def _drawn(random: Random, count: int, absent: Collection[str]) -> list[str]:
    """Every fault comes at least once where there is room, in an order drawn by the seed."""
    names = [name for name in FAULTS if name not in absent]
    plan = [*names, *(random.choice(names) for _ in range(max(0, count - len(names))))]
    random.shuffle(plan)
    return plan[:count]


def _after(arena: Arena, supervisor: int, spawns: int, base: tuple[int, int]) -> list[str]:
    """What does not hold now."""
    # what a fault leaves behind may end the engine once more: all this holds some moments after it at the latest
    end = time.monotonic() + TRUTH
    while (wrong := _looks(arena)) and time.monotonic() < end:
        time.sleep(0.05)
    if arena.instance.pid != supervisor:
        return wrong
    if _spawns(arena) - spawns > _SPAWNS_A_FAULT:
        wrong.append(f"{_spawns(arena) - spawns} starts after one fault")
    files, memory = _size(supervisor)
    if files - base[0] > _GROWN_FILES:
        wrong.append(f"{files - base[0]} more descriptors than at the start")
    if memory - base[1] > _GROWN_BYTES:
        wrong.append(f"{(memory - base[1]) >> 10} KiB more memory than at the start")
    return wrong


def _remove(cgroup: Path) -> None:
    """It can be removed some moments after its last process only."""
    for group in (*cgroup.glob("engine-*"), cgroup):
        with contextlib.suppress(AssertionError):
            wait_for(lambda group=group: _removed(group))  # type: ignore[misc]


def _removed(group: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        try:
            group.rmdir()
        except OSError as error:
            return error.errno != errno.EBUSY
    return True


def _looks(arena: Arena) -> list[str]:
    """What a person who looks just now finds amiss."""
    wrong: list[str] = []
    try:
        if (code := arena.instance.complete()[0]) != 200:
            wrong.append(f"a completion is answered with {code}")
    except (OSError, http.client.HTTPException) as error:
        wrong.append(f"no completion: {error!r}")
    status, engines = arena.instance.status, _engines(arena)
    if (status["state"], [status["engine_pid"]]) != ("ready", engines):
        wrong.append(f"{status['state']} with engine {status['engine_pid']}, and {engines} run")
    return wrong


def _begin_anew(arena: Arena) -> None:
    arena.limits.write_text("")
    arena.ahead.write_text("0")
    arena.instance.close()
    for pid in _engines(arena):
        os.kill(pid, 9)
    arena.start()


def _engines(arena: Arena) -> list[int]:
    """Living engines of this run, whoever's child they are: known by the copy of the model that they serve."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and proc.is_alive(int(entry)):
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"-m" in words and str(arena.model).encode() in words:
                found.append(int(entry))
    return found


def _spawns(arena: Arena) -> int:
    return sum(event["event"] == "spawn" for event in arena.instance.client.events())


def _size(pid: int) -> tuple[int, int]:
    """Open descriptors and resident bytes."""
    usage = proc.usage(pid)
    return len(os.listdir(f"/proc/{pid}/fd")), usage.rss if usage else 0  # noqa: PTH208


def _crashes_under_clients(
    server: Path,
    model: Path,
    home: Path,
    quick: bool,
    rows: list[dict[str, Any]],
    checks: list[dict[str, Any]],
    skipped: list[str],
) -> None:
    crashes = _QUICK_CRASHES if quick else _CRASHES
    spec = bench_spec(server, model, home, name="clients", tally_window=0.01)
    if not spec.listen_fd:
        skipped.append("crashes under clients: this engine has no --listen-fd (patch 0016)")
        return
    bare = bare_start(spec)
    instance = Instance(spec)
    try:
        instance.ready()
        clients = Clients(spec.port)
        for _ in range(crashes):
            engine = instance.engine
            os.kill(engine, 9)
            instance.ready(but_not=engine)
            time.sleep(0.3)
        clients.finish()
    finally:
        instance.close()
    case = f"{crashes} crashes, 8 clients"
    rows += [
        row(case, "answered", clients.answered, "requests"),
        row(case, "lost with the engine", clients.failed.total() - clients.refused, "requests"),
        row(case, "longest wait", round(clients.longest, 3), "s"),
        row(case, "bare start", round(bare, 3), "s"),
    ]
    limit = bare + _SLACK
    checks += [
        check("refused or 503 under crashes", clients.refused == 0, clients.refused, "0"),
        check(
            "longest wait under crashes",
            clients.longest <= limit,
            round(clients.longest, 3),
            f"≤ {limit:.3f} s",
            hard=False,
        ),
    ]


def _peers(server: Path, model: Path, home: Path, quick: bool, rows: list[dict[str, Any]], skipped: list[str]) -> None:
    """Time to repair beside others' with the same engine: a report, no check."""
    times = _QUICK_REPAIRS if quick else _REPAIRS
    spec = bench_spec(server, model, home, name="peers", tally_window=0.01)
    others: dict[str, Callable[[], list[float]]] = {
        "kvlaunch": lambda: peers.kvlaunch(spec, times),
        "systemd Restart=always": lambda: peers.systemd(spec, home, times),
        "supervisord": lambda: peers.supervisord(spec, home, times),
    }
    for name, measure in others.items():
        try:
            taken = measure()
        except Unavailable as reason:
            skipped.append(f"time to repair under {name}: {reason}")
            continue
        rows.append(row("kill -9 to answer", f"{name}, median", round(taken[times // 2], 3), "s"))
        rows.append(row("kill -9 to answer", f"{name}, longest", round(taken[-1], 3), "s"))
