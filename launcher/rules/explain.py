"""`kvlaunch explain RULE` and the page of all rules: the same text, made from the rules themselves."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill, indent

from launcher.errors import UsageError
from launcher.profile.bad import near
from launcher.profile.faults import FAULTS
from launcher.rules.book import RULES, find_rule
from launcher.rules.rule import Act, Example, Rule

_WIDTH = 100

# Codes that are told outside of this room: what a person may look up all the same.
_ELSEWHERE = {
    "KV900": ("model-unreadable", "The model's header can't be read: nothing can be planned or served."),
    "KV910": ("wrong-checksum", "The model's file is not the one whose sha256 the profile gives."),
    "KV911": ("no-model-inside", "A package of model.package should carry one GGUF, or one part of it, and doesn't."),
}

_ACTS = {
    Act.REFUSE: "the engine refuses to start",
    Act.CRASH: "the engine dies",
    Act.CHANGE: "the engine runs, but with something else than was asked",
    Act.IGNORE: "the engine runs as if it had not been asked",
    Act.CORRUPT: "the engine runs and computes nonsense",
    Act.OURS: "the engine would do as told; the rule is kvlaunch's own",
}


def explain(name: str) -> str:
    """The text for one code or slug. Raises UsageError with the nearest for an unknown one."""
    rule = find_rule(name)
    if rule is not None:
        return "\n".join(_lines(rule))
    code = _fault_code(name)
    if code in FAULTS:
        fault = FAULTS[code]
        text = [f"{code} {fault.slug} (error)", "", _fill(fault.why)]
        if fault.example:
            text += ["", "For example:", "", indent(fault.example.rstrip(), "    ")]
        return "\n".join(text)
    if code in _ELSEWHERE:
        slug, why = _ELSEWHERE[code]
        return f"{code} {slug} (error)\n\n{_fill(why)}"
    raise _unknown(name)


def explain_json(name: str) -> dict[str, object]:
    """The same as data."""
    rule = find_rule(name)
    if rule is not None:
        return {
            "schema": 1,
            "rule": rule.code,
            "slug": rule.slug,
            "severity": str(rule.severity),
            "act": str(rule.act),
            "why": rule.why,
            "cost": rule.cost,
            "help": rule.help,
            "needs": str(rule.needs),
            "example": _example_json(rule.example),
            "counter": _example_json(rule.counter),
        }
    code = _fault_code(name)
    if code in FAULTS:
        fault = FAULTS[code]
        slug, why, example = fault.slug, fault.why, {"profile": fault.example, "given": []}
    elif code in _ELSEWHERE:
        slug, why = _ELSEWHERE[code]
        example = {"profile": "", "given": []}
    else:
        raise _unknown(name)
    return {"schema": 1, "rule": code, "slug": slug, "severity": "error", "why": why, "example": example}


def page() -> str:
    """docs/rules.md: every rule, in the order of the codes."""
    made = "Made from launcher/rules by `python -m launcher.rules.explain > docs/rules.md`; a test holds it equal."
    parts = ["# Rules", "", made, ""]
    for code, fault in FAULTS.items():
        parts += [f"## {code} {fault.slug}", "", f"Error. {fault.why}", ""]
        if fault.example:
            parts += ["```toml", fault.example.rstrip(), "```", ""]
    for rule in RULES:
        parts += [f"## {rule.code} {rule.slug}", "", f"{str(rule.severity).capitalize()}: {_ACTS[rule.act]}.", ""]
        parts += [rule.why, "", f"**If ignored:** {rule.cost}", ""]
        if rule.help:
            parts += [f"**Instead:** {rule.help}", ""]
        for title, example in (("Has it", rule.example), ("Has it not", rule.counter)):
            given = f" (with {', '.join(example.given)})" if example.given else ""
            parts += [f"{title}{given}:", "", "```toml", example.profile.rstrip(), "```", ""]
    return "\n".join(parts)


def _lines(rule: Rule) -> Iterator[str]:
    yield f"{rule.code} {rule.slug} ({rule.severity})"
    yield ""
    yield _fill(f"If nobody says anything, {_ACTS[rule.act]}. {rule.why}")
    yield ""
    yield _fill(f"If ignored: {rule.cost}")
    if rule.help:
        yield _fill(f"Instead: {rule.help}")
    for title, example in (("Has it", rule.example), ("Has it not", rule.counter)):
        yield ""
        yield f"{title}{' (with ' + ', '.join(example.given) + ')' if example.given else ''}:"
        yield ""
        yield indent(example.profile.rstrip(), "    ")


def _fill(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _example_json(example: Example) -> dict[str, object]:
    return {"profile": example.profile, "given": list(example.given)}


def _fault_code(name: str) -> str:
    wanted = name.strip()
    return next((code for code, fault in FAULTS.items() if fault.slug == wanted.lower()), wanted.upper())


def _unknown(name: str) -> UsageError:
    known = [rule.code for rule in RULES] + [rule.slug for rule in RULES] + list(FAULTS)
    meant = near(name.strip(), known) or near(name.strip().upper(), known)
    return UsageError(
        f"there is no rule {name[:40]!r}", help=f"did you mean {meant}?" if meant else "rules have codes such as KV103"
    )


if __name__ == "__main__":
    print(page())
