"""Whole boxes through the one door; and boxes whose files are broken in every way that a kernel or a container can."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.machine.pci import AMD, INTEL, NVIDIA
from launcher.machine.probe import probe
from launcher.machine.types import DeviceKind, LinkState, Machine, Rebar

MIB, GIB = 1 << 20, 1 << 30
V2 = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_a_micro_vm_with_cgroup_v1(box: Any) -> None:
    """Recorded here: no GPU, no limit, cgroup v1 under a job's own group."""
    box.memory(25276502016, 23390568448)
    box.cores(2, model="AMD EPYC", flags="fpu fma avx2 avx512f")
    box.write("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    box.write("/proc/self/cgroup", "4:memory:/process_api/33d1\n3:cpuset:/\n0::/\n")
    for path in ("", "/process_api", "/process_api/33d1"):
        at = f"/sys/fs/cgroup/memory{path}"
        box.write(f"{at}/memory.limit_in_bytes", "9223372036854771712\n")
        box.write(f"{at}/memory.usage_in_bytes", "2693570560\n")
        box.write(f"{at}/memory.stat", "hierarchical_memory_limit 9223372036854771712\ntotal_inactive_file 1\n")
    box.write("/proc/version", "Linux version 6.18.44 (a@b) (gcc) #1 SMP\n")
    machine = probe(box.root, environ={})
    assert machine.devices == ()
    assert (machine.memory.available, machine.memory.limit) == (23390568448, None)
    assert (machine.cpu.cores, machine.cpu.features) == (2, ("fma", "avx2", "avx512f"))
    assert (machine.wsl, machine.kernel, machine.notes) == (False, "6.18.44", ())


def test_a_laptop_with_a_sleeping_gpu(box: Any, nvml: Any, gpu: Any) -> None:
    box.memory(32 * GIB, 20 * GIB)
    at = box.function("pci0000:00/0000:00:02.0", vendor=INTEL, device=0x46A6, driver="i915")
    box.write(f"{at}/boot_vga", "1\n")
    box.bridge("pci0000:00/0000:00:01.0", vendor=INTEL, status="suspended")
    box.function(
        "pci0000:00/0000:00:01.0/0000:01:00.0", vendor=NVIDIA, driver="nvidia", status="suspended", bars=(256 * MIB,)
    )
    api = nvml(gpu())
    machine = probe(box.root, environ={}, nvml=api)
    assert api.calls == []
    assert [(d.id, d.kind, d.suspended, d.memory_total) for d in machine.devices] == [
        ("CUDA0", DeviceKind.DISCRETE, True, None),
        ("Vulkan0", DeviceKind.INTEGRATED, False, None),
    ]
    assert machine.devices[0].rebar is Rebar.OFF
    woken = probe(box.root, environ={}, nvml=api, wake=True)
    assert woken.devices[0].memory_total == 24 * GIB
    assert not woken.devices[0].suspended


def test_wsl(box: Any, nvml: Any, gpu: Any) -> None:
    """No PCI tree, no device files but /dev/dxg; NVML answers."""
    box.memory(16 * GIB, 12 * GIB)
    box.write("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    box.write("/dev/dxg", "")
    machine = probe(box.root, environ={}, nvml=nvml(gpu(gen=(1, 4))))
    assert machine.wsl
    (device,) = machine.devices
    assert (device.id, device.memory_total) == ("CUDA0", 24 * GIB)
    assert device.pcie is not None
    assert device.pcie.state is LinkState.IDLE


def test_a_spark_s_unified_memory_is_under_the_cgroup_too(box: Any, nvml: Any, gpu: Any) -> None:
    box.memory(120 * GIB, 100 * GIB)
    box.write("/proc/self/mountinfo", V2)
    box.write("/proc/self/cgroup", "0::/a\n")
    box.write("/sys/fs/cgroup/a/memory.max", f"{64 * GIB}\n")
    box.write("/sys/fs/cgroup/a/memory.current", "0\n")
    box.write("/dev/nvidiactl", "")
    machine = probe(box.root, environ={}, nvml=nvml(gpu(name="NVIDIA GB10", total=None)))
    (device,) = machine.devices
    assert (device.kind, device.memory_shared) == (DeviceKind.UNIFIED, 120 * GIB)
    assert device.memory_free == 64 * GIB == machine.memory.available


def test_a_gpu_that_is_kept_for_guests_is_left_out(box: Any) -> None:
    box.function("pci0000:00/0000:00:05.0", vendor=NVIDIA, driver="vfio-pci")
    machine = probe(box.root, environ={})
    assert machine.devices == ()
    assert "kept for guests (vfio-pci)" in machine.notes[0]


def test_three_vendors_at_once(box: Any, nvml: Any, gpu: Any) -> None:
    machine = probe(everything(box), environ={}, nvml=nvml(gpu()))
    assert [device.id for device in machine.devices] == ["CUDA0", "Vulkan0", "Vulkan1"]
    assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine


def test_an_empty_tree(box: Any) -> None:
    machine = probe(box.root, environ={})
    assert machine.devices == ()
    assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine


def test_a_tree_that_is_not_there(tmp_path: Path) -> None:
    assert probe(tmp_path / "gone", environ={}).memory.total is None


@pytest.mark.parametrize(
    ("path", "content", "name"),
    [
        ("/run/systemd/container", "lxc\n", "lxc"),
        ("/run/.containerenv", "", "podman"),
        ("/.dockerenv", "", "docker"),
        ("/proc/self/cgroup", "0::/kubepods.slice/pod1\n", "kubernetes"),
        ("/etc/hostname", "x", None),
    ],
)
def test_containers(box: Any, path: str, content: str, name: str | None) -> None:
    box.write(path, content)
    assert probe(box.root, environ={}).container == name


def test_this_box_is_quick_and_loads_little() -> None:
    """Under 150 ms of work (a clock on the wall times other jobs too); NVML only where something hints at NVIDIA."""
    program = (
        "import sys, time; t = time.process_time(); from launcher.machine.probe import probe; m = probe(); "
        "heavy = ('pynvml', 'rich', 'pydantic', 'typer', 'psutil'); "
        "print(time.process_time() - t, *(name for name in heavy if name in sys.modules))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    seconds = min(float(run.stdout.split()[0]) for run in runs)
    loaded = set(runs[0].stdout.split()[1:])
    nvidia_here = Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia").exists()
    assert loaded <= ({"pynvml"} if nvidia_here else set())
    assert nvidia_here or seconds < 0.15


def everything(box: Any) -> Path:
    """A box that uses every file that is read."""
    box.memory(64 * GIB, 50 * GIB)
    box.cores(4, 2)
    box.write("/proc/self/mountinfo", V2 + "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,cpu\n")
    box.write("/proc/self/cgroup", "4:memory,cpu:/m/n\n0::/u/v\n")
    box.write("/proc/self/limits", "Max locked memory         8388608              8388608              bytes\n")
    for at in ("/sys/fs/cgroup/u/v", "/sys/fs/cgroup/u"):
        box.write(f"{at}/memory.max", f"{32 * GIB}\n")
        box.write(f"{at}/memory.high", "max\n")
        box.write(f"{at}/memory.current", f"{GIB}\n")
        box.write(f"{at}/memory.stat", "inactive_file 5\n")
        box.write(f"{at}/cpu.max", "200000 100000\n")
    for at in ("/sys/fs/cgroup/memory/m/n", "/sys/fs/cgroup/memory/m", "/sys/fs/cgroup/memory"):
        box.write(f"{at}/memory.limit_in_bytes", f"{40 * GIB}\n")
        box.write(f"{at}/memory.usage_in_bytes", f"{GIB}\n")
        box.write(f"{at}/memory.use_hierarchy", "1\n")
        box.write(f"{at}/memory.stat", f"hierarchical_memory_limit {40 * GIB}\ntotal_inactive_file 5\n")
        box.write(f"{at}/cpu.cfs_quota_us", "300000\n")
        box.write(f"{at}/cpu.cfs_period_us", "100000\n")
    box.write("/sys/devices/cpu_core/cpus", "0-1\n")
    box.write("/sys/devices/cpu_atom/cpus", "2-7\n")
    box.write("/sys/devices/system/node/node0/x", "")
    box.write("/proc/sys/kernel/osrelease", "6.1.0\n")
    box.write("/run/systemd/container", "docker\n")
    box.write("/usr/share/misc/pci.ids", "1002  AMD\n\t744c  Navi [Radeon]\n8086  Intel\n\t56a0  DG2 [Arc A770]\n")
    wide = {"speed": ("16.0 GT/s", "16.0 GT/s"), "width": (16, 16)}
    root = "pci0000:00/0000:00:01.0"
    box.bridge(root, vendor=INTEL, **wide)
    box.bridge(f"{root}/0000:02:00.0", vendor=INTEL, **wide)
    box.bridge(f"{root}/0000:02:00.0/0000:03:01.0", vendor=INTEL, **wide)
    box.function(f"{root}/0000:01:00.0", vendor=NVIDIA, driver="nvidia", bars=(32 * GIB,), **wide)
    box.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: NVIDIA X\n")
    arc = f"{root}/0000:02:00.0/0000:03:01.0/0000:04:00.0"
    at = box.function(arc, vendor=INTEL, device=0x56A0, driver="xe", bars=(16 * GIB,), **wide)
    box.write(f"{at}/tile0/physical_vram_size_bytes", f"{16 * GIB}\n")
    box.write(f"{at}/drm/card0/lmem_total_bytes", f"{16 * GIB}\n")
    at = box.function(f"{root}/0000:05:00.0", vendor=AMD, device=0x744C, driver="amdgpu", bars=(32 * GIB,), **wide)
    for name, value in {"vram_total": 24 * GIB, "vram_used": GIB, "vis_vram_total": 24 * GIB, "gtt_total": GIB}.items():
        box.write(f"{at}/mem_info_{name}", f"{value}\n")
    box.write(f"{at}/gpu_metrics", b"\x80\x00\x01\x03" + bytes(124))
    box.write(
        "/sys/class/kfd/kfd/topology/nodes/1/properties", "gfx_target_version 110000\ndomain 0\nlocation_id 1280\n"
    )
    root_path: Path = box.root
    return root_path


GARBAGE = [
    b"",
    b"\n",
    b"\0" * 40,
    b"\xff\xfe\x80garbage\n",
    b"-1\n",
    b"99999999999999999999999999\n",
    b"9223372036854775807\n",
    b"0x\n",
    b"max\n",
    b": : :\n::::\n - - -\n",
    b"0-4294967295\n",
    "١٢٣\n".encode(),
    b"nan\n",
    b"1" * 5000,
    b"\t\n" * 5000,
]


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def damaged(rng: random.Random, root: Path) -> Iterator[Path]:
    """Break some files; the caller gets each so that it can mend it."""
    for path in rng.sample(files(root), rng.randint(1, 6)):
        yield path
        how = rng.randrange(4)
        if how == 0:
            path.unlink()
        elif how == 1:
            path.unlink()
            path.mkdir()
        elif how == 2:
            data = bytearray(path.read_bytes() or b"0")
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(bytes(data))
        else:
            path.write_bytes(rng.choice(GARBAGE))


@pytest.mark.parametrize("seed", range(4))
def test_broken_files_never_raise(box: Any, nvml: Any, gpu: Any, seed: int) -> None:
    root = everything(box)
    rng = random.Random(seed)
    whole = {path: path.read_bytes() for path in files(root)}
    for _ in range(40):
        broken = list(damaged(rng, root))
        machine = probe(root, environ={}, nvml=nvml(gpu()) if rng.random() < 0.5 else None)
        assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine
        for path in broken:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(whole[path])


@pytest.mark.parametrize("content", GARBAGE)
def test_one_kind_of_garbage_everywhere(box: Any, content: bytes) -> None:
    root = everything(box)
    for path in files(root):
        if path.name not in ("vendor", "device", "class"):  # else no GPU is found and nothing of it is read
            path.write_bytes(content)
    machine = probe(root, environ={})
    assert len(machine.devices) == 3
    assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOENT, errno.EIO, errno.ENODEV, errno.EINVAL])
@pytest.mark.parametrize("call", ["open", "read", "scandir"])
def test_files_that_are_forbidden_or_vanish(box: Any, monkeypatch: pytest.MonkeyPatch, error: int, call: str) -> None:
    root = everything(box)
    rng = random.Random(error)
    real = getattr(os, call)
    refused = 0

    def flaky(*args: Any, **kwargs: Any) -> Any:
        nonlocal refused
        if rng.random() < 0.3:
            refused += 1
            raise OSError(error, os.strerror(error))
        return real(*args, **kwargs)

    machines = []
    with monkeypatch.context() as patch:
        patch.setattr(os, call, flaky)
        machines = [probe(root, environ={}) for _ in range(15)]
    assert refused > 5
    assert all(Machine.from_json(json.loads(json.dumps(m.as_json()))) == m for m in machines)


def test_an_nvml_that_answers_nonsense(box: Any, nvml: Any, gpu: Any) -> None:
    """Whatever type comes back, the other devices and the host stand."""
    everything(box)
    for nonsense in (None, -1, b"\xff", "text", [], {}, object(), 1 << 80, float("nan")):

        class Odd(nvml):  # type: ignore[misc]
            def __getattr__(self, name: str, answer: Any = nonsense) -> Any:
                if name == "nvmlInit":
                    return lambda *args: None
                return (lambda *args: answer) if name.startswith("nvml") else super().__getattr__(name)

        started = time.monotonic()
        machine = probe(box.root, environ={}, nvml=Odd(gpu()))
        assert time.monotonic() - started < 4  # an exception on the asking thread would look like a hang
        assert "Vulkan0" in [device.id for device in machine.devices]
        assert not any("did not answer" in note for note in machine.notes), (nonsense, machine.notes)
        assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine
