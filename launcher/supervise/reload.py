"""How a changed launch can be taken with the least interruption. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from launcher.supervise.spec import LaunchSpec

_WORDS = {
    "nothing": "nothing changes",
    "at-once": "nothing is interrupted: only the supervisor's own settings change",
    "scales": "nothing is interrupted: the engine scales its adapters anew between two batches",
    "hand-over": "nothing is interrupted: the new engine loads beside the old one and takes over when it answers",
    "restart": "requests that run are ended; new connections wait until the engine is back",
    "restart-unheld": "requests that run are ended, and new connections are refused until the engine is back",
    "start": "no engine serves: the next start uses it",
}
_LORA = "--lora-scaled"
_SUPERVISORS_OWN = (
    "start_stall", "stop_timeout", "hang_timeout", "hang_factor", "deep_probe", "restart", "strict", "fallback",
    "replan", "idle_stop", "tally_window", "tally_limit", "backoff", "stable_after", "profile", "sets", "directory",
    "memory", "measured_file", "expected", "model_bytes", "on_event", "metrics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class How:
    """`way`: nothing, at-once, hand-over or restart."""

    way: str
    interrupts: str
    changes: tuple[str, ...]
    scales: tuple[float, ...] = ()
    """With at-once: what the engine's adapters are to be scaled by, in their order. Nothing: no need to ask it."""

    def as_json(self) -> dict[str, Any]:
        return {"way": self.way, "interrupts": self.interrupts, "changes": list(self.changes)}

    @staticmethod
    def adopt(old: LaunchSpec, fresh: LaunchSpec) -> LaunchSpec:
        """The new launch where the old one lives: places and kind of start are not a profile's to change."""
        return replace(fresh, detached=old.detached, socket=old.socket, state_dir=old.state_dir, log_dir=old.log_dir)


def judge(old: LaunchSpec, fresh: LaunchSpec, *, serving: bool, beside: bool) -> How:
    """`beside`: the plan says that both engines fit into memory at once."""
    fresh = How.adopt(old, fresh)
    changes = tuple(_changes(old, fresh))
    if not changes:
        return How("nothing", _WORDS["nothing"], ())
    if replace(fresh, **{name: getattr(old, name) for name in _SUPERVISORS_OWN}) == old:
        return How("at-once", _WORDS["at-once"], changes)
    if not serving:
        return How("restart", _WORDS["start"], changes)
    if scales := _only_scales(old, fresh):
        return How("at-once", _WORDS["scales"], changes, scales)
    same_address = (old.hosts, old.port) == (fresh.hosts, fresh.port)
    held = old.listen_fd and fresh.listen_fd and same_address
    if held and beside:
        return How("hand-over", _WORDS["hand-over"], changes)
    return How("restart", _WORDS["restart" if held else "restart-unheld"], changes)


def _only_scales(old: LaunchSpec, fresh: LaunchSpec) -> tuple[float, ...]:
    """The scales of the LoRA adapters, when they are all that the engine would notice."""
    own = {name: getattr(old, name) for name in _SUPERVISORS_OWN}
    if replace(fresh, **own, argv=old.argv) != old:
        return ()
    was, becomes = _adapters(old.argv), _adapters(fresh.argv)
    bare = [tuple(word for word in argv if word not in (_LORA, value)) for argv, (value, _) in
            ((old.argv, was), (fresh.argv, becomes))]  # fmt: skip
    same_files = [file for file, _ in was[1]] == [file for file, _ in becomes[1]]
    return tuple(scale for _, scale in becomes[1]) if same_files and bare[0] == bare[1] else ()


def _adapters(argv: tuple[str, ...]) -> tuple[str, list[tuple[str, float]]]:
    """The value of `--lora-scaled` (FILE:SCALE,…) as written, and taken apart."""
    if _LORA not in argv:
        return "", []
    value = argv[argv.index(_LORA) + 1]
    parts = [item.rpartition(":") for item in value.split(",")]
    return value, [(file, float(scale)) for file, _, scale in parts]


def _changes(old: LaunchSpec, fresh: LaunchSpec) -> list[str]:
    """One line a difference: options of the engine by name, all else by field."""
    lines: list[str] = []
    before, after = _options(old.argv), _options(fresh.argv)
    for option in sorted(before.keys() | after.keys()):
        if before.get(option) != after.get(option):
            lines.append(f"{option}: {_shown(before.get(option))} -> {_shown(after.get(option))}")
    was, becomes = old.as_json(), fresh.as_json()
    for key in was:
        if key in ("argv", "memory", "measured_file", "replan", "expected"):
            continue
        if was[key] != becomes[key]:
            lines.append(f"{key}: {was[key]!r} -> {becomes[key]!r}")
    # what it must report when it is ready follows from the rest, and is a line where nothing else would be one
    if not lines and was["expected"] != becomes["expected"]:
        lines.append("what it must report to be ready")
    return lines


def _options(argv: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Option -> its values, in order; an option may stand more than once."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if word.startswith("-") and not word[1:2].isdigit():
            name = word
            found[name] = (*found.get(name, ()), "")
        else:
            found[name] = (*found.get(name, ("",))[:-1], word)
    return found


def _shown(values: tuple[str, ...] | None) -> str:
    return "not set" if values is None else " ".join(value or "on" for value in values)
