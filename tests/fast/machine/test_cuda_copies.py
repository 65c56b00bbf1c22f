"""Timed copies through a stand-in for the CUDA driver: the figures, the order of calls, and that nothing leaks."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest

from launcher.machine.cuda_copies import CudaUnavailable, load_driver, measure

MIB = 1 << 20


class Clock:
    """A clock that only moves when the driver works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeDriver:
    """A GPU whose copies take size ÷ rate plus a fixed cost; every call can be made to fail."""

    def __init__(self, clock: Clock, *, fail: str | None = None, fail_after: int = 0) -> None:
        self.clock = clock
        self.fail = fail
        self.fail_after = fail_after
        self.held: list[str] = []
        self.pinned: list[Any] = []
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        work = getattr(type(self), f"do_{name}", None)
        if work is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name == self.fail and self.calls.count(name) > self.fail_after:
                return (2, None)
            return (0, *work(self, *args))

        return call

    def do_cuInit(self, flags: int) -> tuple[Any, ...]:  # noqa: N802
        return ()

    def do_cuDeviceGetByPCIBusId(self, address: bytes) -> tuple[Any, ...]:  # noqa: N802
        assert address == b"0000:01:00.0"
        return ("device",)

    def do_cuDevicePrimaryCtxRetain(self, device: str) -> tuple[Any, ...]:  # noqa: N802
        self.held.append("context")
        return ("context",)

    def do_cuDevicePrimaryCtxRelease(self, device: str) -> tuple[Any, ...]:  # noqa: N802
        self.held.remove("context")
        return ()

    def do_cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:  # noqa: N802
        return ()

    def do_cuCtxSynchronize(self) -> tuple[Any, ...]:  # noqa: N802
        return ()

    def do_cuMemAlloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802
        self.held.append("device memory")
        return ("pointer",)

    def do_cuMemFree(self, pointer: str) -> tuple[Any, ...]:  # noqa: N802
        self.held.remove("device memory")
        return ()

    def do_cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        self.held.append("host memory")
        self.pinned.append(ctypes.create_string_buffer(16))
        return (ctypes.addressof(self.pinned[0]),)

    def do_cuMemFreeHost(self, pointer: int) -> tuple[Any, ...]:  # noqa: N802
        self.held.remove("host memory")
        return ()

    def copy(self, host: int, size: int) -> tuple[Any, ...]:
        pinned = host == ctypes.addressof(self.pinned[0])
        self.clock.now += 10e-6 + size / 25e9 + (0.0 if pinned else 30e-6)
        return ()

    def do_cuMemcpyHtoD(self, pointer: str, host: int, size: int) -> tuple[Any, ...]:  # noqa: N802
        return self.copy(host, size)

    def do_cuMemcpyDtoH(self, host: int, pointer: str, size: int) -> tuple[Any, ...]:  # noqa: N802
        return self.copy(host, size)

    def do_cuGetErrorString(self, error: int) -> tuple[Any, ...]:  # noqa: N802
        return (b"out of memory",)


def test_the_figures() -> None:
    clock = Clock()
    driver = FakeDriver(clock)
    awake: list[float] = []
    found = measure(driver, "0000:01:00.0", clock=clock, while_busy=lambda: awake.append(clock()))
    rates = {(c.size // MIB, c.direction, c.host): c.gbps for c in found.copies}
    assert len(rates) == 12
    assert rates[64, "h2d", "pinned"] == pytest.approx(64 * MIB / (64 * MIB / 25e9 + 10e-6) / 1e9, rel=1e-3)
    assert rates[1, "d2h", "pageable"] == pytest.approx(MIB / (MIB / 25e9 + 40e-6) / 1e9, rel=1e-3)
    assert rates[1, "h2d", "pinned"] > 1.4 * rates[1, "h2d", "pageable"]
    assert found.latency_us == pytest.approx(10.0, rel=0.01)
    assert len(awake) == 1
    assert awake[0] >= 0.2  # the link was busy for long enough to be at its speed
    assert driver.held == []


def test_a_figure_s_time_is_bounded() -> None:
    clock = Clock()
    found = measure(FakeDriver(clock), "0000:01:00.0", clock=clock, budget=0.01, warm_up=0.0)
    assert all(5 <= copy.runs <= 200 for copy in found.copies)
    assert clock.now < 0.5


@pytest.mark.parametrize(
    "call",
    [
        "cuInit",
        "cuDeviceGetByPCIBusId",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuMemAlloc",
        "cuMemHostAlloc",
        "cuMemcpyHtoD",
        "cuMemcpyDtoH",
        "cuCtxSynchronize",
    ],
)
def test_a_call_that_fails_is_named_and_nothing_leaks(call: str) -> None:
    clock = Clock()
    driver = FakeDriver(clock, fail=call)
    with pytest.raises(CudaUnavailable, match=rf"CUDA's {call} failed: out of memory \(2\)"):
        measure(driver, "0000:01:00.0", clock=clock)
    assert driver.held == []


def test_a_failure_in_the_middle_leaks_nothing() -> None:
    clock = Clock()
    driver = FakeDriver(clock, fail="cuMemcpyDtoH", fail_after=50)
    with pytest.raises(CudaUnavailable):
        measure(driver, "0000:01:00.0", clock=clock)
    assert driver.held == []


def test_a_box_without_the_driver() -> None:
    """The bindings raise an error of their own from the first call."""

    class Without:
        def cuInit(self, flags: int) -> None:  # noqa: N802
            raise RuntimeError('"cuda" can only be found via system search.\nmore')

    with pytest.raises(CudaUnavailable, match=r'cuInit cannot be called: "cuda" can only be found') as caught:
        measure(Without(), "0000:01:00.0")
    assert "more" not in caught.value.message


def test_bindings_that_lack_a_function() -> None:
    with pytest.raises(CudaUnavailable, match="cuInit cannot be called"):
        measure(object(), "0000:01:00.0")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(CudaUnavailable, match="isn't installed") as caught:
        load_driver()
    assert "extra `cuda`" in caught.value.help


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="the extra `cuda` is not installed")
def test_the_bindings_have_what_we_call() -> None:
    driver = load_driver()
    used = [name[3:] for name in vars(FakeDriver) if name.startswith("do_")]
    assert [name for name in used if not hasattr(driver, name)] == []
