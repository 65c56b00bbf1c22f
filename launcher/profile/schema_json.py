"""The JSON Schema of profiles, made from the models; editors complete and check by it (`#:schema`)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from launcher.profile import schema as tables
from launcher.profile.schema import Profile

FILE = "schema.json"
"""The committed copy, beside the shipped profiles; a test holds it equal."""


def schema() -> dict[str, Any]:
    """The schema that `kvlaunch schema` prints."""
    made = Profile.model_json_schema(by_alias=True)
    properties = made["properties"]
    text = {"type": "string", "minLength": 1}
    properties["extends"] = {
        "anyOf": [text, {"type": "array", "items": text}],
        "description": "A profile to build on, or several, the later first; relative to this file.",
        "title": "Extends",
    }
    _tidy(made)
    for name, table in made.get("$defs", {}).items():
        _spell_defaults(getattr(tables, name), table)
    properties["name"].pop("default")  # the file's name
    made["$defs"]["Model"]["properties"]["package"].pop("default")  # an empty list may not be written
    for table in (made, *made.get("$defs", {}).values()):
        # a key that begins with x_ is left alone, in every table
        table["patternProperties"] = {"^x[_-]": {}}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvlaunch profile, schema 1",
        "description": "One running, right-sized, supervised llama-server. Keys may be written with - or _.",
    }
    # the file itself may leave [model] to the one that it extends
    made.pop("required", None)
    return {**head, **{key: value for key, value in made.items() if key not in head}}


def _spell_defaults(model: type[BaseModel], table: dict[str, Any]) -> None:
    """Defaults as a person would write them (2GiB), not as we keep them."""
    if any(field.is_required() for field in model.model_fields.values()):
        return
    written = model().model_dump(mode="json")
    for name, entry in table["properties"].items():
        if "default" in entry:
            entry["default"] = written[name]


def _tidy(node: Any) -> None:
    """Takes out what TOML cannot say (null) and what tells nothing (pydantic's titles of fields)."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    if node.get("default", 0) is None:
        del node["default"]
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del node["anyOf"]
        node.update(options[0])
    elif options:
        node["anyOf"] = options
    for item in list(node.values()):
        _tidy(item)
