"""What the engine's own dry run says: `llama-fit-params … --fit-print on`, a line a device in whole MiB.

Known misses of it, which the ledger mends (seen on the pin): it reserves an output row for every token of a ubatch
where the server reserves one a slot; it leaves out the rearranged copies of weights, mmproj, the prompt cache and what
the runtime takes; its figures are rounded down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.plan.kv import HOST
from launcher.units import MIB


@dataclass(frozen=True, slots=True)
class DryRunLine:
    """Bytes on one device; the middle of the MiB that the figure was rounded down to."""

    model: int
    context: int
    compute: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """The lines by device."""

    lines: Mapping[str, DryRunLine]

    def compute(self, device: str) -> int | None:
        """Bytes of the compute buffer, None for a device that it did not name."""
        line = self.lines.get(device)
        return line.compute if line is not None else None


def parse_dry_run(text: str) -> DryRun | None:
    """From its standard output: `RPC0 92 90 104`, `Host 28 0 8`. None where no line is such a line."""
    lines: dict[str, DryRunLine] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) != 4 or not all(word.isdigit() and len(word) < 10 for word in words[1:]):
            continue
        model, context = (int(word) * MIB + (MIB // 2 if word != "0" else 0) for word in words[1:3])
        compute = int(words[3]) * MIB + MIB // 2  # "0" is less than one, not nothing
        lines[HOST if words[0] == "Host" else words[0]] = DryRunLine(model, context, compute)
    return DryRun(lines) if lines else None
