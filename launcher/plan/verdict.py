"""Fits, tight or no, for each device, with the figure that would make it fit and the one key to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from launcher.plan.kv import HOST
from launcher.plan.ledger import LedgerLine
from launcher.units import MIB, format_bytes

# Of what is free, kept clear: allocators round up, other programs grow. Below it the verdict is tight.
_MARGIN_SHARE = 0.02
_MARGIN_LEAST = 128 * MIB


class Fit(StrEnum):
    """`tight`: it starts, but growth or a busy page cache can push it over."""

    FITS = "fits"
    TIGHT = "tight"
    NO = "no"

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return {"fits": 0, "tight": 1, "no": 2}[self.value]


@dataclass(frozen=True, slots=True)
class Room:
    """What one device has. None: could not be learnt, and nothing is claimed of it.

    reserved    promised to other starts that are under way
    host_share  bytes of `total` that are host RAM: what is taken of them is taken from the host as well
    field       where a machine's description says what is free (`probe --json`)
    """

    total: int | None
    free: int | None
    reserved: int = 0
    host_share: int = 0
    field: str = ""

    @property
    def usable(self) -> int | None:
        """What a start may take."""
        return None if self.free is None else max(self.free - self.reserved, 0)


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """One device's sum against its room.

    need, start  everything, growth included; what is taken at the start
    reclaimable  the part of `need` that the kernel may drop
    short        bytes that are missing (0 when it fits)
    item, key    the largest consumer that a key can change, and that key
    advice       what to write instead, as a sentence
    unknown      the field that a judgement would need and that the machine's description lacks; "" when it was judged
    """

    device: str
    total: int | None
    free: int | None
    need: int
    start: int
    reclaimable: int
    fit: Fit
    short: int = 0
    item: str = ""
    key: str = ""
    advice: str = ""
    unknown: str = ""

    def as_json(self) -> dict[str, object]:
        """`plan --json` → devices (contract.md), and more."""
        return {
            "device": self.device,
            "total": self.total,
            "free": self.free,
            "need": self.need,
            "at_start": self.start,
            "reclaimable": self.reclaimable,
            "verdict": str(self.fit),
            "short": self.short,
            "key": self.key or None,
            "advice": self.advice or None,
            "unknown": self.unknown or None,
        }


def judge(
    lines: Sequence[LedgerLine], rooms: Mapping[str, Room], tokens: Mapping[str, int] = MappingProxyType({})
) -> tuple[DeviceVerdict, ...]:
    """A verdict for every device that the ledger names, in its order. `tokens`: the context a slot that would fit on a
    device, where someone found it out; a share of what it is now, where nobody did."""
    devices = dict.fromkeys(line.device for line in lines)
    rooms = _without_borrowed(lines, rooms)
    return tuple(
        _judge(
            device,
            [line for line in lines if line.device == device],
            rooms.get(device, Room(None, None)),
            tokens.get(device),
        )
        for device in devices
    )


def _without_borrowed(lines: Sequence[LedgerLine], rooms: Mapping[str, Room]) -> Mapping[str, Room]:
    """The rooms with the host's less what devices without memory of their own (APUs, unified boxes) take of it."""
    sharing = {device: room.host_share for device, room in rooms.items() if room.host_share and device != HOST}
    host = rooms.get(HOST)
    if not sharing or host is None:
        return rooms
    taken = dict.fromkeys(sharing, 0)
    for line in lines:
        if line.device in taken:
            taken[line.device] += line.bytes
    borrowed = sum(min(taken[device], share) for device, share in sharing.items())
    return {**rooms, HOST: replace(host, reserved=host.reserved + borrowed)}


def overall(verdicts: Sequence[DeviceVerdict]) -> Fit:
    """The worst of them."""
    return max((verdict.fit for verdict in verdicts), key=lambda fit: fit.rank, default=Fit.FITS)


