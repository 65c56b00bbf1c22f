from __future__ import annotations

from collections import Counter

from launcher.supervise.logs import Counts
from launcher.supervise.metrics import page

STATUS = {
    "name": 'a"b',
    "state": "ready",
    "restarts": 2,
    "slots": [{"id": 0, "size": 2048, "used": 20, "session": None, "busy": False}],
    "memory": [{"item": "kv", "device": "host", "planned": 47185920, "actual": None}],
}


def test_every_sample_is_named_and_typed() -> None:
    text = page(STATUS, Counter(crash=3), Counts(lines=12_345_678, dropped=1), 4)
    lines = text.splitlines()
    assert 'kvlaunch_state{name="a\\"b",state="ready"} 1' in lines
    assert 'kvlaunch_state{name="a\\"b",state="failed"} 0' in lines
    assert 'kvlaunch_deaths_total{name="a\\"b",class="crash"} 3' in lines
    assert 'kvlaunch_log_lines_total{name="a\\"b"} 12345678' in lines  # all digits, unlike the engine's own page
    assert 'kvlaunch_memory_planned_bytes{name="a\\"b",item="kv",device="host"} 47185920' in lines
    assert not any(line.startswith("kvlaunch_memory_actual_bytes{") for line in lines)  # unknown is not 0
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.split("{")[0] for line in lines if not line.startswith("#")} <= typed
