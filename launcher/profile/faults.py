"""What can be wrong with a profile by itself, KV001 to KV049, and how pydantic's findings become our diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from launcher.diagnostic import Diagnostic, Place, Severity
from launcher.profile.bad import BadItems, BadValue, near, not_one_of, shown, wrong_type

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: `explain CODE` prints this."""

    slug: str
    why: str
    example: str
    """A profile that has the fault."""


FAULTS: Mapping[str, Fault] = {
    "KV001": Fault("syntax", "The file is no TOML, so nothing in it can be trusted.", "[context\nslots = 4\n"),
    "KV002": Fault(
        "unknown-key",
        "A key that nobody reads would be a wish that is silently not granted. Keys that begin with x_ are left alone.",
        '[model]\npath = "m.gguf"\n[context]\nslot = 4\n',
    ),
    "KV003": Fault(
        "wrong-type",
        'Values are not guessed at: the engine reads 32k as 32, and a quoted "false" as true would be no better.',
        '[model]\npath = "m.gguf"\n[context]\nslots = "4"\n',
    ),
    "KV004": Fault(
        "bad-value",
        "The value is outside of what this key can mean.",
        '[model]\npath = "m.gguf"\n[kv]\ntier = "q9_0"\n',
    ),
    "KV005": Fault(
        "bad-unit",
        "A size or a time without its unit is a guess by a factor of a thousand.",
        '[model]\npath = "m.gguf"\n[kv]\nbudget = "12G"\n',
    ),
    "KV006": Fault(
        "extends",
        "A file that this profile builds on cannot be used.",
        'extends = "not-there.toml"\n[model]\npath = "m.gguf"\n',
    ),
    "KV007": Fault(
        "variable",
        "An unset variable would silently become an empty string. A dollar that is meant is written $$.",
        '[model]\npath = "${NOT_SET_ANYWHERE}/m.gguf"\n',
    ),
    "KV008": Fault("missing-key", "Without it there is nothing to do.", "[context]\nslots = 4\n"),
    "KV009": Fault(
        "written-twice",
        "- and _ are the same in keys, so one of the two would silently win.",
        '[model]\npath = "m.gguf"\n[context]\nper_slot = "8k"\nper-slot = "4k"\n',
    ),
    "KV010": Fault(
        "newer-schema",
        "The file was written for a newer kvlaunch and may mean things that this one does not know.",
        'schema = 99\n[model]\npath = "m.gguf"\n',
    ),
    "KV011": Fault(
        "two-sources",
        "Only one model is served: which of them would be a guess.",
        '[model]\npath = "m.gguf"\nhub = "owner/repo"\n',
    ),
    "KV012": Fault("unreadable", "The file cannot be read.", ""),
    "KV013": Fault(
        "layer-twice",
        "A layer has one type; which of the two entries counts would be a guess.",
        '[model]\npath = "m.gguf"\n[kv]\ntiers = [{ layers = "0-3", tier = "q8_0" }, { layers = "3", tier = "f16" }]\n',
    ),
}

