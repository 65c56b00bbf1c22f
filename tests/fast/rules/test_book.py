"""Every rule has what a person needs, its example has it, and the mended one has not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from situations import findings, situation

from launcher.diagnostic import Severity
from launcher.engine.options import OPTIONS
from launcher.profile.faults import FAULTS, dotted, known_keys
from launcher.profile.schema import Profile
from launcher.rules.book import RULES, find_rule
from launcher.rules.engine import KEYS
from launcher.rules.rule import Example, Needs, Rule

_TOPICS = {
    "1": "context", "2": "memory", "3": "kvtypes", "4": "techniques", "5": "speculative", "6": "devices",
    "7": "serving", "8": "engine", "9": "missing",
}  # fmt: skip


def named(rules: Sequence[Rule]) -> list[object]:
    return [pytest.param(rule, id=rule.code) for rule in rules]


def codes(folder: Path, example: Example) -> list[str]:
    return [found.rule for found in findings(folder, example.profile, example.given)[0]]


@pytest.mark.parametrize("rule", named(RULES))
def test_the_example_has_it(rule: Rule, tmp_path: Path) -> None:
    found, _ = findings(tmp_path, rule.example.profile, rule.example.given)
    mine = [one for one in found if one.rule == rule.code]
    assert mine, [one.rule for one in found]
    for one in mine:
        assert one.message and one.why == rule.why
        assert one.help or rule.severity is Severity.NOTE, "what to do instead?"
        assert one.place is not None and one.place.file.endswith("p.toml")


@pytest.mark.parametrize("rule", named(RULES))
def test_its_mended_sibling_has_it_not(rule: Rule, tmp_path: Path) -> None:
    assert rule.code not in codes(tmp_path, rule.counter)


@pytest.mark.parametrize("rule", named(RULES))
def test_it_says_why_and_what_it_costs(rule: Rule) -> None:
    assert re.fullmatch(r"KV[1-9]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.slug)
    assert rule.find.__module__ == f"launcher.rules.{_TOPICS[rule.code[2]]}"
    assert len(rule.why) > 20 and rule.cost.endswith((".", "`."))


def test_codes_and_slugs_are_each_one_of_a_kind() -> None:
    names = [rule.code for rule in RULES] + [rule.slug for rule in RULES]
    names += [*FAULTS, *(fault.slug for fault in FAULTS.values())]
    assert len(names) == len(set(names))
    assert len(RULES) > 60
    kv103 = find_rule("kv103")
    assert kv103 is not None and kv103 is find_rule("slots-split-context")


def test_without_a_model_the_rules_that_need_one_are_listed(tmp_path: Path) -> None:
    found, skipped = findings(tmp_path, '[model]\npackage = "a==1"\n', ("no model yet",))
    assert set(skipped) == {rule.code for rule in RULES if rule.needs is Needs.MODEL}
    assert [one.rule for one in found] == ["KV902"]


def test_a_plain_profile_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, '[model]\npath = "m.gguf"\n') == ((), ())


def test_every_option_that_is_told_has_a_key() -> None:
    """A lacking option is told at the key that asks for it; those that no key asks for are kvlaunch's own."""
    own = {"fit", "log_jsonl", "log_verbosity", "ui", "slot_save_path", "listen_fd", "kv_telemetry"}
    assert set(OPTIONS) - set(KEYS) == own
    every = {dotted(key) for key in known_keys(Profile)}
    assert set(KEYS.values()) <= every


def test_words_that_stand_for_nothing_are_an_error() -> None:
    with pytest.raises(KeyError):
        situation(["a model of cheese"])
