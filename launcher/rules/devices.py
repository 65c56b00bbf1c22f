"""KV6xx: devices, how they share a model, and the link to them."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.machine.types import LinkState
from launcher.rules.case import Case
from launcher.rules.facts import NO_TENSOR_SPLIT, devices, has_device
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n[context]\nper_slot = 4096\n'
_GPU = ("a CUDA GPU",)
_TWO = ("two CUDA GPUs",)
_MOST_DEVICES = 16  # llama_max_devices(), src/llama.cpp


@rule(
    "KV601",
    "gpu-not-there",
    Severity.ERROR,
    Act.IGNORE,
    why="A build with RPC says yes to --gpu-layers on any box and loads everything on the CPU, without a word "
    "(common/arg.cpp:2870, llama_supports_gpu_offload).",
    cost="It runs many times slower than planned, and nobody says why.",
    help='write gpu_layers = "auto", or see `kvlaunch probe` for what this machine has',
    example=Example(_MODEL + '[compute]\ngpu_layers = "all"\n'),
    counter=Example(_MODEL + '[compute]\ngpu_layers = "all"\n', _GPU),
)
def gpu_not_there(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    if has_device(case):
        return
    if compute.gpu_layers not in ("auto", 0):
        box = "backend is cpu" if compute.backend == "cpu" else "this machine has no GPU that the engine can use"
        yield Found("compute.gpu_layers", f"{compute.gpu_layers} layers on a GPU are asked for, but {box}")
    if compute.backend in ("cuda", "rocm"):
        yield Found(
            "compute.backend",
            f'backend = "{compute.backend}", but this machine has no such GPU',
            'write backend = "auto" or "cpu"',
        )


@rule(
    "KV602",
    "device-unknown",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine ends with `invalid device` for a name that it does not list; the CPU is none of them "
    "(common/arg.cpp:1135).",
    cost="It does not start.",
    example=Example(_MODEL + '[compute]\ndevices = ["CUDA1"]\n', _GPU),
    counter=Example(_MODEL + '[compute]\ndevices = ["CUDA0"]\n', _GPU),
)
def device_unknown(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    known = [device.id for device in devices(case)] + [f"RPC{index}" for index in range(len(compute.rpc))]
    for index, name in enumerate(compute.devices):
        if name == "none" and len(compute.devices) == 1:
            continue
        if name not in known:
            yield Found(
                f"compute.devices.{index}",
                f'"{name}" is no device of this machine',
                f"it has {', '.join(known)}" if known else "it has none beside the CPU: leave devices away",
            )


@rule(
    "KV603",
    "row-split-over-rpc",
    Severity.ERROR,
    Act.REFUSE,
    why="`device RPC0 does not support split buffers` (src/llama-model.cpp:1165).",
    cost="The engine ends while loading.",
    help='write split = "layer"',
    example=Example(_MODEL + '[compute]\nrpc = ["10.0.0.2:50052"]\nsplit = "row"\n'),
    counter=Example(_MODEL + '[compute]\nrpc = ["10.0.0.2:50052"]\nsplit = "layer"\n'),
)
def row_split_over_rpc(case: Case) -> Iterator[Found]:
    if case.profile.compute.split == "row" and case.profile.compute.rpc:
        yield Found("compute.split", 'split = "row" needs devices in this machine, and rpc names a worker')


@rule(
    "KV604",
    "tensor-split-impossible",
    Severity.ERROR,
    Act.REFUSE,
    needs=Needs.MODEL,
    why="Splitting tensors needs a device beside the CPU (src/llama.cpp:167, 205) and an architecture that it was made "
    "for (src/llama-arch.cpp:1196).",
    cost="The engine ends while loading.",
    help='write split = "layer"',
    example=Example(_MODEL + '[compute]\nsplit = "tensor"\n'),
    counter=Example(_MODEL + '[compute]\nsplit = "tensor"\n', _TWO),
)
def tensor_split_impossible(case: Case) -> Iterator[Found]:
    if case.profile.compute.split != "tensor":
        return
    if not has_device(case):
        yield Found("compute.split", 'split = "tensor" needs a device beside the CPU, and there is none')
    elif case.model.arch in NO_TENSOR_SPLIT:
        yield Found("compute.split", f'split = "tensor" does not work for {case.model.arch}')


@rule(
    "KV605",
    "main-gpu-not-there",
    Severity.ERROR,
    Act.REFUSE,
    why="`invalid value for main_gpu` where split is none (src/llama.cpp:294).",
    cost="The engine ends while loading.",
    help="count devices from 0",
    example=Example(_MODEL + '[compute]\nsplit = "none"\nmain_gpu = 3\n', _TWO),
    counter=Example(_MODEL + '[compute]\nsplit = "none"\nmain_gpu = 1\n', _TWO),
)
def main_gpu_not_there(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    count = len(compute.devices) or len(devices(case)) + len(compute.rpc)
    if compute.split == "none" and count and compute.main_gpu >= count:
        yield Found("compute.main_gpu", f"main_gpu = {compute.main_gpu}, but there are {count} devices")


@rule(
    "KV606",
    "too-many-shares",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine takes fewer than 16 shares (common/arg.cpp:2844), one for each device.",
    cost="It does not start; or shares go to the wrong devices.",
    example=Example(_MODEL + "[compute]\ntensor_split = [1, 1, 1]\n", _TWO),
    counter=Example(_MODEL + "[compute]\ntensor_split = [1, 1]\n", _TWO),
)
def too_many_shares(case: Case) -> Iterator[Found]:
    compute = case.profile.compute
    shares = len(compute.tensor_split)
    count = len(compute.devices) or len(devices(case)) + len(compute.rpc)
    if shares >= _MOST_DEVICES:
        yield Found("compute.tensor_split", f"{shares} shares are more than the engine takes", "write one for a device")
    elif shares and count and shares > count:
        yield Found("compute.tensor_split", f"{shares} shares for {count} devices", "write one for each device")
    elif shares and not any(compute.tensor_split):
        yield Found("compute.tensor_split", "every share is 0: nothing goes anywhere", "write for example [1, 1]")


@rule(
    "KV607",
    "sharing-without-devices",
    Severity.WARNING,
    Act.IGNORE,
    why="Without a device beside the CPU the engine reads none of these, and says nothing (common/arg.cpp:2827-2875).",
    cost="The keys do nothing.",
    help="leave it away on this machine",
    example=Example(_MODEL + "[compute]\ntensor_split = [1, 1]\n"),
    counter=Example(_MODEL + "[compute]\ntensor_split = [1, 1]\n", _TWO),
)
def sharing_without_devices(case: Case) -> Iterator[Found]:
    if has_device(case):
        return
    compute = case.profile.compute
    for key, on in (
        ("compute.tensor_split", bool(compute.tensor_split)),
        ("compute.main_gpu", compute.main_gpu > 0),
        ("compute.split", compute.split in ("none", "layer", "row")),
        ("compute.cpu_moe", compute.cpu_moe not in ("auto", "off", 0)),
    ):
        if on:
            yield Found(key, f"{key} says how devices share the model, and there is none beside the CPU")


@rule(
    "KV608",
    "link-below-its-width",
    Severity.WARNING,
    Act.OURS,
    why="A card in the wrong slot, on a riser or behind a bifurcated link moves data at a fraction of its rate, and a "
    "cache in host memory crosses that link for every token.",
    cost="Decoding as slow as the link: half the lanes, half the speed.",
    help="look at the seat, the slot and the riser; `kvlaunch probe --bandwidth` measures",
    example=Example(_MODEL + '[kv]\nresidency = "stream"\n', ("a GPU on a narrow link",)),
    counter=Example(_MODEL + '[kv]\nresidency = "gpu"\n', ("a GPU on a narrow link",)),
)
def link_below_its_width(case: Case) -> Iterator[Found]:
    if case.profile.kv.residency not in ("stream", "window", "heads", "layers", "cpu"):
        return
    for device in devices(case):
        link = device.pcie
        if link is not None and link.state is LinkState.NARROW:
            yield Found(
                "kv.residency",
                f"{device.id} ({device.name}) runs on {link.width} of {link.width_max} lanes, and the cache lies on "
                "the host",
            )


@rule(
    "KV609",
    "experts-of-a-dense-model",
    Severity.WARNING,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="cpu_moe names expert tensors; a dense model has none.",
    cost="The key does nothing.",
    help="leave cpu_moe away; gpu_layers says how much goes to the device",
    example=Example(_MODEL + '[compute]\ncpu_moe = "all"\n', _GPU),
    counter=Example(_MODEL + '[compute]\ncpu_moe = "all"\n', ("a model with experts", "a CUDA GPU")),
)
def experts_of_a_dense_model(case: Case) -> Iterator[Found]:
    if case.profile.compute.cpu_moe not in ("auto", "off", 0) and case.model.expert_count == 0:
        yield Found("compute.cpu_moe", f"{case.model.arch} has no experts here")


@rule(
    "KV610",
    "more-threads-than-processors",
    Severity.WARNING,
    Act.OURS,
    why="The threads of one operation wait for each other at its end; more of them than processors wait for a turn.",
    cost="Slower than with fewer: often several times.",
    example=Example(_MODEL + "[compute]\nthreads = 64\n"),
    counter=Example(_MODEL + "[compute]\nthreads = 8\n"),
)
def more_threads_than_processors(case: Case) -> Iterator[Found]:
    cpu, threads = case.machine.cpu, case.profile.compute.threads
    have = cpu.threads or cpu.cores
    if have is not None and threads > have:
        yield Found(
            "compute.threads",
            f"{threads} threads on {have} processors that this process may use",
            f"write threads = {cpu.cores or have}, or 0 for as many as there are cores",
        )


RULES = rules_of(globals())
