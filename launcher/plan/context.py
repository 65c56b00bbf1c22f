"""How many tokens each slot really gets: the context table of contract.md, with the engine's own rounding.

Source: src/llama-context.cpp:292-307 (padding, split), tools/server/server.cpp:168-183 (slots, unified),
tools/server/server-context.cpp:4376-4385 (what caps a slot) of the pin.
"""

from __future__ import annotations

from dataclasses import dataclass

PAD = 256  # GGML_PAD(n_ctx, 256), src/llama-context.cpp:292


def pad(tokens: int) -> int:
    """The next multiple of 256 at or above `tokens`: the engine allocates cells in this grain."""
    return -(-tokens // PAD) * PAD


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """One context, divided among slots. All figures are tokens (= cache cells of one layer).

    emitted      the value of `-c`
    total        cells the engine allocates (`n_ctx`), at or above `emitted`
    per_sequence cells that one sequence can address (`n_ctx_seq`): all of them when unified
    per_slot     tokens that one conversation can hold, after every cap
    cap          the value of `--kv-unified-per-slot`, None where it isn't emitted
    train        the length the model was trained for (YaRN's factor included), None if the header doesn't say
    """

    emitted: int
    total: int
    per_sequence: int
    per_slot: int
    slots: int
    unified: bool
    cap: int | None
    train: int | None

    @property
    def overcommitted(self) -> bool:
        """True when the slots together may ask for more than the pool has: a full pool fails every request."""
        return self.unified and self.per_slot * self.slots > self.total

    @property
    def wasted(self) -> int:
        """Cells that are allocated and that no slot can use, since the training length caps each slot."""
        return self.total - min(self.total, self.per_slot * self.slots)

    def as_json(self) -> dict[str, object]:
        """`plan --json` → context (contract.md)."""
        return {"total": self.total, "per_slot": self.per_slot, "slots": self.slots, "unified": self.unified}


def allocate(
    emitted: int, slots: int, unified: bool, *, cap: int | None = None, train: int | None = None
) -> ContextSplit:
    """What the engine makes of `-c emitted -np slots` with or without `-kvu`."""
    if unified:
        total = per_sequence = pad(emitted)
    else:
        per_sequence = pad(pad(emitted) // slots)
        total = per_sequence * slots
    caps = [per_sequence, *(limit for limit in (cap, train) if limit)]
    return ContextSplit(emitted, total, per_sequence, min(caps), slots, unified, cap, train)


def split_context(
    *, per_slot: int | None, total: int | None, slots: int, unified: bool, train: int | None = None
) -> ContextSplit:
    """The contract's table for a profile that gives `per_slot`, `total` or both. Raises ValueError for neither."""
    if per_slot is not None:
        cap = per_slot if unified else None
        if total is not None:
            return allocate(total, slots, unified, cap=cap, train=train)
        emitted = pad(per_slot * slots) if unified else pad(per_slot) * slots
        return allocate(emitted, slots, unified, cap=cap, train=train)
    if total is not None:
        # one slot of a unified pool may use all of it: a cap would say the same
        cap = total // slots if unified else None
        return allocate(total, slots, unified, cap=cap, train=train)
    raise ValueError("neither per_slot nor total is given: search for the largest context that fits")


def train_length(trained: int, *, scaling: str, factor: float, model_factor: float, original: int) -> int | None:
    """The tokens that the engine lets one slot use by training, None where the model's header doesn't say.

    Only YaRN with a factor other than the model's own raises it (src/llama-context.cpp:3893); linear scaling doesn't.
    `original` is the length before any stretching.
    """
    if not trained:
        return None
    if scaling == "yarn" and factor != model_factor:
        return int((original or trained) * factor)
    return trained
