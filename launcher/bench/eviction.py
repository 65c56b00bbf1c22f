"""Retention-aware eviction (patch 0010): what outlives a context shift, and how far answers then move.

A case is a text with one fact in it (the needle), at some depth. The text fills the context, then goes on for four
shifts of an eighth each, so that upstream's way (the oldest go) loses the first half. The same tokens go to every
policy and, as reference, to an engine whose context holds all of it. Asked then: are the needle's cells still there,
does the model answer from it, and how far are its distributions from the reference's (KL, over the question, the
answer, and plain text that goes on)?
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.bench.bare import BareEngine, bare_engine
from launcher.bench.record import check, row
from launcher.bench.stories import Story, story

POLICIES = ("positional", "window", "scattered")
DEPTHS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.7)
_SHIFTS = 4  # of an eighth each: by position, the first half is gone
_STEP = 4  # of the tokens that are listened to, every so many
_TOP = 64  # tokens of the reference's distribution that are compared one by one; the rest is one bin
_KEPT = 0.90  # of the needles that positional loses
_ENOUGH = 50  # cases of a model
_SECONDS = 900.0  # for a model: what is not begun by then is skipped
_MILLISECONDS = 5.0  # to choose what goes, among 8k tokens

# what makes the sliding-window model's two caches the same size: without that it cannot shift at all
_EXTRA: Mapping[str, tuple[object, ...]] = {"gemma3": ("--swa-full",)}


def run(server: Path, models: Mapping[str, Path], quick: bool, seed: int) -> dict[str, Any]:
    """Rows and checks."""
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    skipped: list[str] = []
    for name in ("smollm2",) if quick else ("smollm2", "gemma3"):
        cases = 6 if quick else 54
        results = measure(server, models[name], _EXTRA.get(name, ()), 512, cases, seed)
        if len(results) < cases:
            skipped.append(f"{name}: {cases - len(results)} of {cases} cases: out of time")
        part = _summary(name, results, seed, enough=len(results) >= _ENOUGH)
        rows += part[0]
        checks += part[1]
    if quick:
        skipped += ["gemma3: --quick", "time of a choice among 8k tokens: --quick"]
    else:
        part = choices(server, models["smollm2"])
        rows += part[0]
        checks += part[1]
    return {"rows": rows, "checks": checks, "skipped": skipped}


@dataclass(slots=True)
class Result:
    """One case: what became of it under each policy."""

    kind: str
    depth: float
    kept: dict[str, bool] = field(default_factory=dict)
    recalled: dict[str, bool] = field(default_factory=dict)
    kl: dict[str, float] = field(default_factory=dict)


def measure(
    server: Path,
    model: Path,
    extra: Sequence[object],
    context: int,
    cases: int,
    seed: int,
    policies: Sequence[str] = POLICIES,
    args: Sequence[object] = (),
) -> list[Result]:
    """All cases on one model, shared out to as many pairs of engines as the process may use cores."""
    workers = len(os.sched_getaffinity(0))
    deadline = time.monotonic() + _SECONDS
    common = ("-t", 1, "-np", 1, "-b", 512, *extra)
    shifting = (
        *common,
        "-c",
        context,
        "--context-shift",
        "--rest-kv-eviction",
        "--rest-kv-recent",
        context // 8,
        *args,
    )

    def part(first: int) -> list[Result]:
        results = []
        with (
            bare_engine(server, model, *common, "-c", 2 * context) as whole,
            bare_engine(server, model, *shifting) as engine,
        ):
            for number in range(first, cases, workers):
                if time.monotonic() > deadline:
                    break
                depth = DEPTHS[number % len(DEPTHS)]
                told = story(seed * 1000 + number, depth, context + context // 2, context, engine.tokenize)
                results.append(_case(engine, whole, told, depth, context, policies))
        return results

    with ThreadPoolExecutor(workers) as pool:
        return [result for results in pool.map(part, range(workers)) for result in results]


def _case(
    engine: BareEngine, whole: BareEngine, told: Story, depth: float, context: int, policies: Sequence[str]
) -> Result:
    result = Result(told.kind, depth)
    bias = {"logit_bias": [[told.newline, 100]]}  # what is generated is the same everywhere: line ends

    # computed once: the reference goes on from the same file
    first = told.text[: context - 2]
    engine.complete(first, 0)
    engine.save()
    whole.restore_from(engine)

    # the history as the reference sees it: nothing taken out
    chunks = _chunks(told.text[context - 2 :], context // 8 - 2)
    history = list(first)
    for chunk in chunks:
        history += [told.newline] * 2 + chunk
    expected, recalled = _listen(whole, history, told)
    result.recalled["no eviction"] = recalled

    for policy in policies:
        engine.restore()
        held = list(first)
        for chunk in chunks:
            engine.complete(held, 3, kv_eviction=policy, **bias)  # the second of these does not fit: a shift
            held = engine.held() + chunk
        result.kept[policy] = _contains(held, told.needle)
        seen, result.recalled[policy] = _listen(engine, held, told)
        result.kl[policy] = statistics.fmean(_kl(p, q) for p, q in zip(expected, seen, strict=True))
    return result


def _chunks(text: Sequence[int], size: int) -> list[list[int]]:
    """What is said after each shift, as much as it and the two generated tokens leave; after the last, nothing."""
    return [list(text[i * size : (i + 1) * size]) for i in range(_SHIFTS - 1)] + [[]]


def _listen(engine: BareEngine, held: Sequence[int], told: Story) -> tuple[list[dict[int, float]], bool]:
    """The distributions along the question, its answer and a piece of plain text; whether the answer is found.

    It is, when each of its tokens is the likeliest one after those before it: what a greedy answer would write.
    """
    asked, tail = len(told.question), told.question + told.answer
    ends = [*range(0, asked - 1, _STEP), *range(asked - 1, len(tail) - 1)]
    seen = [_next(engine, [*held, *tail[: end + 1]]) for end in ends]
    answers = seen[-len(told.answer) :]
    recalled = all(max(p, key=p.__getitem__) == token for p, token in zip(answers, told.answer, strict=True))
    seen += [_next(engine, [*held, *told.onward[: end + 1]]) for end in range(0, len(told.onward), _STEP)]
    return seen, recalled


def _next(engine: BareEngine, tokens: Sequence[int]) -> dict[int, float]:
    """The likeliest next tokens and their probabilities."""
    answer = engine.complete(tokens, 1, n_probs=4 * _TOP)
    return {entry["id"]: math.exp(entry["logprob"]) for entry in answer["completion_probabilities"][0]["top_logprobs"]}


def _kl(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """KL(p, q) over p's likeliest tokens that q names too, with all others as one bin: a lower bound of the whole."""
    likely = [token for token in sorted(p, key=p.__getitem__, reverse=True)[:_TOP] if token in q]
    total = sum(p[token] * math.log(p[token] / q[token]) for token in likely if p[token] > 0 and q[token] > 0)
    p_rest = max(1e-9, 1 - sum(p[token] for token in likely))
    q_rest = max(1e-9, 1 - sum(q[token] for token in likely))
    return total + p_rest * math.log(p_rest / q_rest)


