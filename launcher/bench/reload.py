"""`bench reload`: hand-overs to a second engine under clients that connect anew all the time. Nobody may notice."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.bench.clients import Clients
from launcher.bench.instance import Instance, bench_spec
from launcher.bench.record import check, row

_FULL, _QUICK = 50, 10
_SIZES = (2048, 4096)


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    reloads = _QUICK if quick else _FULL
    home = Path(tempfile.mkdtemp(prefix="kvreload-"))
    try:
        spec = bench_spec(server, models["smollm2"], home, name="reload")
        if not spec.listen_fd:
            return {"skipped": ["everything: this engine has no --listen-fd (patch 0016)"]}
        instance = Instance(spec)
        took: list[float] = []
        try:
            instance.ready()
            clients = Clients(spec.port)
            completing = Clients(spec.port, 1, body={"prompt": "Once upon a time", "n_predict": 16})
            for n in range(reloads):
                took.append(_reload(instance, _SIZES[(n + 1) % 2]))
                time.sleep(0.1)
            clients.finish()
            completing.finish()
            restarts = instance.status["restarts"]
        finally:
            instance.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    case = f"{reloads} reloads, 8 clients"
    failed = clients.failed.total() + completing.failed.total()
    return {
        "rows": [
            row(case, "answered", clients.answered + completing.answered, "requests"),
            row(case, "longest wait", round(clients.longest * 1000), "ms"),
            row(case, "longest completion", round(completing.longest * 1000), "ms"),
            row(case, "reload (median)", round(sorted(took)[len(took) // 2], 3), "s"),
            *(row(case, f"failed: {what}", n, "requests") for what, n in (clients.failed + completing.failed).items()),
        ],
        "checks": [
            check("failed or refused", failed == 0, failed, "0"),
            check("restarts", restarts == 0, restarts, "0"),
        ],
    }


def _reload(instance: Instance, size: int) -> float:
    spec = instance.spec
    argv = list(spec.argv)
    argv[argv.index("-c") + 1] = str(size)
    expected = replace(spec.expected, total=size, per_slot=size)
    fresh = replace(spec, argv=tuple(argv), expected=expected)
    engine = instance.engine
    begin = time.monotonic()
    answer = instance.client.ask({"do": "reload", "spec": fresh.as_json(), "beside": True})
    assert answer["reload"]["way"] == "hand-over", answer
    instance.ready(but_not=engine)
    return time.monotonic() - begin
