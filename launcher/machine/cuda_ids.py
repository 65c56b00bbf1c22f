"""Which GPUs a CUDA process will see, in which order: CUDA_VISIBLE_DEVICES over the order of PCI addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from launcher.machine.types import Device


def number(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Drop what CUDA_VISIBLE_DEVICES hides, and give the rest the ids that CUDA will.

    By the addresses' order: the launcher starts the engine with CUDA_DEVICE_ORDER=PCI_BUS_ID, else CUDA would put the
    fastest first, by an order that only CUDA knows.
    """
    notes: list[str] = []
    if environ.get("CUDA_DEVICE_ORDER") == "FASTEST_FIRST" and len({device.name for device in devices}) > 1:
        notes.append(
            "CUDA_DEVICE_ORDER=FASTEST_FIRST with unlike GPUs: CUDA0, CUDA1, … may be other ones than shown here"
        )
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    visible = list(devices) if wanted is None else _visible(devices, wanted)
    if hidden := len(devices) - len(visible):
        notes.append(f"CUDA_VISIBLE_DEVICES={wanted!r} hides {hidden} GPU{'s' if hidden > 1 else ''}")
    numbered: list[Device] = []
    instances = 0
    for device in visible:
        if device.mig is not None:
            # one process gets one MIG instance; the others stand under their own name (CUDA_VISIBLE_DEVICES picks)
            instances += 1
            if instances > 1:
                numbered.append(replace(device, id=device.uuid or device.id))
                continue
        ready = sum(1 for d in numbered if d.id.startswith("CUDA"))
        usable = device.source != "pci" or device.suspended
        numbered.append(replace(device, id=f"CUDA{ready}") if usable else device)
    return tuple(numbered), tuple(notes)


def _visible(devices: Sequence[Device], wanted: str) -> list[Device]:
    """As CUDA reads the list: indices, or beginnings of UUIDs; the first that is neither ends it."""
    chosen: list[Device] = []
    for token in (part.strip() for part in wanted.split(",")):
        found: Device | None = None
        if re.fullmatch(r"\d{1,4}", token, re.ASCII):
            whole = [device for device in devices if device.mig is None]
            found = whole[int(token)] if int(token) < len(whole) else None
        elif token.startswith(("GPU-", "MIG-")):
            matches = [device for device in devices if (device.uuid or "").startswith(token)]
            found = matches[0] if len(matches) == 1 else None
        if found is None or found in chosen:
            break
        chosen.append(found)
    return chosen
