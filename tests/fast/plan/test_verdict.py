"""Fits, tight, no; and the one key that would change it."""

from __future__ import annotations

import pytest

from launcher.plan.kv import HOST
from launcher.plan.ledger import LedgerLine, Source
from launcher.plan.verdict import Fit, Room, fit_of, judge, margin, overall
from launcher.units import GIB, MIB


def _line(item, size, key="", device=HOST, reclaimable=0, grows=False):
    return LedgerLine(item, device, size, Source.FORMULA, reclaimable, "x", key, grows)


@pytest.mark.parametrize(
    ("need", "start", "reclaimable", "free", "fit"),
    [
        (GIB, GIB, 0, 8 * GIB, Fit.FITS),
        (8 * GIB, 8 * GIB, 0, 8 * GIB, Fit.TIGHT),  # to the last byte
        (8 * GIB + 1, 8 * GIB + 1, 0, 8 * GIB, Fit.NO),
        (9 * GIB, 2 * GIB, 0, 8 * GIB, Fit.TIGHT),  # only what grows later is too much
        (9 * GIB, 9 * GIB, 3 * GIB, 8 * GIB, Fit.TIGHT),  # part of it is a mapped file
        (12 * GIB, 12 * GIB, 3 * GIB, 8 * GIB, Fit.NO),
        (100 * GIB, 100 * GIB, 0, None, Fit.FITS),  # of what is not known nothing is claimed
    ],
)
def test_fit(need, start, reclaimable, free, fit):
    assert fit_of(need, start, reclaimable, free)[0] is fit


def test_what_is_missing():
    assert fit_of(12 * GIB, 12 * GIB, 3 * GIB, 8 * GIB) == (Fit.NO, GIB)
    need = 8 * GIB
    short = fit_of(need, need, 0, 8 * GIB)[1]
    assert short == margin(8 * GIB) and fit_of(need - short, need - short, 0, 8 * GIB) == (Fit.FITS, 0)


def test_the_key_to_change_is_what_is_missed_least():
    lines = [_line("weights", 4 * GIB, "model.path"), _line("kv", 3 * GIB, "context.per_slot")]
    lines.append(_line("prompt-cache", 2 * GIB, "kv.reuse.ram", grows=True))
    (tight,) = judge(lines, {HOST: Room(16 * GIB, 8 * GIB)})
    assert (tight.fit, tight.key) == (Fit.TIGHT, "kv.reuse.ram")
    assert 'set kv.reuse.ram to "' in tight.advice
    (no,) = judge(lines, {HOST: Room(16 * GIB, 6 * GIB)})
    assert (no.fit, no.key, no.short) == (Fit.NO, "context.per_slot", GIB)
    assert "66 %" in no.advice


def test_following_the_advice_fits():
    lines = [_line("weights", 4 * GIB), _line("prompt-cache", 4 * GIB, "kv.reuse.ram", grows=True)]
    room = {HOST: Room(16 * GIB, 7 * GIB)}
    (tight,) = judge(lines, room)
    size = int(tight.advice.partition('to "')[2].partition("MiB")[0]) * MIB
    (after,) = judge([lines[0], _line("prompt-cache", size, "kv.reuse.ram", grows=True)], room)
    assert after.fit is Fit.FITS


def test_when_no_key_alone_is_enough():
    lines = [_line("weights", 40 * GIB), _line("kv", GIB, "context.per_slot")]
    (no,) = judge(lines, {HOST: Room(16 * GIB, 8 * GIB)})
    assert no.fit is Fit.NO and "alone it is not enough" in no.advice


def test_mapped_weights_that_do_not_stay():
    lines = [_line("weights", 9 * GIB, reclaimable=9 * GIB), _line("kv", GIB, "context.per_slot")]
    (tight,) = judge(lines, {HOST: Room(8 * GIB, 8 * GIB)})
    assert tight.fit is Fit.TIGHT and "read from the disk again and again" in tight.advice


