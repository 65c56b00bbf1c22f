"""What measured copies say about a device's link, in sentences for a person. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.machine.bandwidth import Bandwidth
from launcher.machine.types import Device
from launcher.units import format_bytes

_GAIN = 1.1  # below it, pinned and pageable are the same within what a busy box wobbles
_SATURATED = 0.75  # of a link's rate after its line code; packet headers take 10 to 20 % (6.67 of 7.88 GB/s seen)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures say. `gain` is pinned over pageable by (direction, size)."""

    gain: dict[tuple[str, int], float]
    link_share: float | None
    """The plateau over what the slowest link can carry."""
    sentences: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """The object `verdict`."""
        gains = [{"direction": d, "bytes": size, "ratio": ratio} for (d, size), ratio in self.gain.items()]
        return {"gain": gains, "link_share": self.link_share, "sentences": list(self.sentences)}


def judge(measured: Bandwidth, device: Device) -> Verdict:
    """The ReBAR state and the figures, in sentences.

    The ratio of pinned to pageable is not a test for ReBAR. A pageable copy is staged through a pinned buffer by the
    driver, a fixed cost that shows on small copies (> 1.1 at 1 MiB) and drowns on large ones (about 1.0 at 64 MiB,
    where the link is full); both go by DMA, which never uses the CPU's window onto the card. (An RTX 3090 with ReBAR
    on, at gen 3 x8: 1.15 and 1.43 at 1 MiB, 1.02 at 64 MiB.) ReBAR is read from the size of the BAR.
    """
    gain: dict[tuple[str, int], float] = {}
    for direction in ("h2d", "d2h"):
        for size in sorted({copy.size for copy in measured.copies}):
            pinned, pageable = (measured.rate(direction, host, size) for host in ("pinned", "pageable"))
            if pinned and pageable:
                gain[direction, size] = round(pinned / pageable, 3)
    limit = device.pcie.gbps_max if device.pcie else None
    share = round(measured.plateau / limit, 3) if measured.plateau and limit else None
    sentences = [*_about_rebar(device), *_about_link(measured, device, share), *_about_gain(gain)]
    return Verdict(gain, share, tuple(sentences))


def _about_rebar(device: Device) -> list[str]:
    words = {
        "on": "ReBAR is on: the BAR spans all of the device's memory.",
        "partial": "ReBAR is partial: the BAR spans some of the device's memory, more than the 256 MiB of old.",
        "off": "ReBAR is off (a BAR of 256 MiB or less). Copies by DMA, as the engine makes them, do not need it.",
    }
    return [words[device.rebar]] if device.rebar is not None else []


def _about_link(measured: Bandwidth, device: Device, share: float | None) -> list[str]:
    if measured.plateau is None:
        return []
    rate = f"{measured.plateau:.2f} GB/s host to device"
    if share is None:
        return [f"{rate}."]
    link = device.pcie
    where = f" at {link.bottleneck}" if link and link.bottleneck and link.bottleneck != device.address else ""
    name = f"the link{where} (gen {link.gen_max} x{link.width})" if link else "the link"
    if share > 1.05:
        return [f"{rate}: more than {name} should carry; what was read about the link is wrong."]
    if share >= _SATURATED:
        return [f"{rate}: {share:.0%} of what {name} carries, so the link is full and nothing else is in the way."]
    return [
        f"{rate}: only {share:.0%} of what {name} carries; look for a busy box, another NUMA node, or power saving."
    ]


def _about_gain(gain: dict[tuple[str, int], float]) -> list[str]:
    if not gain:
        return []
    sizes = sorted({size for _, size in gain})
    small, large = sizes[0], sizes[-1]
    at_small = max(ratio for (_, size), ratio in gain.items() if size == small)
    at_large = max(ratio for (_, size), ratio in gain.items() if size == large)
    if at_small > _GAIN and at_large <= _GAIN:
        return [
            f"Pinned memory is {at_small:.2f}× as fast at {format_bytes(small)} and no faster at {format_bytes(large)}:"
            " small copies are bound by latency and staging, so small tiles belong in pinned memory."
        ]
    if at_large > _GAIN:
        return [
            f"Pinned memory is {at_large:.2f}× as fast even at {format_bytes(large)}: staging, not the link, limits "
            "pageable copies here, so everything that is streamed belongs in pinned memory."
        ]
    return ["Pinned memory gains nothing at any size here."]
