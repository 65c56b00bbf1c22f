"""Session affinity (patch 0006): prompt tokens computed in the later turns of conversations, with and without it.

Token counts, not times: they are the same on every machine. What a turn adds (the user's words, and the answer's last
token, which is sampled but never decoded) is the floor; the target is that and at most four more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bench.bare import BareEngine, bare_engine
from launcher.bench.record import check, row

_SLACK = 4  # tokens beyond the new ones, per turn
_ANSWER = 12  # tokens a turn generates
_CONTEXT = 8192

_MODES: Mapping[str, tuple[object, ...]] = {
    "default": (),
    "2 split": ("-np", 2),
    "2 unified": ("-np", 2, "-kvu"),
    "1": ("-np", 1),
    "no RAM cache": ("--cache-ram", 0),
}
_CASES: Mapping[str, int] = {"one session": 1, "two sessions, shared prefix": 2, "eight sessions": 8}

_WORDS = [
    "river",
    "stone",
    "window",
    "garden",
    "letter",
    "market",
    "winter",
    "bridge",
    "paper",
    "doctor",
    "silver",
    "morning",
    "engine",
    "forest",
    "kitchen",
    "number",
    "harbor",
    "candle",
    "mirror",
    "ladder",
    "pocket",
    "summer",
    "teacher",
    "valley",
    "copper",
    "blanket",
    "journey",
    "island",
    "basket",
    "planet",
    "shadow",
    "ticket",
]


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """Rows and checks."""
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    skipped: list[str] = []
    prefix, turns = (120, 3) if quick else (500, 4)

    for mode, args in _MODES.items():
        for case, sessions in _CASES.items():
            if mode == "no RAM cache" and sessions > 4:
                skipped.append(f"{case}, {mode}: eight states fit neither in four slots nor in a cache that is off")
                continue
            if quick and sessions > 2 and mode not in ("default", "2 split"):
                skipped.append(f"{case}, {mode}: --quick")
                continue
            name = f"{case}, {mode}"
            plain = _measure(server, models["smollm2"], args, sessions, prefix, turns, seed, named=False)
            named = _measure(server, models["smollm2"], args, sessions, prefix, turns, seed, named=True)
            rows += [
                row(name, "new tokens, turns ≥ 2", named.new, "tokens"),
                row(name, "computed, turns ≥ 2, without", plain.computed, "tokens"),
                row(name, "computed, turns ≥ 2, with", named.computed, "tokens"),
                row(name, "computed, turn 1, without", plain.first, "tokens"),
                row(name, "computed, turn 1, with", named.first, "tokens"),
            ]
            checks.append(
                check(
                    f"{name}: most beyond the new ones in a turn", named.excess <= _SLACK, named.excess, f"≤ {_SLACK}"
                )
            )
    return {"rows": rows, "checks": checks, "skipped": skipped}


@dataclass(slots=True)
class _Cost:
    first: int = 0  # computed in first turns
    computed: int = 0  # in later ones
    new: int = 0  # of these, tokens that the engine had not seen
    excess: int = 0  # the most that one turn computed beyond them


@dataclass(slots=True)
class _Conversation:
    """All that was said, sent anew each turn, as a chat client does."""

    name: str
    tokens: list[int]
    known: int = 0  # of these, computed for this session before


def _measure(
    server: Path,
    model: Path,
    args: tuple[object, ...],
    sessions: int,
    prefix: int,
    turns: int,
    seed: int,
    *,
    named: bool,
) -> _Cost:
    option = ("--session-affinity",) if named else ()
    cost = _Cost()
    with bare_engine(server, model, "-c", _CONTEXT, *args, *option) as engine:
        talk = _talk(engine, prefix, seed)
        start = next(talk)
        conversations = [_Conversation(f"session {i}", list(start)) for i in range(sessions)]
        for turn in range(turns):
            for conversation in conversations:
                conversation.tokens += next(talk)
                fields = {"session_id": conversation.name} if named else {}
                answer = engine.complete(conversation.tokens, _ANSWER, return_tokens=True, **fields)
                computed = answer["timings"]["prompt_n"]
                new = len(conversation.tokens) - conversation.known
                if turn == 0:
                    cost.first += computed
                else:
                    cost.computed += computed
                    cost.new += new
                    cost.excess = max(cost.excess, computed - new)
                conversation.tokens += answer["tokens"]
                conversation.known = len(conversation.tokens) - 1
    return cost


def _talk(engine: BareEngine, prefix: int, seed: int) -> Iterator[list[int]]:
    """First the shared prefix, then one message after the other, as token ids."""
    pick = random.Random(seed)
    size = prefix
    while True:
        yield engine.tokenize(" " + " ".join(pick.choice(_WORDS) for _ in range(size)))[:size]
        size = 20
