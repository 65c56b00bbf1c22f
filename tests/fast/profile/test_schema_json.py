from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tomli

from launcher.paths import shipped
from launcher.profile.expand import PATH_KEYS
from launcher.profile.faults import known_keys, table_of
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile, Table
from launcher.profile.schema_json import FILE, schema

from .test_contract import EVERY_KEY


def accepts(node: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """As much of JSON Schema as ours uses."""
    if "$ref" in node:
        node = {**root["$defs"][node["$ref"].rsplit("/", 1)[1]], **{k: v for k, v in node.items() if k != "$ref"}}
    if "anyOf" in node and not any(accepts(option, value, root) for option in node["anyOf"]):
        return False
    if "enum" in node and not any(value == word and type(value) is type(word) for word in node["enum"]):
        return False
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}
    wanted = node.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(
        isinstance(value, types[t]) and (t == "boolean" or not isinstance(value, bool)) for t in wanted
    ):
        return False
    if isinstance(value, str):
        return len(value) >= node.get("minLength", 0) and re.search(node.get("pattern", ""), value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return node.get("minimum", value) <= value <= node.get("maximum", value)
    if isinstance(value, list):
        return len(value) >= node.get("minItems", 0) and all(
            accepts(node.get("items", {}), item, root) for item in value
        )
    if isinstance(value, dict):
        others = node.get("additionalProperties", True)
        for key, item in value.items():
            if key in node.get("properties", {}):
                if not accepts(node["properties"][key], item, root):
                    return False
            elif any(re.search(pattern, key) for pattern in node.get("patternProperties", {})):
                continue
            elif others is False or (isinstance(others, dict) and not accepts(others, item, root)):
                return False
        return set(node.get("required", ())) <= set(value)
    return True


def test_the_committed_copy_is_current() -> None:
    committed = json.loads((shipped("profiles") / FILE).read_text())
    assert committed == schema(), "write it anew: kvlaunch schema > profiles/schema.json"


def test_every_table_is_closed_and_every_key_described() -> None:
    made = schema()
    for table in (made, *made["$defs"].values()):
        assert table["additionalProperties"] is False
        assert all(entry.get("description") for entry in table["properties"].values()), table
    assert {str(key[0]) for key in known_keys(Profile)} | {"extends"} == set(made["properties"])


@pytest.mark.parametrize("name", ["quickstart", "agents", "long-context"])
def test_shipped_profiles_obey_it_load_and_begin_with_the_line_for_editors(name: str) -> None:
    file = shipped("profiles") / f"{name}.toml"
    assert file.read_text().splitlines()[0] == f"#:schema ./{FILE}"
    assert accepts(schema(), tomli.loads(file.read_text()), schema())
    profile = load_profile(name, (), {"HOME": "/nowhere"})
    assert profile.name == name and profile.model.package


def test_agents_cannot_fail_each_other() -> None:
    """A full pool fails every active request (engine-facts.md, S5): each slot is capped, and the caps fit the pool."""
    context = load_profile("agents", (), {"HOME": "/nowhere"}).context
    assert context.unified and context.slots == 4
    assert context.per_slot is not None and context.total == context.per_slot * context.slots


def test_the_shipped_profiles_can_run_beside_each_other() -> None:
    ports = [load_profile(name, (), {}).serve.port for name in ("quickstart", "agents", "long-context")]
    assert len(set(ports)) == 3


def test_it_takes_every_key_and_refuses_what_the_loader_refuses() -> None:
    made = schema()
    data = tomli.loads(EVERY_KEY)
    assert accepts(made, data, made)
    for key, value in [
        ("context.slots", 0), ("context.slots", "4"), ("context.per_slot", "32q"), ("kv.tier", "q9_0"),
        ("kv.budget", 12), ("kv.neo", True), ("serve.port", 65536), ("serve.hosts", "x"), ("engine.patches", ["6"]),
        ("supervise.fallback", ["foo"]), ("schema", 2), ("kv.reuse", {"affinity": "on"}), ("env", {"A": True}),
    ]:  # fmt: skip
        bad = tomli.loads(EVERY_KEY)
        *tables, last = key.split(".")
        table = bad
        for part in tables:
            table = table[part]
        table[last] = value
        assert not accepts(made, bad, made), (key, value)


def test_the_list_of_paths_is_the_schemas_own() -> None:
    found = set()

    def walk(model: type[Table], above: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            inner = table_of(field)
            if inner is not None:
                star = ("*",) if "tuple" in str(field.annotation) else ()
                walk(inner, (*above, name, *star))  # type: ignore[arg-type]
            elif "Path" in str(field.annotation) and "str" not in str(field.annotation):
                found.add((*above, name))

    walk(Profile, ())
    assert found == PATH_KEYS
