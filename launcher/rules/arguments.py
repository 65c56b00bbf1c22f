"""engine.args taken apart as the engine would: options, their values, and what stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.engine.capability import Capability, HelpOption


@dataclass(frozen=True, slots=True)
class Argument:
    """One option as written. `entry` is None for a name that the engine doesn't know, or a word that is no option.

    index, value_index  where they stand in engine.args; value None: it takes none, or none was left
    """

    index: int
    flag: str
    entry: HelpOption | None
    value: str | None = None
    value_index: int | None = None

    @property
    def lacks_value(self) -> bool:
        return self.entry is not None and bool(self.entry.value) and self.value is None

    def is_any(self, *flags: str) -> bool:
        """Whether it is one of these options, whichever spelling either side uses."""
        names = self.entry.spellings if self.entry is not None else (self.flag,)
        return any(flag in names for flag in flags)


def split_arguments(args: Sequence[str], capability: Capability) -> Iterator[Argument]:
    """The options in order. The engine takes the next word as a value whatever it looks like (common/arg.cpp:862)."""
    index = 0
    while index < len(args):
        flag = args[index]
        # the engine reads --flash_attn as --flash-attn
        name = (
            "-" * (len(flag) - len(flag.lstrip("-"))) + flag.lstrip("-").replace("_", "-") if flag[:2] == "--" else flag
        )
        entry = capability.option(name) or capability.option(flag)
        if entry is not None and entry.value and index + 1 < len(args):
            yield Argument(index, flag, entry, args[index + 1], index + 1)
            index += 2
        else:
            yield Argument(index, flag, entry)
            index += 1
