from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.profile.faults import FAULTS
from launcher.rules.book import RULES
from launcher.rules.explain import explain, explain_json, page


@pytest.mark.parametrize("name", [*(rule.code for rule in RULES), *FAULTS, "KV900"])
def test_every_code_can_be_explained(name: str) -> None:
    text = explain(name)
    assert text.startswith(name)
    assert max(map(len, text.splitlines())) <= 130
    data = explain_json(name)
    assert json.loads(json.dumps(data))["rule"] == name and data["why"]


def test_by_slug_and_in_any_case() -> None:
    assert explain("slots-split-context") == explain("kv103") == explain("KV103")
    assert explain("unknown-key") == explain("kv002")


def test_an_unknown_rule_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        explain("slot-split-context")
    assert caught.value.help == "did you mean slots-split-context?"
    with pytest.raises(UsageError):
        explain_json("KV999999")


def test_the_page_has_every_rule_and_the_committed_one_is_current() -> None:
    text = page()
    committed = Path(__file__).parents[3] / "docs" / "rules.md"
    assert committed.read_text() == text + "\n", "write it anew: python -m launcher.rules.explain > docs/rules.md"
    assert all(f"## {rule.code} {rule.slug}" in text and rule.why in text for rule in RULES)
