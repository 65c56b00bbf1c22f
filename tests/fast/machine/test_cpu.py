"""Cores under the affinity mask, features, models; hyper-threads, hybrids, Arm."""

from __future__ import annotations

import os
from typing import Any

import pytest

from launcher.machine import cpu as module
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree


def test_hyper_threads_share_a_core(box: Any) -> None:
    box.cores(8, 2, model="AMD  Ryzen 7   7700X", flags="fpu sse4_2 avx2 avx512f nonsense")
    cpu = read_cpu(Tree(box.root))
    assert (cpu.model, cpu.cores, cpu.threads) == ("AMD Ryzen 7 7700X", 8, 16)
    assert cpu.features == ("sse4_2", "avx2", "avx512f")
    assert cpu.fast_cores is None
    assert cpu.arch == "x86_64"


def test_the_mask_counts(box: Any) -> None:
    box.cores(8, 2)
    box.write("/proc/self/status", "Cpus_allowed_list:\t0-1,8-9,11\n")  # cores 0, 1 with both threads, core 3 with one
    cpu = read_cpu(Tree(box.root))
    assert (cpu.cores, cpu.threads) == (3, 5)


def test_processors_that_are_off_do_not_count(box: Any) -> None:
    box.cores(4)
    box.write("/sys/devices/system/cpu/online", "0-1\n")
    assert read_cpu(Tree(box.root)).cores == 2


def test_topology_from_cpuinfo_where_sysfs_is_hidden(box: Any) -> None:
    block = "processor\t: {}\nphysical id\t: {}\ncore id\t: {}\n"
    box.write("/proc/cpuinfo", "\n".join(block.format(i, i // 4, i % 2) for i in range(8)))
    cpu = read_cpu(Tree(box.root))
    assert (cpu.cores, cpu.threads) == (4, 8)


def test_intel_hybrid(box: Any) -> None:
    box.cores(12)
    box.write("/sys/devices/cpu_core/cpus", "0-3\n")
    box.write("/sys/devices/cpu_atom/cpus", "4-11\n")
    cpu = read_cpu(Tree(box.root))
    assert (cpu.cores, cpu.fast_cores) == (12, 4)


def test_arm_big_little(box: Any) -> None:
    block = "processor\t: {}\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"
    box.write("/proc/cpuinfo", "\n".join(block.format(i) for i in range(8)))
    box.write("/proc/self/status", "Cpus_allowed_list:\t0-7\n")
    for index in range(8):
        box.write(f"/sys/devices/system/cpu/cpu{index}/cpu_capacity", "1024\n" if index >= 4 else "446\n")
    cpu = read_cpu(Tree(box.root))
    assert (cpu.cores, cpu.fast_cores, cpu.arch) == (8, 4, "aarch64")
    assert cpu.model == "Arm Cortex-A76"
    assert cpu.features == ("asimd", "asimddp", "i8mm")


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "Arm Neoverse-V2"),
        ("CPU implementer\t: 0x99\nCPU part\t: 0x001\n", "Arm part 0x99:0x001"),
        ("processor : 0\n", "Board in the tree"),
    ],
)
def test_models_without_a_name(box: Any, text: str, model: str) -> None:
    box.write("/proc/cpuinfo", text)
    box.write("/sys/firmware/devicetree/base/model", b"Board in the tree\0")
    assert read_cpu(Tree(box.root)).model == model


def test_numa_nodes(box: Any) -> None:
    for name in ("node0", "node1", "nodelist", "possible"):
        box.write(f"/sys/devices/system/node/{name}/x", "")
    assert read_cpu(Tree(box.root)).numa_nodes == 2


def test_an_empty_box_knows_nothing(box: Any) -> None:
    cpu = read_cpu(Tree(box.root))
    assert (cpu.model, cpu.cores, cpu.features, cpu.threads, cpu.quota, cpu.numa_nodes) == (
        None,
        None,
        (),
        None,
        None,
        None,
    )


def test_garbage_topology_counts_each_processor(box: Any) -> None:
    box.cores(4)
    box.write("/sys/devices/system/cpu/cpu0/topology/core_cpus_list", "77\n")
    box.write("/sys/devices/system/cpu/cpu1/topology/core_cpus_list", "\x00\xff")
    assert read_cpu(Tree(box.root)).cores == 4


def test_amx_only_where_the_kernel_grants_tiles(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Live(Tree):
        @property
        def live(self) -> bool:
            return True

        def _at(self, path: str) -> str:
            return self.root + path

    box.cores(1, flags="avx512f amx_tile amx_int8")
    monkeypatch.setattr(module, "_amx_granted", lambda: False)
    assert read_cpu(Live(box.root)).features == ("avx512f",)
    monkeypatch.setattr(module, "_amx_granted", lambda: True)
    assert read_cpu(Live(box.root)).features == ("avx512f", "amx_tile", "amx_int8")


def test_this_box() -> None:
    cpu = read_cpu(Tree())
    mask = os.sched_getaffinity(0)
    assert cpu.threads == len(mask)
    assert cpu.cores is not None
    assert 1 <= cpu.cores <= len(mask)
    assert cpu.arch == os.uname().machine
