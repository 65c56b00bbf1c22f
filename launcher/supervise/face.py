"""What `status` shows (contract: `status --json`), from the machine, the launch and what the engine has said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.supervise import clock
from launcher.supervise.running import Running
from launcher.supervise.spec import LaunchSpec
from launcher.supervise.states import ALIVE, Machine


def status(
    spec: LaunchSpec,
    machine: Machine,
    engine: Running | None,
    *,
    pid: int,
    url: str | None,
    since: str,
    last_exit: Mapping[str, Any] | None,
) -> dict[str, Any]:
    expected = spec.expected
    return {
        "schema": 1,
        "name": spec.name,
        "state": str(machine.state),
        "reason": machine.reason,
        "pid": pid,
        "engine_pid": engine.real_pid if engine is not None and machine.state in ALIVE else None,
        "url": url,
        "since": since,
        "restarts": machine.restarts,
        "next_try": next_try(machine),
        "engine": spec.engine_key,
        "profile": spec.profile,
        "context": {
            "total": expected.total,
            "per_slot": expected.per_slot,
            "slots": expected.slots,
            "unified": expected.unified,
        },
        "slots": [_slot(slot) for slot in engine.slots] if engine is not None else [],
        "counters": engine.counters if engine is not None else None,
        "memory": memory(spec, engine.facts.buffers if engine is not None else {}),
        "requested": dict(expected.techniques),
        "active": engine.active if engine is not None else {},
        "given_up": list(machine.given_up),
        "last_exit": dict(last_exit) if last_exit else None,
        "code": machine.code,
    }


def next_try(machine: Machine) -> str | None:
    return clock.coming(machine.next_try) if machine.next_try is not None else None


def memory(spec: LaunchSpec, actual: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Every line of the ledger beside what the engine's log says; what only the log names comes after."""
    left = dict(actual)
    lines: list[dict[str, Any]] = []
    for line in spec.memory:
        real = left.pop((line.item, line.device), None)
        lines.append({"item": line.item, "device": line.device, "planned": line.bytes, "actual": real})
    for (item, device), size in left.items():
        lines.append({"item": item, "device": device, "planned": None, "actual": size})
    return lines


def _slot(slot: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": slot.get("id"),
        "size": slot.get("n_ctx"),
        "used": slot.get("n_prompt_tokens", 0),
        "session": slot.get("session_id"),
        "busy": bool(slot.get("is_processing")),
    }