def test_what_others_were_promised_is_not_free():
    lines = [_line("kv", 5 * GIB, "context.per_slot")]
    assert judge(lines, {HOST: Room(8 * GIB, 8 * GIB)})[0].fit is Fit.FITS
    assert judge(lines, {HOST: Room(8 * GIB, 8 * GIB, reserved=4 * GIB)})[0].fit is Fit.NO


def test_each_device_is_judged_alone():
    lines = [_line("kv", 5 * GIB, "context.per_slot", "CUDA0"), _line("kv", GIB, "context.per_slot")]
    verdicts = judge(lines, {"CUDA0": Room(4 * GIB, 4 * GIB), HOST: Room(8 * GIB, 8 * GIB)})
    assert [(v.device, v.fit) for v in verdicts] == [("CUDA0", Fit.NO), (HOST, Fit.FITS)]
    assert overall(verdicts) is Fit.NO
    assert overall(verdicts[1:]) is Fit.FITS and overall(()) is Fit.FITS
    assert verdicts[0].as_json()["verdict"] == "no"


def test_weights_on_a_device_can_go_to_the_host():
    lines = [_line("weights", 10 * GIB, "compute.gpu_layers", "CUDA0"), _line("kv", GIB, "context.per_slot", "CUDA0")]
    (no,) = judge(lines, {"CUDA0": Room(8 * GIB, 8 * GIB)})
    assert no.key == "compute.gpu_layers" and "70 % of these weights fit" in no.advice


def test_a_device_without_room_for_its_driver_says_what_to_do():
    lines = [LedgerLine("reserve", "CUDA0", 512 * MIB, Source.FORMULA, 0, "", "compute.devices")]
    (found,) = judge(lines, {"CUDA0": Room(24 * GIB, 100 * MIB)})
    assert found.fit is Fit.NO and found.key == "compute.backend"
    assert "412.0 MiB too much for its driver" in found.advice and '"cpu"' in found.advice


def test_memory_that_a_device_shares_with_the_host_counts_once():
    """An APU: the 6 GiB on the device and the 6 GiB on the host come out of the same 10 GiB of RAM."""
    lines = [_line("weights", 6 * GIB, device="Vulkan0"), _line("kv", 6 * GIB, "context.per_slot")]
    rooms = {HOST: Room(16 * GIB, 10 * GIB), "Vulkan0": Room(8 * GIB, 8 * GIB, host_share=8 * GIB)}
    device, host = judge(lines, rooms)
    assert (device.device, device.fit) == ("Vulkan0", Fit.FITS)
    assert (host.fit, host.short) == (Fit.NO, 2 * GIB)
    own = judge(lines, {**rooms, "Vulkan0": Room(8 * GIB, 8 * GIB)})
    assert overall(own) is Fit.FITS


def test_what_is_not_known_is_named():
    lines = [_line("kv", GIB), _line("weights", GIB, device="CUDA0")]
    rooms = {
        HOST: Room(8 * GIB, None, field="memory.available"),
        "CUDA0": Room(None, None, field="devices[CUDA0].memory_free"),
    }
    host, card = judge(lines, rooms)
    assert (host.fit, host.unknown) == (Fit.FITS, "memory.available")
    assert card.as_json()["unknown"] == "devices[CUDA0].memory_free"
    (known,) = judge(lines[:1], {HOST: Room(8 * GIB, 8 * GIB, field="memory.available")})
    assert known.unknown == "" and known.as_json()["unknown"] is None


def test_more_than_there_is_cannot_fit_whatever_is_free():
    (card,) = judge([_line("kv", 9 * GIB, "context.per_slot", device="CUDA0")], {"CUDA0": Room(8 * GIB, None)})
    assert card.fit is Fit.NO and card.short == GIB


def test_a_context_that_was_found_out_is_named_instead_of_a_share():
    lines = [_line("kv", 9 * GIB, "context.per_slot")]
    rooms = {HOST: Room(8 * GIB, 8 * GIB)}
    assert "per_slot to 88 % of what it is" in judge(lines, rooms)[0].advice
    assert "per_slot to 7168, or" in judge(lines, rooms, {HOST: 7168})[0].advice
