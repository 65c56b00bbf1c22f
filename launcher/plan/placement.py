"""Which device holds which layer's weights and cache, as the engine distributes them.

Follows src/llama-model.cpp:1556-1608 (layers over devices), src/llama-model-loader.cpp (a tensor's buffer),
common/arg.cpp:2757 (`--cpu-moe`: the experts of the first layers stay on the host) and
ggml/src/ggml-cpu/repack.cpp:4974-5140 (weights that the CPU keeps a second, rearranged copy of).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from launcher.model.shape import ModelShape, TensorInfo
from launcher.plan.kv import HOST

# LLM_TENSOR_LAYER_INPUT of src/llama-arch.cpp: always on the host
_INPUT = frozenset(
    {"token_embd", "position_embd", "token_types", "token_embd_norm", "per_layer_token_embd", "masked_embd"}
)
# common/common.h LLM_FFN_EXPS_REGEX
_EXPERTS = re.compile(r"\.ffn_(?:up|down|gate|gate_up)_(?:ch)?exps")
# type → the CPU features of which one makes the engine rearrange it (rows must divide by 8; some ARM kernels take 4)
_DOT = frozenset({"asimddp", "i8mm"})
_REPACKED: Mapping[str, frozenset[str]] = {
    "q4_0": _DOT | {"avx2"},
    "q4_K": _DOT | {"avx2"},
    "iq4_nl": _DOT | {"avx2"},
    "mxfp4": _DOT | {"avx2"},
    "q2_K": frozenset({"avx512f"}),
    "q5_K": _DOT,
    "q6_K": _DOT,
    "q8_0": _DOT,
    "q1_0": _DOT,
}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything lies. `layers`, `cache`: a device for each layer of the shape; `output`: of the output matrix.

    gpu_layers       what is emitted as `-ngl`; the output layer counts as one
    experts_on_host  layers, from the first, whose experts stay on the host (`--n-cpu-moe`)
    devices          the devices in use, in the engine's order, the host not among them
    shares           how the layers are divided over them (`-ts`); empty: by free memory
    """

    layers: tuple[str, ...]
    output: str
    cache: tuple[str, ...]
    gpu_layers: int = 0
    experts_on_host: int = 0
    devices: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    split: str = "layer"

    def divided(self, size: int) -> dict[str, int]:
        """What each device gets of something that row or tensor split cuts by the shares; rounding goes to the last."""
        points = _split_points(self.shares, len(self.devices))
        ends = [round(size * point) for point in points[:-1]] + [size]
        return {device: end - begin for device, begin, end in zip(self.devices, [0, *ends], ends, strict=False)}

    @property
    def cuts_matrices(self) -> bool:
        """Row and tensor split: each matrix of a device layer lies on all devices, by the shares."""
        return self.split in ("row", "tensor") and len(self.devices) > 1

    @property
    def copies(self) -> int:
        """Copies of the graph's inputs: 4 with pipeline parallelism (src/llama-context.cpp:436-470), else 1."""
        whole = len(self.devices) > 1 and HOST not in self.layers and self.output != HOST
        return 4 if whole and self.split == "layer" and not self.experts_on_host and HOST not in self.cache else 1


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of weights on one device. `mapped`: part of them that is a view of the file and can be dropped."""

    bytes: int
    mapped: int = 0
    repacked: int = 0


@dataclass(frozen=True, slots=True)
class Loading:
    """How the engine reads the weights: mapped or copied, and which CPU features decide what it rearranges."""

    mapped: bool = True
    cpu_features: frozenset[str] = field(default_factory=frozenset)
    repack: bool = True


def on_host(shape: ModelShape) -> Placement:
    """Everything on the host."""
    layers = (HOST,) * len(shape.layers)
    return Placement(layers, HOST, layers)


def place(
    shape: ModelShape,
    *,
    devices: Sequence[str] = (),
    weights: Sequence[float] = (),
    gpu_layers: int | None = None,
    split: str = "layer",
    main_gpu: int = 0,
    experts_on_host: int = 0,
    cache_on_host: Collection[int] | None = (),
) -> Placement:
    """Layers over devices. `weights`: the shares of `-ts`, or each device's free memory (what the engine takes);
    `gpu_layers` None: all; `cache_on_host`: layers whose cache stays on the host, None: all of them (`-nkvo`)."""
    count = len(shape.layers)
    used = tuple(devices)
    if split == "none" and used:
        used, weights = (used[min(main_gpu, len(used) - 1)],), ()
    most = count + 1
    on_device = min(most if gpu_layers is None else gpu_layers, most) if used else 0
    first = most - on_device
    points = _split_points(weights, len(used))

    def device(index: int) -> str:
        if index < first:
            return HOST
        return used[min(bisect_right(points, (index - first) / on_device), len(used) - 1)]

    layers = tuple(device(index) for index in range(count))
    held = range(count) if cache_on_host is None else cache_on_host
    cache = tuple(HOST if index in held else layers[index] for index in range(count))
    return Placement(
        layers, device(count), cache, on_device, experts_on_host, used, tuple(weights), split if used else "layer"
    )


def _split_points(weights: Sequence[float], count: int) -> list[float]:
    """Where one device's layers end, as shares of the whole (src/llama-model.cpp:1556-1590)."""
    if len(weights) < count or sum(weights[:count]) <= 0:
        weights = [1.0] * count
    sums = list(accumulate(weights[:count]))
    return [value / sums[-1] for value in sums]


