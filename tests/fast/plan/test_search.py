"""The largest context, and the front of settings: nothing on it is beaten, everything on it fits, and it is fast."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.plan.context import allocate
from launcher.plan.kv import HOST, KvSettings
from launcher.plan.ledger import Demand, ledger, needs
from launcher.plan.placement import on_host, place
from launcher.plan.quality import divergence, quality_class
from launcher.plan.search import (
    RESIDENCIES,
    WITH_LAYERS,
    Candidate,
    Residency,
    Space,
    Speeds,
    context_steps,
    largest,
    most_context,
    pareto,
    search,
    spread,
    thinned,
    useful_tiers,
)
from launcher.plan.verdict import Room, margin
from launcher.profile.tier import CACHE_TYPES, Tier
from launcher.units import GIB, MIB

SPEEDS = Speeds({HOST: 20e9, "CUDA0": 900e9}, {"CUDA0": 12e9})


def _demand(shape, placement=None, **more) -> Demand:
    more.setdefault("prompt_cache", 0)
    more.setdefault("checkpoints", 0)
    return Demand(shape, allocate(8192, 1, False), KvSettings(), placement or on_host(shape), **more)


@given(st.integers(0, 1 << 20), st.none() | st.integers(1, 1 << 20))
def test_largest(capacity, limit):
    found = largest(lambda size: size <= capacity, limit)
    if limit is not None and limit <= capacity:
        assert found == limit
    else:
        assert found == (capacity // 256 * 256 or None)


@given(st.integers(0, 1 << 17), st.integers(0, 1 << 17), st.integers(256, 1 << 17))
def test_what_only_grows_makes_way_for_a_conversation(capacity, growth, limit):
    def fits(size, with_growth):
        return size + (growth if with_growth else 0) <= capacity

    found = most_context(fits, limit)
    comfortable = largest(lambda size: fits(size, True), limit) or 0
    if found is None:
        assert capacity < 256
    else:
        assert found >= comfortable and fits(found, False)
        assert found == comfortable or found <= 4096


def test_more_memory_never_means_less_context():
    found = [most_context(lambda size, growth: size + (2000 if growth else 0) <= room, 8192) or 0  # noqa: B023
             for room in range(256, 12000, 100)]  # fmt: skip
    assert found == sorted(found)
    assert found[0] == 256 and found[-1] == 8192


def test_it_asks_few_times():
    asked = []
    largest(lambda size: asked.append(size) or size <= 100_000, None)
    assert len(asked) < 24


def test_candidates_need_what_the_ledger_says(gemma3):
    """The straight line through two contexts is the ledger's own figure everywhere between and beyond."""
    placement = place(gemma3, devices=["CUDA0"], gpu_layers=10)
    demand = _demand(gemma3, placement)
    rooms = {HOST: Room(None, None), "CUDA0": Room(None, None)}
    space = Space([Tier("f16", "f16"), Tier("q8_0", "q4_0")], (WITH_LAYERS,), (1, 3), (4096, 16384, 32768))
    front = search(demand, rooms, SPEEDS, space)
    assert front.candidates
    for candidate in front.candidates:
        context = allocate(candidate.per_slot * candidate.slots, candidate.slots, False)
        exact = needs(
            ledger(Demand(gemma3, context, KvSettings(tier=candidate.tier), placement, prompt_cache=0, checkpoints=0))
        )
        for device, size in candidate.need.items():
            assert size == pytest.approx(exact[device], abs=4096), (candidate, device)


def test_everything_on_the_front_fits(smollm2):
    rooms = {HOST: Room(GIB, 600 * MIB)}
    front = search(_demand(smollm2), rooms, SPEEDS, Space(useful_tiers(CACHE_TYPES)))
    assert 0 < front.fitting < front.tried
    for candidate in front.candidates:
        assert candidate.need[HOST] <= 600 * MIB - margin(600 * MIB)


def test_nothing_fits_nothing_is_found(smollm2):
    front = search(_demand(smollm2), {HOST: Room(GIB, 10 * MIB)}, SPEEDS, Space([Tier("f16", "f16")]))
    assert front.candidates == () and front.fitting == 0 and front.tried > 0


def _candidates(count: int) -> list[Candidate]:
    dice, tier, losses = random.Random(count), Tier("f16", "f16"), (0.0, 0.1)
    return [
        Candidate(
            tier, WITH_LAYERS, dice.randint(1, 4), dice.randint(1, 9), dice.randint(1, 9), dice.choice(losses), {}
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 7, 60, 400])
def test_the_front_is_the_front(count):
    def beats(a, b):
        mine = (a.per_slot, a.slots, a.speed, -a.loss)
        other = (b.per_slot, b.slots, b.speed, -b.loss)
        return mine != other and all(x >= y for x, y in zip(mine, other, strict=True))

    candidates = _candidates(count)
    front = pareto(candidates)
    figures = {(c.per_slot, c.slots, c.speed, c.loss) for c in front}
    assert len(figures) == len(front)
    expected = {
        (c.per_slot, c.slots, c.speed, c.loss) for c in candidates if not any(beats(other, c) for other in candidates)
    }
    assert figures == expected