def margin(free: int) -> int:
    """What is kept clear of `free`."""
    return max(int(free * _MARGIN_SHARE), min(_MARGIN_LEAST, free // 8))


def fit_of(need: int, start: int, reclaimable: int, free: int | None) -> tuple[Fit, int]:
    """The verdict and the bytes that are missing to a comfortable fit.

    Unknown room is taken to suffice: nothing can be said. What only grows with use does not forbid a start, and mapped
    weights can be read again from the disk: both make it tight.
    """
    if free is None:
        return Fit.FITS, 0
    comfortable = free - margin(free)
    if need <= comfortable:
        return Fit.FITS, 0
    if start - reclaimable <= free:
        return Fit.TIGHT, need - comfortable
    return Fit.NO, start - reclaimable - free


def _judge(device: str, lines: Sequence[LedgerLine], room: Room, tokens: int | None) -> DeviceVerdict:
    need = sum(line.bytes for line in lines)
    start = sum(line.bytes for line in lines if not line.grows)
    reclaimable = sum(line.reclaimable for line in lines)
    # where what is free is not known, more than there is at all can still be told from what may fit
    room_for = room.total if room.usable is None and start - reclaimable > (room.total or start) else room.usable
    fit, short = fit_of(need, start, reclaimable, room_for)
    unknown = room.field if room.usable is None else ""
    base = DeviceVerdict(device, room.total, room.free, need, start, reclaimable, fit, short, unknown=unknown)
    if fit is Fit.FITS:
        return base
    line = _to_change(lines, short, growth=fit is Fit.TIGHT)
    spilled = start - room.usable if fit is Fit.TIGHT and room.usable is not None else 0
    if line is None:
        return base if device == HOST else replace(base, key="compute.backend", advice=_DRIVER.format(missing(short)))
    return replace(base, item=line.item, key=line.key, advice=_advice(line, short, spilled, tokens))


# what a person gives up first, where it is enough: a cap on growth, then context, then batch, then layers
_FIRST = ("prompt-cache", "checkpoints", "kv", "compute", "mmproj", "draft", "recurrent", "lora", "weights")


def _to_change(lines: Sequence[LedgerLine], short: int, *, growth: bool) -> LedgerLine | None:
    """The first line, in the order of what is missed least, that alone can give what is missing; else the largest."""
    changeable = [line for line in lines if line.key and line.item in _FIRST and (growth or not line.grows)]
    changeable = [line for line in changeable if line.item != "weights" or line.device != HOST]
    ranked = sorted(changeable, key=lambda line: _FIRST.index(line.item))
    enough = [line for line in ranked if line.bytes - line.reclaimable >= short]
    return enough[0] if enough else max(changeable, key=lambda line: line.bytes, default=None)


_DRIVER = '{} for its driver alone: free memory there, or write backend = "cpu"'


def missing(short: int) -> str:
    """How much is missing, in words."""
    return f"{format_bytes(short)} too much"


def _advice(line: LedgerLine, short: int, spilled: int, tokens: int | None) -> str:
    too_much = missing(short)
    if spilled > 0:
        too_much += f" ({format_bytes(spilled)} of the mapped weights would be read from the disk again and again)"
    left = line.bytes - short
    if left <= 0:
        return f"{too_much}; the largest part that can change is {line.item} ({line.key}), and alone it is not enough"
    share = f"{100 * left // line.bytes} %"
    words = {
        "prompt-cache": f'set {line.key} to "{left // MIB}MiB" or less',
        "checkpoints": f"lower {line.key} to {share} of what it is",
        "kv": f"lower {line.key} to {tokens or f'{share} of what it is'}, or take a smaller kv.tier",
        "compute": f"lower {line.key} to {share} of what it is",
        "weights": f"lower {line.key}: {share} of these weights fit",
        "recurrent": f"lower {line.key}: {share} of the states fit",
    }
    return f"{too_much}: {words.get(line.item, f'leave out {line.key}')}"
