"""The processors that this process may run on: physical cores under its affinity mask, and their instruction sets."""

from __future__ import annotations

import platform

from launcher.machine.cgroups import cpu_quota
from launcher.machine.tree import Tree, index_list
from launcher.machine.types import Cpu

# What the engine's kernels ask for (ggml/src/ggml-cpu/CMakeLists.txt and arch/ beside it), as /proc/cpuinfo spells it.
_FEATURES = """
    sse4_2 avx avx2 avx_vnni fma f16c bmi2 avx512f avx512bw avx512cd avx512dq avx512vl avx512vbmi avx512_vnni
    avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16
    asimd asimdhp asimddp fphp bf16 i8mm sve sve2 svei8mm svebf16 sme sme2
    altivec vsx vxe vxe2 lsx lasx zvfh
"""
_KNOWN = frozenset(_FEATURES.split())

# /proc/cpuinfo of an Arm box has numbers only; the server and desk parts that run models, by implementer and part
_ARM_PARTS = {
    (0x41, 0xD08): "Arm Cortex-A72",
    (0x41, 0xD0B): "Arm Cortex-A76",
    (0x41, 0xD0C): "Arm Neoverse-N1",
    (0x41, 0xD40): "Arm Neoverse-V1",
    (0x41, 0xD42): "Arm Cortex-A78AE",
    (0x41, 0xD49): "Arm Neoverse-N2",
    (0x41, 0xD4F): "Arm Neoverse-V2",
    (0x41, 0xD84): "Arm Neoverse-V3",
    (0x41, 0xD85): "Arm Cortex-X925",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1A",
}


def read_cpu(tree: Tree) -> Cpu:
    """Model, cores, features, quota; each None (features: empty) where the tree doesn't say."""
    blocks = _cpuinfo(tree)
    first = blocks[0] if blocks else {}
    allowed = _allowed(tree, blocks)
    cores = _physical(tree, allowed, blocks)
    fast = _fast(tree, allowed)
    flags = (first.get("flags") or first.get("Features") or first.get("features") or "").split()
    features = tuple(flag for flag in dict.fromkeys(flags) if flag in _KNOWN)
    if tree.live and "amx_tile" in features and not _amx_granted():
        features = tuple(flag for flag in features if not flag.startswith("amx_"))
    return Cpu(
        model=_model(tree, first),
        cores=cores,
        features=features,
        arch=_arch(tree, first),
        threads=len(allowed) or None,
        fast_cores=_physical(tree, fast, blocks) if fast and fast != allowed else None,
        quota=cpu_quota(tree),
        numa_nodes=len([n for n in tree.names("/sys/devices/system/node") if n[:4] == "node" and n[4:].isdigit()])
        or None,
    )


def _cpuinfo(tree: Tree) -> list[dict[str, str]]:
    """One dictionary a block; on some architectures the last one is about the whole box."""
    blocks: list[dict[str, str]] = []
    for part in (tree.text("/proc/cpuinfo") or "").split("\n\n"):
        block: dict[str, str] = {}
        for line in part.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                block.setdefault(key.strip(), value.strip())
        if block:
            blocks.append(block)
    return blocks


def _allowed(tree: Tree, blocks: list[dict[str, str]]) -> frozenset[int]:
    """The affinity mask (cpuset cgroups are in it already), of processors that are on."""
    mask: frozenset[int] = frozenset()
    for line in (tree.text("/proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            mask = index_list(line.partition(":")[2])
    online = index_list(tree.text("/sys/devices/system/cpu/online"))
    if not online:
        online = frozenset(int(b["processor"]) for b in blocks if b.get("processor", "").isdecimal())
    return mask & online if mask and online else mask or online


def _physical(tree: Tree, allowed: frozenset[int], blocks: list[dict[str, str]]) -> int | None:
    """How many different cores the processors belong to; hyper-threads share one."""
    if not allowed:
        return None
    listed = {
        int(b["processor"]): (b.get("physical id", "0"), b["core id"])
        for b in blocks
        if "core id" in b and b.get("processor", "").isdecimal()
    }
    cores: set[object] = set()
    for cpu in allowed:
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = index_list(tree.text(f"{topology}/core_cpus_list") or tree.text(f"{topology}/thread_siblings_list"))
        # a processor that is missing in its own list: the file is garbage
        cores.add(siblings if cpu in siblings else listed.get(cpu, cpu))
    return len(cores)


def _fast(tree: Tree, allowed: frozenset[int]) -> frozenset[int]:
    """The processors of the fast kind on a hybrid box: Intel's by PMU, Arm's by capacity."""
    if tree.exists("/sys/devices/cpu_atom"):
        return allowed & index_list(tree.text("/sys/devices/cpu_core/cpus"))
    capacity = {cpu: tree.number(f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpu in sorted(allowed)}
    known = {cpu: value for cpu, value in capacity.items() if value is not None}
    if len(known) != len(allowed) or len(set(known.values())) < 2:
        return frozenset()
    # the fastest cluster of a phone-like chip may be one core: all that reach three quarters of it count
    top = max(known.values())
    return frozenset(cpu for cpu, value in known.items() if value * 4 >= top * 3)


def _model(tree: Tree, first: dict[str, str]) -> str | None:
    if name := first.get("model name") or first.get("cpu model") or first.get("cpu"):
        return " ".join(name.split())
    try:
        part = (int(first.get("CPU implementer", ""), 16), int(first.get("CPU part", ""), 16))
    except ValueError:
        return tree.line("/sys/firmware/devicetree/base/model")
    return _ARM_PARTS.get(part) or f"Arm part {part[0]:#04x}:{part[1]:#05x}"


def _arch(tree: Tree, first: dict[str, str]) -> str | None:
    if (arch := tree.line("/proc/sys/kernel/arch")) is not None:  # since Linux 6.1
        return arch
    if tree.live:
        return platform.machine() or None
    if "flags" in first:
        return "x86_64" if " lm " in f" {first['flags']} " else "i686"
    return "aarch64" if "CPU implementer" in first else None


def _amx_granted() -> bool:
    """The kernel lets a process ask for tile state. Virtual machines may show the flag and answer tiles with SIGILL."""
    import ctypes

    syscall_arch_prctl, get_xcomp_supp, tile_data = 158, 0x1021, 18  # asm/unistd_64.h, asm/prctl.h, asm/fpu/types.h
    mask = ctypes.c_uint64(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(syscall_arch_prctl, get_xcomp_supp, ctypes.byref(mask)) != 0:
        return False
    return bool(mask.value >> tile_data & 1)