def _contains(tokens: Sequence[int], part: Sequence[int]) -> bool:
    return any(list(tokens[i : i + len(part)]) == list(part) for i in range(len(tokens) - len(part) + 1))


def _summary(
    model: str, results: Sequence[Result], seed: int, *, enough: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lost = [result for result in results if not result.kept["positional"]]
    kinds = sorted({result.kind for result in results})
    whole = _share(result.recalled["no eviction"] for result in results)
    rows = [row(f"{model}, no eviction", "answered from the needle", whole, "ratio")]
    checks = []
    for policy in POLICIES:
        case = f"{model}, {policy}"
        kept = _share(result.kept[policy] for result in lost)
        recalled = _share(result.recalled[policy] for result in results)
        rows += [
            row(case, "needles kept", _share(result.kept[policy] for result in results), "ratio"),
            row(case, "needles kept where positional loses them", kept, "ratio"),
            row(case, "answered from the needle", recalled, "ratio"),
            row(case, "KL against no eviction", round(statistics.fmean(r.kl[policy] for r in results), 4), "nat"),
        ]
        for kind in kinds:
            of_kind = _share(result.kept[policy] for result in lost if result.kind == kind)
            rows.append(row(f"{case}, {kind}", "needles kept where positional loses them", of_kind, "ratio"))
        if policy == "positional":
            continue
        low, high = _bootstrap([result.kl["positional"] - result.kl[policy] for result in results], seed)
        rows.append(row(case, "KL below positional's, 95 % interval", f"{low:.4f} to {high:.4f}", "nat"))
        hard = enough and policy == "scattered"  # the default; the other one is here to be compared
        target = f"≥ {_KEPT} of {len(lost)}"
        checks += [
            check(f"{case}: needles kept where positional loses them", kept >= _KEPT, kept, target, hard=hard),
            check(f"{case}: KL below positional's, lower end of 95 %", low > 0, round(low, 4), "> 0", hard=hard),
        ]
    return rows, checks


def _share(holds: Iterable[bool]) -> float:
    """The part of them that is true; 1 of none, since nothing was missed."""
    seen = list(holds)
    return round(sum(seen) / len(seen), 3) if seen else 1.0


def _bootstrap(differences: Sequence[float], seed: int, draws: int = 4000) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    pick = random.Random(seed)
    means = sorted(statistics.fmean(pick.choices(differences, k=len(differences))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def choices(server: Path, model: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How long it takes to choose among 8k tokens: rows and soft checks, since a busy box would fail them."""
    rows, checks = [], []
    for policy in POLICIES[1:]:
        case, times = f"8k tokens, {policy}", choice_times(server, model, policy)
        median = round(statistics.median(times), 2)
        rows += [
            row(case, "choice, median", median, "ms"),
            row(case, f"choice, slowest of {len(times)}", max(times), "ms"),
        ]
        target = f"≤ {_MILLISECONDS} ms"
        checks.append(check(f"choice among {case}", median <= _MILLISECONDS, median, target, hard=False))
    return rows, checks


def choice_times(server: Path, model: Path, policy: str) -> list[float]:
    """Milliseconds of each choice among 8k tokens, five of them, from the engine's log.

    All of it: the keys read and scored, what goes picked, and the list of tokens without it.
    """
    context = 8192
    args = ("-c", context, "-np", 1, "-b", 2048, "--context-shift", "--rest-kv-eviction", "--rest-kv-mode", policy)
    with bare_engine(server, model, *args) as engine:
        text = story(1, 0.1, context, context, engine.tokenize).text
        engine.complete(text[: context - 8], 80, n_discard=16)
        return [float(ms) for ms in re.findall(r"chosen in ([0-9.]+) ms", engine.log())]
