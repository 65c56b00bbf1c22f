"""Everything a rule may look at: plain values, read before. Nothing here reads a file or asks a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.engine.capability import Capability
from launcher.machine.types import Machine
from launcher.model.shape import ModelShape
from launcher.plan.plan import Plan
from launcher.profile.schema import Profile


@dataclass(frozen=True, slots=True)
class Files:
    """What was seen of the files and addresses that a profile names (launcher/rules/files.py), by dotted key.

    missing   why a named file can't be used, in words
    shapes    headers of the files that are GGUFs: model.draft.path, model.mmproj, model.lora.N.path
    loose     files with a secret that others may read
    empty     api key files without a key
    config    a file of the engine's own that it reads before its command line, None where there is none
    hosts     why an address of serve.host can't be listened on, in words, by its place in the list
    """

    missing: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    config: Path | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One profile on one machine with one engine. `shape` and `plan` are None while the model isn't here."""

    profile: Profile
    machine: Machine
    capability: Capability
    shape: ModelShape | None = None
    plan: Plan | None = None
    files: Files = Files()

    @property
    def model(self) -> ModelShape:
        """The shape, for a rule that needs it."""
        assert self.shape is not None
        return self.shape

    @property
    def planned(self) -> Plan:
        """The plan, for a rule that needs it."""
        assert self.plan is not None
        return self.plan

    def is_set(self, key: str) -> bool:
        """Whether the user wrote the key: a default is nobody's wish."""
        return self.profile.is_set(key)
