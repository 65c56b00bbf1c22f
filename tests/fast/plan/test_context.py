from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.plan.context import allocate, pad, split_context


def test_six_split_slots_round_up_as_the_engine_does() -> None:
    split = split_context(per_slot=None, total=163840, slots=6, unified=False)
    assert (split.emitted, split.total, split.per_slot) == (163840, 164352, 27392)
    assert split.as_json() == {"total": 164352, "per_slot": 27392, "slots": 6, "unified": False}


@pytest.mark.parametrize(
    ("per_slot", "total", "slots", "unified", "emitted", "allocated", "usable", "cap"),
    [
        (1000, None, 3, False, 3072, 3072, 1024, None),  # pad(P)·S
        (1000, None, 3, True, 3072, 3072, 1000, 1000),  # pad(P·S), each slot capped at P
        (None, 1000, 3, False, 1000, 1536, 512, None),  # rounds up, whatever the engine's log says (C2)
        (None, 1000, 3, True, 1000, 1024, 333, 333),
        (2048, 8192, 4, True, 8192, 8192, 2048, 2048),
        (None, 512, 8, False, 512, 2048, 256, None),
        (32768, None, 1, False, 32768, 32768, 32768, None),
    ],
)
def test_the_table_of_the_contract(
    per_slot: int | None, total: int | None, slots: int, unified: bool,
    emitted: int, allocated: int, usable: int, cap: int | None,
) -> None:  # fmt: skip
    split = split_context(per_slot=per_slot, total=total, slots=slots, unified=unified)
    assert (split.emitted, split.total, split.per_slot, split.cap) == (emitted, allocated, usable, cap)


def test_the_training_length_caps_a_slot_but_not_the_allocation() -> None:
    split = allocate(20000, 1, False, train=8192)
    assert (split.total, split.per_slot, split.wasted) == (20224, 8192, 12032)


def test_a_pool_smaller_than_its_promises_is_overcommitted() -> None:
    assert split_context(per_slot=4096, total=8192, slots=4, unified=True).overcommitted
    assert not split_context(per_slot=2048, total=8192, slots=4, unified=True).overcommitted
    assert not split_context(per_slot=None, total=8192, slots=3, unified=True).overcommitted


def test_neither_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="largest"):
        split_context(per_slot=None, total=None, slots=1, unified=False)


@given(tokens=st.integers(1, 1 << 20), slots=st.integers(1, 256), unified=st.booleans(), by_slot=st.booleans())
def test_what_is_promised_is_allocated(tokens: int, slots: int, unified: bool, by_slot: bool) -> None:
    per_slot, total = (tokens, None) if by_slot else (None, max(tokens, slots))
    split = split_context(per_slot=per_slot, total=total, slots=slots, unified=unified)
    assert split.per_slot * slots <= split.total
    assert split.total >= split.emitted
    assert split.total % 256 == 0
    if by_slot:
        assert tokens <= split.per_slot < pad(tokens) + 256