def expert_layers(shape: ModelShape) -> tuple[int, ...]:
    """The layers that have experts."""
    return tuple(sorted({t.layer for t in shape.tensors if t.layer is not None and _EXPERTS.search(t.name)}))


def tensor_device(shape: ModelShape, placement: Placement, tensor: TensorInfo) -> str:
    """The device that the engine puts a tensor on."""
    layer = tensor.layer
    if layer is None:
        return HOST if tensor.name.partition(".")[0] in _INPUT else placement.output
    if layer >= len(placement.layers):
        return placement.layers[-1] if placement.layers else HOST
    if layer < placement.experts_on_host and _EXPERTS.search(tensor.name):
        return HOST
    return placement.layers[layer]


def weights_by_device(shape: ModelShape, placement: Placement, loading: Loading = Loading()) -> Mapping[str, Weights]:
    """Bytes of weights on every device that has some, rearranged and duplicated copies included.

    Mapped, the host holds the range of each file from the first of its tensors there to the last.
    """
    ranges: dict[int, tuple[int, int]] = {}
    total: dict[str, int] = {}
    copied = 0
    for tensor in shape.tensors:
        device = tensor_device(shape, placement, tensor)
        cut = placement.cuts_matrices and device != HOST and len(tensor.dims) > 1
        for holder, size in (placement.divided(tensor.size) if cut else {device: tensor.size}).items():
            total[holder] = total.get(holder, 0) + size
        if device == HOST:
            low, high = ranges.get(tensor.file, (tensor.offset, 0))
            ranges[tensor.file] = (min(low, tensor.offset), max(high, tensor.offset + tensor.size))
            if repacks(tensor, loading):
                copied += tensor.size
    if placement.output != HOST and shape.has_tied_output:
        # the token embedding is loaded again as the output matrix: TENSOR_DUPLICATED, src/llama-model-loader.cpp
        embedding = next((t.size for t in shape.tensors if t.name == "token_embd.weight"), 0)
        total[placement.output] = total.get(placement.output, 0) + embedding
    found = {device: Weights(size) for device, size in total.items() if device != HOST}
    if loading.mapped:
        spanned = sum(high - low for low, high in ranges.values())
        found[HOST] = Weights(spanned + copied, mapped=spanned, repacked=copied)
    elif HOST in total:
        # what is rearranged is read straight into its new form: one copy only
        found[HOST] = Weights(total[HOST], repacked=copied)
    return found


def repacks(tensor: TensorInfo, loading: Loading) -> bool:
    """Whether the CPU keeps a rearranged copy of this tensor: a matrix of a type it has kernels for."""
    if not loading.repack or not _REPACKED.get(tensor.type, frozenset()) & loading.cpu_features:
        return False
    if tensor.name.partition(".")[0] in _INPUT or not tensor.name.endswith(".weight"):
        return False  # looked up row by row, not multiplied
    matrix = len(tensor.dims) >= 2 and tensor.dims[1] % 8 == 0
    return matrix and (len(tensor.dims) == 2 or bool(_EXPERTS.search(tensor.name)))


def choose_layers(shape: ModelShape, fits: Callable[[int, int], bool], *, experts: bool = True) -> tuple[int, int]:
    """(gpu_layers, experts_on_host) for `"auto"`: all layers on the devices; else as few experts as must go to the
    host, since they are read least; else as many layers as fit. `fits(gpu_layers, experts_on_host)` is monotone."""
    every = len(shape.layers) + 1
    with_experts = expert_layers(shape) if experts else ()
    most = with_experts[-1] + 1 if with_experts else 0
    if fits(every, 0):
        return every, 0
    if most and fits(every, most):
        return every, _least(0, most, lambda count: fits(every, count))
    layers = every - _least(0, every, lambda dropped: fits(every - dropped, most))
    return layers, most if layers else 0


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number in (low, high] for which `holds`; `high` where none does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
