"""What `--list-devices` prints, and how it and the probed devices become one list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.engine_devices import merge, parse_devices
from launcher.machine.types import Device, DeviceKind, Machine, Memory

MIB, GIB = 1 << 20, 1 << 30
RTX = Device(
    id="CUDA0",
    name="NVIDIA GeForce RTX 3090",
    kind=DeviceKind.DISCRETE,
    memory_total=24576 * MIB,
    memory_free=20 * GIB,
    memory_shared=0,
    vendor="nvidia",
    address="0000:01:00.0",
)
IGPU = Device(
    id="Vulkan0", name="Intel GPU [8086:46a6]", kind=DeviceKind.INTEGRATED, vendor="intel", address="0000:00:02.0"
)
HOST = Memory(total=64 * GIB, available=30 * GIB)


def test_the_list() -> None:
    text = (
        "load_backend: loaded CUDA backend\nAvailable devices:\n"
        "  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23500 MiB free)\n"
        "  Vulkan1: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23000 MiB free)\n"
        "  RPC0: 127.0.0.1:50052 (24105 MiB, 24105 MiB free)\n"
        "  BLAS: OpenBLAS (0 MiB, 0 MiB free)\n"
    )
    found = parse_devices(text)
    assert [(d.id, d.description, d.total) for d in found] == [
        ("CUDA0", "NVIDIA GeForce RTX 3090", 24124 * MIB),
        ("Vulkan1", "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560 * MIB),
        ("RPC0", "127.0.0.1:50052", 24105 * MIB),
        ("BLAS", "OpenBLAS", None),
    ]
    assert [(d.backend, d.vendor, d.kind) for d in found[:3]] == [
        ("CUDA", "nvidia", None),
        ("Vulkan", "amd", None),
        ("RPC", None, DeviceKind.REMOTE),
    ]


@pytest.mark.parametrize("text", ["", "Available devices:\n  (none)\n", "error: invalid argument: --list-devices\n"])
def test_an_empty_list(text: str) -> None:
    assert parse_devices(text) == ()


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    merge(Machine(devices=(RTX, IGPU), memory=HOST), parse_devices(text))


def test_a_known_device_keeps_what_the_probe_knows_better() -> None:
    listed = parse_devices("  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23500 MiB free)\n")
    (device,) = merge(Machine(devices=(RTX,)), listed).devices
    assert (device.id, device.usable) == ("CUDA0", True)
    assert (device.memory_total, device.memory_free, device.address) == (24576 * MIB, 20 * GIB, "0000:01:00.0")


def test_an_unknown_size_comes_from_the_engine() -> None:
    listed = parse_devices("  Vulkan0: Intel(R) Iris(R) Xe Graphics (ADL GT2) (32000 MiB, 31000 MiB free)\n")
    (device,) = merge(Machine(devices=(IGPU,), memory=HOST), listed).devices
    assert (device.memory_total, device.memory_free) == (32000 * MIB, 31000 * MIB)
    assert device.memory_shared == 32000 * MIB
    assert device.kind is DeviceKind.INTEGRATED


def test_the_engine_s_name_wins() -> None:
    """The probe numbers Vulkan devices by address, the engine cards first."""
    card = Device(
        id="Vulkan1",
        name="AMD Radeon RX 7900 XTX",
        kind=DeviceKind.DISCRETE,
        memory_total=24560 * MIB,
        vendor="amd",
        address="0000:03:00.0",
    )
    listed = parse_devices(
        "  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)\n"
        "  Vulkan1: Intel(R) Graphics (ADL GT2) (30000 MiB, 29000 MiB free)\n"
    )
    devices = merge(Machine(devices=(IGPU, card), memory=HOST), listed).devices
    assert [(d.id, d.address) for d in devices] == [("Vulkan1", "0000:00:02.0"), ("Vulkan0", "0000:03:00.0")]


def test_a_device_that_the_engine_lacks_is_not_usable_and_gives_up_its_id() -> None:
    listed = parse_devices("  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)\n")
    devices = merge(Machine(devices=(RTX, IGPU)), listed).devices
    assert [(d.id, d.usable) for d in devices] == [
        ("CUDA0", False),
        ("intel@0000:00:02.0", False),
        ("Vulkan0", True),
    ]


def test_one_gpu_under_two_backends_stands_once() -> None:
    listed = parse_devices(
        "  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23500 MiB free)\n"
        "  Vulkan0: NVIDIA GeForce RTX 3090 (24576 MiB, 23500 MiB free)\n"
    )
    machine = merge(Machine(devices=(RTX,)), listed)
    assert [device.id for device in machine.devices] == ["CUDA0"]
    assert machine.notes == ("the engine lists NVIDIA GeForce RTX 3090 as CUDA0 and as Vulkan0",)


def test_twins_pair_by_their_ids() -> None:
    twin = Device(**{**{f: getattr(RTX, f) for f in RTX.__slots__}, "id": "CUDA1", "address": "0000:02:00.0"})
    listed = parse_devices(
        "  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 1 MiB free)\n"
        "  CUDA1: NVIDIA GeForce RTX 3090 (24124 MiB, 2 MiB free)\n"
    )
    devices = merge(Machine(devices=(RTX, twin)), listed).devices
    assert [(d.id, d.address) for d in devices] == [("CUDA0", "0000:01:00.0"), ("CUDA1", "0000:02:00.0")]


def amd(id: str, address: str, mib: int) -> Device:
    """A card whose name the box does not know."""
    return Device(
        id=id,
        name="AMD GPU [1002:0000]",
        kind=DeviceKind.DISCRETE,
        memory_total=mib * MIB,
        vendor="amd",
        address=address,
    )


def test_memory_tells_nameless_cards_apart() -> None:
    machine = Machine(devices=(amd("Vulkan0", "0000:03:00.0", 24560), amd("Vulkan1", "0000:04:00.0", 8176)))
    listed = parse_devices(
        "  Vulkan0: AMD Radeon RX 7600 (RADV) (8176 MiB, 8000 MiB free)\n"
        "  Vulkan1: AMD Radeon RX 7900 XTX (RADV) (24560 MiB, 24000 MiB free)\n"
    )
    assert [(d.id, d.address) for d in merge(machine, listed).devices] == [
        ("Vulkan1", "0000:03:00.0"),
        ("Vulkan0", "0000:04:00.0"),
    ]


def test_twins_under_another_backend_s_names_pair_one_to_one() -> None:
    machine = Machine(devices=(amd("ROCm0", "0000:03:00.0", 24560), amd("ROCm1", "0000:04:00.0", 24560)))
    listed = parse_devices(
        "  Vulkan0: AMD Radeon RX 7900 XTX (24560 MiB, 1 MiB free)\n"
        "  Vulkan1: AMD Radeon RX 7900 XTX (24560 MiB, 1 MiB free)\n"
    )
    merged = merge(machine, listed)
    assert [(d.id, d.address) for d in merged.devices] == [("Vulkan0", "0000:03:00.0"), ("Vulkan1", "0000:04:00.0")]
    assert merged.notes == ()


def test_rpc_and_software_devices_are_added() -> None:
    listed = parse_devices(
        "  RPC0: 10.0.0.2:50052 (24105 MiB, 24100 MiB free)\n"
        "  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (65536 MiB, 65536 MiB free)\n"
    )
    rpc, software = merge(Machine(memory=HOST), listed).devices
    assert (rpc.id, rpc.name, rpc.kind, rpc.memory_free) == ("RPC0", "10.0.0.2:50052", DeviceKind.REMOTE, 24100 * MIB)
    assert (rpc.pcie, rpc.memory_shared, rpc.usable, rpc.source) == (None, None, True, "engine")
    assert (software.kind, software.memory_shared) == (DeviceKind.SOFTWARE, 65536 * MIB)
    assert software.memory_free == 30 * GIB  # the host has no more


@pytest.mark.parametrize(
    ("endpoint", "mib", "ours"),
    [
        ("127.0.0.1:50052", 65536, True),
        ("localhost:50052", 65535, True),
        ("[::1]:50052", 65536, True),
        ("127.0.0.1:50052", 24576, False),  # a GPU's worker on this box
        ("10.0.0.2:50052", 65536, False),  # a twin of this box
    ],
)
def test_a_worker_on_this_box_has_no_memory_of_its_own(endpoint: str, mib: int, ours: bool) -> None:
    listed = parse_devices(f"  RPC0: {endpoint} ({mib} MiB, {mib} MiB free)\n")
    (device,) = merge(Machine(memory=HOST), listed).devices
    assert device.memory_shared == (mib * MIB if ours else None)
    assert device.memory_free == (30 * GIB if ours else mib * MIB)
