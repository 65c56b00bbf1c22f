"""NVIDIA GPUs through a stand-in for NVML, and what stands without it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.machine import nvidia, pci
from launcher.machine.pci import NVIDIA
from launcher.machine.tree import Tree
from launcher.machine.types import Device, DeviceKind, GpuProcess, LinkState, Memory, Rebar

MIB, GIB = 1 << 20, 1 << 30
HOST = Memory(total=128 * GIB, available=100 * GIB)
SLOT = "pci0000:00/0000:00:01.0"


def read(box: Any, api: Any, environ: dict[str, str] | None = None, **facts: Any) -> tuple[list[Device], list[str]]:
    tree = Tree(box.root)
    devices, notes = nvidia.read_devices(tree, pci.gpus(tree), HOST, environ or {}, api, **facts)
    return list(devices), list(notes)


def test_one_card(box: Any, nvml: Any, gpu: Any) -> None:
    (device,), notes = read(box, nvml(gpu(compute=[(7, GIB), (9, None)], graphics=[(7, GIB), (3, 2 * MIB)])))
    assert (device.id, device.name, device.kind) == ("CUDA0", "NVIDIA GeForce RTX 3090", DeviceKind.DISCRETE)
    assert (device.memory_total, device.memory_free) == (24 * GIB, 20 * GIB)
    assert (device.memory_reserved, device.memory_shared) == (400 * MIB, 0)
    assert device.memory_gbps == 936.1
    assert (device.compute, device.uuid, device.address) == ("8.6", "GPU-11111111-aaaa", "0000:01:00.0")
    assert device.driver == "nvidia 580.65.06, CUDA 13.0"
    assert device.rebar is Rebar.ON
    assert device.processes == (GpuProcess(3, 2 * MIB), GpuProcess(7, GIB), GpuProcess(9, None))
    assert notes == []


def test_the_link_by_nvml_where_sysfs_has_none(box: Any, nvml: Any, gpu: Any) -> None:
    (device,), _ = read(box, nvml(gpu(gen=(1, 4))))
    assert device.pcie is not None
    assert (device.pcie.gen, device.pcie.gen_max, device.pcie.state) == (1, 4, LinkState.IDLE)
    assert device.pcie.gbps_max == 31.51


def test_the_link_by_sysfs_where_it_has_one(box: Any, nvml: Any, gpu: Any) -> None:
    """NVML sees the card's own link; a narrower one stands nearer to the root."""
    up = f"{SLOT}/0000:01:00.0"
    down = f"{up}/0000:02:00.0"
    box.bridge(SLOT, vendor=0x8086, speed=("8.0 GT/s", "8.0 GT/s"), width=(8, 8))
    box.bridge(up, vendor=0x10B5, speed=("8.0 GT/s", "8.0 GT/s"), width=(8, 16))
    box.bridge(down, vendor=0x10B5, speed=("16.0 GT/s", "16.0 GT/s"), width=(16, 16))
    box.function(f"{down}/0000:03:00.0", vendor=NVIDIA, speed=("16.0 GT/s", "16.0 GT/s"), width=(16, 16))
    (device,), _ = read(box, nvml(gpu(address="00000000:03:00.0")))
    assert device.pcie is not None
    assert (device.pcie.gen_max, device.pcie.width_max, device.pcie.bottleneck) == (3, 8, "0000:01:00.0")


def test_an_old_nvml_without_version_2(box: Any, nvml: Any, gpu: Any) -> None:
    (device,), _ = read(box, nvml(gpu(), v2=False))
    assert (device.memory_total, device.memory_free, device.memory_reserved) == (24 * GIB, 20 * GIB, None)


@pytest.mark.parametrize(
    "broken",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetCurrPcieLinkWidth",
    ],
)
def test_one_missing_answer_costs_only_itself(box: Any, nvml: Any, gpu: Any, broken: str) -> None:
    (device,), _ = read(box, nvml(gpu(broken=frozenset({broken}))))
    assert (device.id, device.memory_total, device.memory_free) == ("CUDA0", 24 * GIB, 20 * GIB)


def test_memory_that_fails_otherwise_is_unknown_and_not_unified(box: Any, nvml: Any, gpu: Any) -> None:
    (device,), _ = read(box, nvml(gpu(broken=frozenset({"nvmlDeviceGetMemoryInfo"}))))
    assert (device.kind, device.memory_total, device.memory_free) == (DeviceKind.DISCRETE, None, None)


@pytest.mark.parametrize("total", [None, 128 * GIB])
def test_unified_memory(box: Any, nvml: Any, gpu: Any, total: int | None) -> None:
    """NVML has no memory to tell there; should a later one tell, it is still the host's."""
    (device,), _ = read(box, nvml(gpu(name="NVIDIA GB10", total=total)))
    assert device.kind is DeviceKind.UNIFIED
    assert (device.memory_total, device.memory_free, device.memory_shared) == (128 * GIB, 100 * GIB, 128 * GIB)
    assert (device.pcie, device.rebar) == (None, None)


