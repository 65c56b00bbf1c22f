"""Timed copies through the CUDA driver (cuda-bindings), for one GPU. Needs no engine and compiles nothing.

The driver is the module `cuda.bindings.driver`, or an object with the same functions: every one returns a tuple that
begins with an error number.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from launcher.errors import KvlaunchError
from launcher.machine.bandwidth import SIZES, Copy

_WARM_UP = 0.2  # seconds of copies before the clock starts: a sleeping link needs some 50 ms to come up
_BUDGET = 0.15  # seconds a figure
_RUNS = (5, 200)


@dataclass(frozen=True, slots=True)
class CudaCopies:
    """The figures of one GPU, and what was seen while it was busy."""

    copies: tuple[Copy, ...]
    latency_us: float


class CudaUnavailable(KvlaunchError):
    """There is no CUDA driver to ask, or it refused."""


def load_driver() -> Any:
    """The bindings, where the extra is installed and a driver is there. Raises CudaUnavailable."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise CudaUnavailable(
            "cuda-bindings isn't installed", help="install kvlaunch with the extra `cuda`, or build an engine for CUDA"
        ) from None
    return driver


def measure(
    driver: Any,
    address: str,
    *,
    sizes: Sequence[int] = SIZES,
    budget: float = _BUDGET,
    warm_up: float = _WARM_UP,
    while_busy: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> CudaCopies:
    """Both directions, pinned and pageable, each size. `while_busy` is called once with the link awake.

    Raises CudaUnavailable when any call of the driver fails; nothing stays allocated.
    """
    call = _caller(driver)
    largest = max(sizes)
    with ExitStack() as stack:
        _enter(stack, call, address)
        (on_device,) = call("cuMemAlloc", largest)
        stack.callback(_quietly, driver.cuMemFree, on_device)
        hosts = {"pinned": _pinned(stack, driver, call, largest), "pageable": stack.enter_context(_pageable(largest))}

        def up(host: int, size: int) -> None:
            call("cuMemcpyHtoD", on_device, host, size)
            call("cuCtxSynchronize")  # a pageable copy may return when it is staged, not when it is there

        def down(host: int, size: int) -> None:
            call("cuMemcpyDtoH", host, on_device, size)

        start = clock()
        while clock() - start < warm_up:
            up(hosts["pinned"], largest)
        while_busy()
        small = _times(lambda: down(hosts["pinned"], 1), budget / 2, clock)
        copies = []
        for size in sizes:
            for kind, host in hosts.items():
                for direction, work in (("h2d", up), ("d2h", down)):
                    times = _times(lambda work=work, host=host, size=size: work(host, size), budget, clock)  # type: ignore[misc]
                    copies.append(_figure(size, direction, kind, times))
    return CudaCopies(tuple(copies), round(_median(small) * 1e6, 2))


def _enter(stack: ExitStack, call: Callable[..., tuple[Any, ...]], address: str) -> None:
    """The GPU's primary context, made current on this thread and given back at the end."""
    call("cuInit", 0)
    (device,) = call("cuDeviceGetByPCIBusId", address.encode())
    (context,) = call("cuDevicePrimaryCtxRetain", device)
    stack.callback(_quietly, call, "cuDevicePrimaryCtxRelease", device)
    call("cuCtxSetCurrent", context)


def _pinned(stack: ExitStack, driver: Any, call: Callable[..., tuple[Any, ...]], size: int) -> int:
    (pointer,) = call("cuMemHostAlloc", size, 0)
    stack.callback(_quietly, driver.cuMemFreeHost, pointer)
    return int(pointer)


@contextmanager
def _pageable(size: int) -> Iterator[int]:
    """Ordinary memory with every page touched, so that no page fault is timed."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
        view = (ctypes.c_char * size).from_buffer(memory)
        try:
            yield ctypes.addressof(view)
        finally:
            del view  # a map that is still looked at cannot be closed


def _times(work: Callable[[], None], budget: float, clock: Callable[[], float]) -> list[float]:
    least, most = _RUNS
    work()
    times: list[float] = []
    start = clock()
    while len(times) < least or (len(times) < most and clock() - start < budget):
        before = clock()
        work()
        times.append(clock() - before)
    return times


def _figure(size: int, direction: str, host: str, times: Sequence[float]) -> Copy:
    tick = 1e-9  # a clock that did not move between two readings
    gbps, best = size / max(_median(times), tick) / 1e9, size / max(min(times), tick) / 1e9
    return Copy(size, direction, host, round(gbps, 3), round(best, 3), len(times))


def _median(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


def _caller(driver: Any) -> Callable[..., tuple[Any, ...]]:
    """Calls a function of the driver by name and gives what it returned behind the error number."""

    def call(name: str, *args: Any) -> tuple[Any, ...]:
        try:
            error, *rest = getattr(driver, name)(*args)
        except KvlaunchError:
            raise
        # without a driver the bindings raise their own error from the first call, of a class that changed over time
        except Exception as fault:
            raise CudaUnavailable(f"CUDA's {name} cannot be called: {str(fault).splitlines()[0]}") from None
        if int(error) != 0:
            raise CudaUnavailable(f"CUDA's {name} failed: {_words(driver, error)}")
        return tuple(rest)

    return call


def _words(driver: Any, error: Any) -> str:
    try:
        _, text = driver.cuGetErrorString(error)
        return f"{text.decode('ascii', 'replace')} ({int(error)})"
    except Exception:
        return f"error {int(error)}"


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    """Give something back; when that fails there is nothing more to be done, and the first error is the one to tell."""
    try:
        function(*args)
    except Exception:
        return
