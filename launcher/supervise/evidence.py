"""What an engine shows of a technique by what it does, where no route says that it is on. One small question each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from launcher.supervise.http1 import Endpoint, NoAnswer

_LIMIT = 10.0


async def gather(endpoint: Endpoint, techniques: Mapping[str, bool], props: Mapping[str, Any]) -> dict[str, bool]:
    """For the requested techniques that can be asked about: whether they are at work."""
    found: dict[str, bool] = {}
    for name, question in _QUESTIONS.items():
        if techniques.get(name):
            try:
                found[name] = await question(endpoint, props)
            except NoAnswer:
                continue
    return found


async def _affinity(endpoint: Endpoint, props: Mapping[str, Any]) -> bool:
    """A session id of more than 256 bytes is refused by an engine that reads it (0006), before anything is computed."""
    request = {"prompt": "a", "n_predict": 1, "cache_prompt": False, "session_id": "x" * 257}
    return (await endpoint.post("/completion", request, _LIMIT)).status == 400


async def _eviction(endpoint: Endpoint, props: Mapping[str, Any]) -> bool:
    """A policy that doesn't exist is refused by an engine that reads the field (0010)."""
    request = {"prompt": "a", "n_predict": 1, "cache_prompt": False, "kv_eviction": "none-such"}
    return (await endpoint.post("/completion", request, _LIMIT)).status == 400


async def _telemetry(endpoint: Endpoint, props: Mapping[str, Any]) -> bool:
    """/props tells what the cache holds and where (0008)."""
    return "kv" in props


_QUESTIONS: dict[str, Callable[[Endpoint, Mapping[str, Any]], Awaitable[bool]]] = {
    "affinity": _affinity,
    "eviction": _eviction,
    "telemetry": _telemetry,
}