def test_ten_thousand_candidates_a_second(gemma3):
    demand = _demand(gemma3, place(gemma3, devices=["CUDA0"]))
    tiers = [Tier(k, v) for k in CACHE_TYPES for v in CACHE_TYPES]
    rooms = {HOST: Room(24 * GIB, 8 * GIB), "CUDA0": Room(GIB, GIB)}
    began = time.process_time()
    front = search(demand, rooms, SPEEDS, Space(tiers, RESIDENCIES, (1, 2, 4, 8)))
    rate = front.tried / (time.process_time() - began)
    assert front.tried > 10_000
    assert rate > 10_000, f"{rate:.0f} a second"


def test_a_longer_context_is_slower_and_a_smaller_tier_faster(smollm2):
    space = Space([Tier("f16", "f16"), Tier("q8_0", "q8_0")], slots=(1,), per_slots=(2048, 8192))
    found = search(_demand(smollm2), {}, SPEEDS, space).candidates
    speed = {(str(c.tier), c.per_slot): c.speed for c in found}
    assert speed["q8_0", 8192] > speed["f16", 8192]
    assert speed["q8_0", 2048] > speed["q8_0", 8192]


def test_speed_is_bytes_over_bandwidth(smollm2):
    space = Space([Tier("f16", "f16")], slots=(1,), per_slots=(8192,))
    (found,) = search(_demand(smollm2), {}, Speeds({HOST: 10e9}, {}), space).candidates
    read = smollm2.tensor_bytes + 180 * MIB
    assert 1 / found.speed == pytest.approx(read / 10e9, rel=0.05)


def test_a_cache_on_the_host_is_read_there_or_over_the_link(smollm2):
    demand = _demand(smollm2, place(smollm2, devices=["CUDA0"]))

    def speed(residency):
        space = Space([Tier("f16", "f16")], (residency,), (1,), (8192,))
        return search(demand, {}, SPEEDS, space).candidates[0].speed

    near, half, host = speed(WITH_LAYERS), speed(Residency("layers", 0.5)), speed(Residency("cpu", 0.0))
    assert near > half > host > speed(Residency("stream", 0.0, attends_on_host=False))


def test_spreading_keeps_a_share(smollm2):
    placement = place(smollm2, devices=["CUDA0"])
    assert spread(placement, Residency("layers", 0.5)).cache.count("CUDA0") == 15
    assert spread(placement, WITH_LAYERS).cache == placement.cache
    assert set(spread(placement, Residency("cpu", 0.0)).cache) == {HOST}


def test_steps_end_at_the_training_length(smollm2, gemma3):
    assert context_steps(smollm2) == (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)
    assert context_steps(gemma3)[-1] == 32768


@pytest.mark.parametrize(
    ("tier", "measured", "name"),
    [
        ("f16:f16", 0.0, "exact"),
        ("q8_0:q8_0", 0.0039 - 0.0034, "near-exact"),
        ("q8_0:q4_0", 0.0101 - 0.0034, "good"),
        ("iq4_nl:iq4_nl", 0.0427 - 0.0034, "fair"),
        ("q4_0:q4_0", 0.0522 - 0.0034, "fair"),
        ("turbo3:turbo3", 0.244 - 0.0034, "poor"),
        ("turbo2:turbo2", 1.21 - 0.0034, "broken"),
    ],
)
def test_quality_follows_the_measured_divergence(tier, measured, name):
    k, v = tier.split(":")
    assert divergence(Tier(k, v)) == pytest.approx(measured, rel=0.25, abs=0.001)
    assert quality_class(Tier(k, v)) == name


def test_exact_tokens_raise_the_class():
    assert quality_class(Tier("q4_0", "q4_0"), exact_tokens=True) == "good"


def test_useful_tiers_are_of_the_engine():
    assert {str(tier) for tier in useful_tiers({"f16", "q8_0", "q4_0"})} == {"f16", "q8_0", "q4_0", "q8_0:q4_0"}
    assert not any("turbo" in str(tier) for tier in useful_tiers(set(CACHE_TYPES) - {"turbo2", "turbo3", "turbo4"}))


def test_thinned_rows_differ_to_the_eye():
    def row(per_slot, tier, speed, loss, slots=1):
        return Candidate(Tier(tier, tier), WITH_LAYERS, slots, per_slot, speed, loss, {})

    rows = [
        row(8192, "f16", 50.0, 0.0),
        row(8192, "q8_0", 50.5, 0.01),  # as fast as f16, and coarser
        row(8192, "q4_0", 80.0, 0.1),
        row(7168, "f16", 54.0, 0.0),  # hardly faster for less context
        row(4096, "f16", 70.0, 0.0),
        row(4096, "f16", 69.0, 0.0, slots=2),  # another count of slots is another thing
    ]
    shown = [(one.per_slot, str(one.tier), one.slots) for one in thinned(rows)]
    assert shown == [(8192, "f16", 1), (8192, "q4_0", 1), (4096, "f16", 2)]