def test_grace_hopper_has_memory_of_its_own_and_no_pcie_for_copies(box: Any, nvml: Any, gpu: Any) -> None:
    (device,), notes = read(box, nvml(gpu(name="NVIDIA GH200 480GB", total=96 * GIB, free=95 * GIB, c2c=True)))
    assert (device.kind, device.memory_total, device.memory_shared, device.pcie) == (
        DeviceKind.DISCRETE,
        96 * GIB,
        0,
        None,
    )
    assert any("NVLink-C2C" in note for note in notes)


def test_mig_instances_stand_for_their_gpu(box: Any, nvml: Any, gpu: Any) -> None:
    parts = [
        gpu(name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", uuid="MIG-a", total=20 * GIB, free=19 * GIB),
        gpu(name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", uuid="MIG-b", total=5 * GIB, free=5 * GIB),
    ]
    api = nvml(gpu(name="NVIDIA A100-SXM4-40GB", uuid="GPU-whole", total=40 * GIB, mig=parts))
    devices, _ = read(box, api)
    assert [(d.id, d.memory_total, d.mig) for d in devices] == [
        ("CUDA0", 20 * GIB, "GPU-whole"),
        ("MIG-b", 5 * GIB, "GPU-whole"),
    ]
    (chosen,), notes = read(box, api, {"CUDA_VISIBLE_DEVICES": "MIG-b"})
    assert (chosen.id, chosen.memory_total) == ("CUDA0", 5 * GIB)
    assert "hides 1 GPU" in notes[-1]


def test_mig_without_instances(box: Any, nvml: Any, gpu: Any) -> None:
    devices, notes = read(box, nvml(gpu(mig=[])))
    assert devices == []
    assert "MIG mode without an instance" in notes[0]


def three(gpu: Any) -> list[Any]:
    return [gpu(name=f"NVIDIA Model {i}", uuid=f"GPU-{i}{i}{i}", address=f"00000000:0{i}:00.0") for i in range(3)]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("0,2", ["NVIDIA Model 0", "NVIDIA Model 2"]),
        ("2,0", ["NVIDIA Model 2", "NVIDIA Model 0"]),
        ("GPU-1", ["NVIDIA Model 1"]),
        ("", []),
        ("-1", []),
        ("0,9,1", ["NVIDIA Model 0"]),
        ("0,0", ["NVIDIA Model 0"]),
        ("GPU-", []),
        (" 1 , 0 ", ["NVIDIA Model 1", "NVIDIA Model 0"]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices(box: Any, nvml: Any, gpu: Any, wanted: str, names: list[str]) -> None:
    devices, notes = read(box, nvml(*three(gpu)), {"CUDA_VISIBLE_DEVICES": wanted})
    assert [device.name for device in devices] == names
    assert [device.id for device in devices] == [f"CUDA{i}" for i in range(len(names))]
    assert any("hides" in note for note in notes) == (len(names) < 3)


def test_an_order_that_only_cuda_knows_is_noted(box: Any, nvml: Any, gpu: Any) -> None:
    _, notes = read(box, nvml(*three(gpu)), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert any("FASTEST_FIRST" in note for note in notes)


def asleep(box: Any, address: str, status: str) -> None:
    box.function(f"pci0000:00/0000:00:0{address[5:7]}.0/{address}", vendor=NVIDIA, driver="nvidia", status=status)


def test_a_sleeping_laptop_gpu_is_not_touched(box: Any, nvml: Any, gpu: Any) -> None:
    asleep(box, "0000:01:00.0", "suspended")
    api = nvml(gpu())
    (device,), notes = read(box, api)
    assert api.calls == []  # even nvmlInit would open the device
    assert (device.id, device.suspended, device.memory_total) == ("CUDA0", True, None)
    assert device.pcie is not None
    assert device.pcie.state is LinkState.SUSPENDED
    assert "--wake" in notes[0]


def test_beside_a_sleeping_gpu_only_the_others_are_asked(box: Any, nvml: Any, gpu: Any) -> None:
    asleep(box, "0000:01:00.0", "suspended")
    asleep(box, "0000:02:00.0", "active")
    api = nvml(gpu(), gpu(address="00000000:02:00.0", uuid="GPU-2"))
    devices, _ = read(box, api)
    assert api.touched == {"00000000:02:00.0"}
    assert "nvmlDeviceGetHandleByIndex" not in api.calls
    assert [(d.id, d.suspended, d.memory_total) for d in devices] == [("CUDA0", True, None), ("CUDA1", False, 24 * GIB)]


def test_wake_asks_it(box: Any, nvml: Any, gpu: Any) -> None:
    asleep(box, "0000:01:00.0", "suspended")
    (device,), notes = read(box, nvml(gpu()), wake=True)
    assert (device.memory_total, notes) == (24 * GIB, [])


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"/dev/nvidiactl": ""}, "add `utility` to NVIDIA_DRIVER_CAPABILITIES"),
        ({}, "start the container with GPU access"),
    ],
)
def test_a_container_without_nvml(box: Any, setup: dict[str, str], words: str) -> None:
    box.bridge(SLOT, vendor=0x8086, speed=("16.0 GT/s", "16.0 GT/s"), width=(16, 16))
    box.function(
        f"{SLOT}/0000:01:00.0",
        vendor=NVIDIA,
        driver="nvidia",
        speed=("16.0 GT/s", "16.0 GT/s"),
        width=(16, 16),
        bars=(32 * GIB,),
    )
    box.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ:  12\n")
    for path, content in setup.items():
        box.write(path, content)
    (device,), notes = read(box, None)
    assert (device.name, device.memory_total, device.memory_free) == ("NVIDIA H200", None, None)
    assert not device.id.startswith("CUDA")
    assert device.pcie is not None
    assert device.pcie.gbps_max == 31.51
    assert words in notes[0]


