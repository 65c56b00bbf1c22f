"""The oracle's own arithmetic: mutations are valid profiles, and hits, misses and alarms are counted as they should."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.bench.rules import MUTATIONS, Score, Specimen, _body, deviations, judge, mutate, upper_bound
from launcher.bench.starts import Start
from launcher.diagnostic import Diagnostic, Severity
from launcher.plan.context import split_context
from launcher.profile.faults import dotted, known_keys
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile

MODEL = Path("/m/model.gguf")
SHAPE: Any = SimpleNamespace(train_context=256)


def test_every_mutation_is_a_valid_profile(tmp_path: Path) -> None:
    every = {dotted(key) for key in known_keys(Profile)}
    assert set(MUTATIONS) <= every
    file = tmp_path / "p.toml"
    for key, values in MUTATIONS.items():
        for value in values:
            text = value.replace("{model}", "m.gguf").replace("{other}", "o.gguf")
            file.write_text(f'model.path = "m.gguf"\n{key} = {text}\n')
            load_profile(file, (), {})


def test_mutations_are_drawn_by_their_seed(tmp_path: Path) -> None:
    one = [mutate(random.Random(f"7/{n}"), MODEL, MODEL, SHAPE) for n in range(50)]
    assert one == [mutate(random.Random(f"7/{n}"), MODEL, MODEL, SHAPE) for n in range(50)]
    assert {len(keys) for _, keys in one} == {1, 2, 3}
    file = tmp_path / "p.toml"
    for text, _ in one:
        file.write_text(text)
        load_profile(file, (), {})


def specimen(shown: tuple[tuple[str, str], ...], *told: tuple[str, Severity, str]) -> Specimen:
    found = tuple(Diagnostic(rule, "s", severity, key, "m") for rule, severity, key in told)
    return Specimen(1, "m", "", ("kv.tier",), found, shown, ())


def score(one: Specimen) -> Score:
    result = Score()
    judge(one, result)
    return result


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def test_a_refusal_that_was_told_is_a_hit_and_one_that_was_not_a_miss() -> None:
    refused = (("", "refused (exit code 1)"),)
    assert not score(specimen(refused, ("KV301", ERROR, "kv.tier"))).misses
    assert len(score(specimen(refused)).misses) == 1
    # a warning is no word of a refusal, and kvlaunch's own policy neither
    assert len(score(specimen(refused, ("KV301", WARNING, "kv.tier"))).misses) == 1
    assert len(score(specimen(refused, ("KV701", ERROR, "serve.host"))).misses) == 1


def test_another_figure_is_a_hit_when_its_family_was_told() -> None:
    shown = (("context.per_slot", "256 tokens"),)
    assert not score(specimen(shown, ("KV101", ERROR, "context.per_slot"))).misses
    assert not score(specimen(shown, ("KV105", ERROR, "context.total"))).misses
    assert len(score(specimen(shown, ("KV101", NOTE, "context.per_slot"))).misses) == 1
    assert len(score(specimen(shown, ("KV111", WARNING, "compute.batch"))).misses) == 1


def test_what_was_told_and_did_not_come_is_an_alarm() -> None:
    assert len(score(specimen((), ("KV301", ERROR, "kv.tier"))).alarms) == 1
    assert len(score(specimen((), ("KV101", ERROR, "context.per_slot"))).alarms) == 1
    # policy, and what a start can't show, is not counted
    assert not score(specimen((), ("KV103", ERROR, "context.slots"), ("KV306", ERROR, "context.shift"))).alarms[1:]
    assert not score(specimen((), ("KV701", ERROR, "serve.host"))).alarms


@pytest.mark.parametrize(("events", "trials", "bound"), [(0, 3000, 0.000998), (0, 5000, 0.000599), (3, 5000, 0.00155)])
def test_the_bound_is_clopper_and_pearsons(events: int, trials: int, bound: float) -> None:
    assert upper_bound(events, trials) == pytest.approx(bound, rel=0.01)


def test_every_miss_and_alarm_is_a_row() -> None:
    result = score(specimen((("", "refused (exit code 1)"),)))
    judge(specimen((), ("KV301", ERROR, "kv.tier")), result)
    body = _body(result, 7, 1.0)
    cases = [entry["case"] for entry in body["rows"]]
    assert "miss: kv.tier" in cases and "false alarm: KV301 kv.tier" in cases
    assert [check["ok"] for check in body["checks"]] == [False, False, True]
    assert body["misses"][0]["engine"] == "refused (exit code 1)"


def test_no_trials_prove_nothing() -> None:
    assert upper_bound(0, 0) == 1.0


LOG = (
    "llama_context: n_ctx                 = 1024",
    "llama_context: n_batch               = 512",
    "llama_context: n_ubatch              = 512",
    "llama_context: flash_attn            = disabled",
    "llama_kv_cache: size = 1 MiB, K (q8_0):    2.99 MiB, V (q4_0):    1.58 MiB",
    "srv    load_model: initializing, n_slots = 2, n_ctx_slot = 512, kv_unified = 'false'",
)


def shown(folder: Path, text: str, log: tuple[str, ...] = LOG, **start: Any) -> set[str]:
    file = folder / "p.toml"
    file.write_text("[model]\npath = 'm.gguf'\n" + text)
    profile = load_profile(file, (), {})
    context = profile.context
    split = split_context(per_slot=context.per_slot, total=context.total, slots=context.slots, unified=False)
    told = {
        "slots": context.slots,
        "unified": False,
        "cache_type_k": profile.kv.tier.k,
        "cache_type_v": profile.kv.tier.v,
    }
    plan: Any = SimpleNamespace(split=split, settings=told)
    seen = Start((), True, None, (), 0.1, log)
    return {key for key, _ in deviations(profile, plan, replace(seen, **start))}


def test_an_engine_that_does_as_asked_deviates_in_nothing(tmp_path: Path) -> None:
    assert shown(tmp_path, "[context]\nper_slot = 512\nslots = 2\n[kv]\ntier = 'q8_0:q4_0'\n") == set()


def test_each_deviation_names_its_key(tmp_path: Path) -> None:
    tier = "[kv]\ntier = 'q8_0:q4_0'\n"
    assert shown(tmp_path, "[context]\nper_slot = 768\nslots = 2\n" + tier) == {"context.per_slot", "context"}
    assert shown(tmp_path, "[context]\ntotal = 2048\nslots = 4\n" + tier) == {"context.slots", "context.total"}
    assert shown(tmp_path, "[context]\nper_slot = 512\nslots = 2\n") == {"kv.tier"}
    more = "[context]\nper_slot = 512\nslots = 2\n" + tier + "[compute]\nbatch = 1024\nflash_attention = 'on'\n"
    assert shown(tmp_path, more) == {"compute.batch", "compute.flash_attention"}
    assert shown(tmp_path, "[context]\nper_slot = 512\n", ready=False, exit_code=-6) == {""}