# Names that people bring along from the engine's command line and from other launchers.
_BROUGHT_ALONG: Mapping[str, str] = {
    "ctx_size": "context.total", "n_ctx": "context.total", "ctx": "context.total", "context_length": "context.total",
    "parallel": "context.slots", "n_parallel": "context.slots", "np": "context.slots",
    "kv_unified": "context.unified", "kvu": "context.unified", "context_shift": "context.shift",
    "n_keep": "context.keep", "rope_scaling": "context.rope.scaling", "rope_scale": "context.rope.factor",
    "cache_type": "kv.tier", "cache_type_k": "kv.tier", "cache_type_v": "kv.tier", "ctk": "kv.tier", "ctv": "kv.tier",
    "type_k": "kv.tier", "type_v": "kv.tier", "cache_ram": "kv.reuse.ram", "cache_reuse": "kv.reuse.chunk",
    "n_gpu_layers": "compute.gpu_layers", "ngl": "compute.gpu_layers", "flash_attn": "compute.flash_attention",
    "fa": "compute.flash_attention", "n_cpu_moe": "compute.cpu_moe", "split_mode": "compute.split",
    "batch_size": "compute.batch", "n_batch": "compute.batch", "ubatch_size": "compute.ubatch",
    "n_ubatch": "compute.ubatch", "n_threads": "compute.threads", "device": "compute.devices",
    "mlock": "compute.load", "mmap": "compute.load", "no_mmap": "compute.load", "load_mode": "compute.load",
    "api_key": "serve.api_key_file", "model_path": "model.path", "model_draft": "model.draft.path",
    "file": "model.path", "extra_args": "engine.args", "command": "engine.binary",
}  # fmt: skip


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def fault(code: str, path: Path, message: str, help: str = "", place: Place | None = None) -> Diagnostic:
    kind = FAULTS[code]
    return Diagnostic(code, kind.slug, Severity.ERROR, dotted(path), message, kind.why, help, place)


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a table, or an array or an option of one."""
    from typing import get_args

    for part in (field.annotation, *get_args(field.annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def known_keys(model: type[BaseModel], above: Path = ()) -> Iterator[Path]:
    """Every key of the schema, as a path without indices."""
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        yield path
        if inner := table_of(field):
            yield from known_keys(inner, path)


def _unknown(model: type[BaseModel], path: Path) -> tuple[str, str]:
    """Message and help for a key that does not exist: the nearest name in its table, else elsewhere."""
    name = str(path[-1])
    above = tuple(part for part in path[:-1] if isinstance(part, str))
    where = f"[{dotted(above)}]" if above else "the top of a profile"
    keys = [*known_keys(model), ("extends",)]
    beside = {str(key[-1]) for key in keys if key[:-1] == above}
    message = f'there is no key "{name}" in {where}'
    if target := _BROUGHT_ALONG.get(name):
        return message, f"write {target}"
    if meant := near(name, beside, 0.85):  # a slip of one letter, whatever has that name elsewhere
        return message, f"did you mean {meant}?"
    if elsewhere := [dotted(key) for key in keys if key[-1] == name]:
        return message, f"did you mean {' or '.join(elsewhere)}?"
    if meant := near(name, beside):
        return message, f"did you mean {meant}?"
    if meant := near(name, {str(key[-1]) for key in keys}):
        return message, f"did you mean {' or '.join(dotted(key) for key in keys if key[-1] == meant)}?"
    return message, f"{where} takes {', '.join(sorted(beside))}" if above else ""


def _words(expected: str) -> list[str]:
    """pydantic spells a Literal's values as `'a', 'b' or 'c'`."""
    return [word.strip().strip("'") for word in expected.replace(" or ", ",").split(",")]


def _explain(model: type[BaseModel], path: Path, error: Mapping[str, Any]) -> tuple[str, str, str]:
    """The code, message and help of one of pydantic's findings."""
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return ("KV002", *_unknown(model, path))
        case "missing":
            return "KV008", f'"{path[-1]}" is missing', ""
        case "literal_error":
            bad = not_one_of(_words(error["ctx"]["expected"]), value)
        case "bool_type":
            swap = {"true": "true", "on": "true", "yes": "true", "false": "false", "off": "false", "no": "false"}
            meant = swap.get(value.lower()) if isinstance(value, str) else None
            bad = wrong_type("true or false", value, f"write {meant}" if meant else "")
        case "model_type" | "model_attributes_type" | "dict_type":
            bad = wrong_type("a table", value)
        case "tuple_type" | "list_type":
            bad = wrong_type("an array", value, "write it in [ ]" if isinstance(value, dict | str) else "")
        case _:
            bad = BadValue("KV004", f"{shown(value)}: {error['msg']}")
    return bad.code, bad.message, bad.help


def from_pydantic(model: type[BaseModel], error: ValidationError) -> Iterator[tuple[str, Path, str, str]]:
    """Code, path, message and help of every finding."""
    for found in error.errors(include_url=False):
        path = tuple(found["loc"])
        match found.get("ctx", {}).get("error"):
            case BadValue() as bad:
                yield bad.code, path, bad.message, bad.help
            case BadItems() as many:
                yield from ((bad.code, (*path, index), bad.message, bad.help) for index, bad in many.items)
            case _:
                code, message, help = _explain(model, path, found)
                yield code, path, message, help