@pytest.mark.parametrize("error", [9, 12, 18, 999])
def test_nvml_that_does_not_start(box: Any, nvml: Any, gpu: Any, error: int) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, driver="nouveau")
    (device,), notes = read(box, nvml(gpu(), init_error=error))
    assert device.memory_total is None
    assert "bound to nouveau" in notes[-1]
    assert any("different versions" in note for note in notes) == (error == 18)


def test_a_gpu_that_is_lost_does_not_hide_the_others(box: Any, nvml: Any, gpu: Any) -> None:
    devices, notes = read(box, nvml(gpu(broken=frozenset({"handle"})), gpu(address="00000000:02:00.0")))
    assert [device.address for device in devices] == ["0000:02:00.0"]
    assert "no access to 1 GPU" in notes[0]


def test_an_nvml_that_hangs_is_left_behind(box: Any, nvml: Any, gpu: Any) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, driver="nvidia")
    never = threading.Event()

    class Hanging(nvml):  # type: ignore[misc]
        def on_DeviceGetCount(self) -> int:  # noqa: N802
            never.wait(20)
            return 0

    (device,), notes = read(box, Hanging(gpu()), patience=0.05)
    never.set()
    assert device.memory_total is None
    assert "did not answer" in notes[0]


def test_a_jetson(box: Any) -> None:
    box.write("/proc/device-tree/compatible", b"nvidia,p3737\0nvidia,tegra234\0")
    box.write("/proc/device-tree/model", b"NVIDIA Jetson AGX Orin\0")
    box.write("/dev/nvmap", "")
    assert nvidia.present(Tree(box.root), ())
    (device,), notes = read(box, None)
    assert (device.id, device.name, device.kind) == ("CUDA0", "NVIDIA Jetson AGX Orin", DeviceKind.UNIFIED)
    assert (device.memory_total, device.memory_shared, notes) == (128 * GIB, 128 * GIB, [])


def test_nothing_hints_at_nvidia(box: Any) -> None:
    assert not nvidia.present(Tree(box.root), ())


def test_the_stand_in_has_the_shape_of_the_real_thing(nvml: Any) -> None:
    """Every function that we call is there under that name, and constants have the stand-in's values."""
    import pynvml

    used = ["nvml" + name[3:] for name in vars(nvml) if name.startswith("on_")]
    assert len(used) > 20
    assert [name for name in used if not callable(getattr(pynvml, name, None))] == []
    assert (pynvml.nvmlMemory_v2, pynvml.NVML_CLOCK_MEM) == (nvml.nvmlMemory_v2, nvml.NVML_CLOCK_MEM)
    assert nvidia._NOT_SUPPORTED == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert nvidia._MISMATCH == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert pynvml.NVMLError(3).value == 3


def test_every_question_has_a_stand_in(nvml: Any) -> None:
    """What nvidia.py asks by name is answered by the stand-in, so that a typo cannot pass as `unknown`."""
    source = Path(nvidia.__file__).read_text()
    asked = set(re.findall(r'"(nvml[A-Z]\w+)"', source)) - {"nvmlMemory_v2"}
    asked |= {f"nvmlDeviceGet{name}" for name in re.findall(r'learn\("(\w+)"\)', source)}
    answered = {"nvml" + name[3:] for name in vars(nvml) if name.startswith("on_")}
    assert asked <= answered | {"nvmlDeviceGetGpuMaxPcieLinkGeneration"}


def test_the_real_library_without_a_driver(box: Any) -> None:
    """pynvml is there, libnvidia-ml isn't (on a box with a driver this shows its GPUs instead)."""
    import pynvml

    devices, _ = read(box, pynvml)
    assert all(device.source == "nvml" for device in devices)
