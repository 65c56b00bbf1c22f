"""The machine's JSON: the contract's fields, both ways, and faults by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ProfileError
from launcher.machine.types import Cpu, Device, DeviceKind, GpuProcess, LinkState, Machine, Memory, PcieLink, Rebar

FULL = Machine(
    devices=(
        Device(
            id="CUDA0",
            name="NVIDIA GeForce RTX 3090",
            kind=DeviceKind.DISCRETE,
            memory_total=24 << 30,
            memory_free=20 << 30,
            pcie=PcieLink(4, 4, 8, 16, LinkState.NARROW, 12.5, 15.75, "0000:00:01.0", 4, 16),
            rebar=Rebar.ON,
            vendor="nvidia",
            driver="nvidia 580.65.06, CUDA 13.0",
            address="0000:01:00.0",
            uuid="GPU-1",
            compute="8.6",
            memory_reserved=1,
            memory_shared=0,
            memory_gbps=936.2,
            copy_gbps=12.5,
            copy_latency_us=9.0,
            usable=True,
            processes=(GpuProcess(12, 5), GpuProcess(13, None)),
            source="nvml",
        ),
        Device(id="Vulkan0", name="something"),
    ),
    memory=Memory(64 << 30, 50 << 30, 32 << 30, "/user.slice", 0, 0, 8 << 20, 30.5),
    cpu=Cpu("AMD EPYC", 8, ("avx2", "fma"), "x86_64", 16, None, 4.0, 1),
    wsl=True,
    container="docker",
    kernel="6.1.0",
    notes=("a note",),
)

counts = st.none() | st.integers(0, 1 << 60)
machines = st.builds(
    Machine,
    devices=st.lists(
        st.builds(
            Device,
            id=st.text(),
            name=st.text(),
            kind=st.none() | st.sampled_from(DeviceKind),
            memory_total=counts,
            memory_free=counts,
            rebar=st.none() | st.sampled_from(Rebar),
            suspended=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    memory=st.builds(Memory, total=counts, available=counts, limit=counts),
    cpu=st.builds(Cpu, cores=counts, features=st.lists(st.text()).map(tuple)),
    wsl=st.booleans(),
)


def test_everything_survives_json() -> None:
    assert Machine.from_json(json.loads(json.dumps(FULL.as_json()))) == FULL


@given(machines)
def test_any_machine_survives_json(machine: Machine) -> None:
    assert Machine.from_json(json.loads(json.dumps(machine.as_json()))) == machine


def test_json_has_what_the_contract_names() -> None:
    data: Any = FULL.as_json()
    assert set(data) >= {"schema", "devices", "memory", "cpu", "wsl"}
    assert data["schema"] == 1
    device = data["devices"][0]
    assert set(device) >= {"id", "name", "kind", "memory_total", "memory_free", "pcie", "rebar"}
    assert set(device["pcie"]) >= {"gen", "gen_max", "width", "width_max", "state", "gbps"}
    assert set(data["memory"]) >= {"total", "available", "limit"}
    assert set(data["cpu"]) >= {"model", "cores", "features"}


def test_what_is_unknown_is_null_not_zero() -> None:
    data: Any = Machine(devices=(Device(id="x", name="y", pcie=PcieLink()),)).as_json()
    device = data["devices"][0]
    numbers = [device["memory_total"], device["memory_free"], *device["pcie"].values(), *data["memory"].values()]
    assert numbers == [None] * len(numbers)


def test_the_contract_s_own_example_reads() -> None:
    example = (
        '{"devices": [{"id": "CUDA0", "name": "…", "kind": "discrete", "memory_total": 0, "memory_free": 0, "pcie": '
        '{"gen": 4, "gen_max": 4, "width": 16, "width_max": 16, "state": "active", "gbps": null}, "rebar": "on"}], '
        '"memory": {"total": 0, "available": 0, "limit": null}, '
        '"cpu": {"model": "…", "cores": 2, "features": ["avx2"]}, '
        '"wsl": false}'
    )
    machine = Machine.from_json(json.loads(example))
    assert machine.devices[0].pcie is not None
    assert machine.devices[0].pcie.state is LinkState.ACTIVE
    assert machine.cpu.features == ("avx2",)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("devices",), "lacks devices"),
        (("memory",), "lacks memory"),
        (("memory", "available"), "lacks memory.available"),
        (("cpu", "cores"), "lacks cpu.cores"),
        (("wsl",), "lacks wsl"),
        (("devices", 0, "memory_free"), "lacks devices[0].memory_free"),
        (("devices", 1, "rebar"), "lacks devices[1].rebar"),
        (("devices", 0, "pcie", "width_max"), "lacks devices[0].pcie.width_max"),
        (("devices", 0, "processes", 1, "bytes"), "lacks devices[0].processes[1].bytes"),
    ],
)
def test_a_missing_field_is_named(path: tuple[Any, ...], named: str) -> None:
    data: Any = json.loads(json.dumps(FULL.as_json()))
    inside = data
    for step in path[:-1]:
        inside = inside[step]
    del inside[path[-1]]
    with pytest.raises(ProfileError) as caught:
        Machine.from_json(data, "box.json")
    assert f"box.json {named}" in caught.value.message
    assert "null" in caught.value.help


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("memory_total", -1, "devices[0].memory_total is -1; it must be a whole number from 0, or null"),
        ("memory_total", "12GiB", 'devices[0].memory_total is "12GiB"'),
        ("memory_total", 1.5, "devices[0].memory_total is 1.5"),
        ("memory_total", True, "devices[0].memory_total is true"),
        ("memory_total", 10**400, "devices[0].memory_total is a number without measure"),
        ("memory_gbps", float("nan"), "devices[0].memory_gbps is not a finite number"),
        ("kind", "odd", "one of discrete, integrated, unified, remote, software, or null"),
        ("pcie", [], "devices[0].pcie is a list; it must be an object"),
        ("id", None, "devices[0].id is null; it must be a string"),
        ("suspended", 1, "devices[0].suspended is 1; it must be true, false or null"),
        ("name", 7, "devices[0].name is 7; it must be a string"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, named: str) -> None:
    data: Any = FULL.as_json()
    data["devices"][0][key] = value
    with pytest.raises(ProfileError) as caught:
        Machine.from_json(data, "box.json")
    assert named in caught.value.message
    assert caught.value.code == 10


@pytest.mark.parametrize("data", [None, [], 3, "text", {}, {"schema": 2}, {"schema": "1"}, {"schema": True}])
def test_what_is_no_machine_is_refused(data: object) -> None:
    with pytest.raises(ProfileError):
        Machine.from_json(data)


def test_a_file_of_a_newer_kind_is_refused_by_its_number() -> None:
    with pytest.raises(ProfileError, match="is of schema 2; this kvlaunch reads up to 1"):
        Machine.from_json(FULL.as_json() | {"schema": 2})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "holds a list"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "box.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        Machine.load(path)
    assert str(path) in caught.value.message
    assert words in caught.value.message


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in a document, containers too."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from leaves(inner, (*path, key))


NONSENSE = [None, True, -1, 10**30, 1.5, float("inf"), float("nan"), "", "x" * 10_000, [], [None], {}, {"id": 1}]


@pytest.mark.parametrize("path", list(leaves(json.loads(json.dumps(FULL.as_json())))))
def test_nonsense_in_any_place_is_read_or_refused_in_words(path: tuple[Any, ...]) -> None:
    for nonsense in NONSENSE:
        data: Any = json.loads(json.dumps(FULL.as_json()))
        inside = data
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = nonsense
        try:
            machine = Machine.from_json(data, "box.json")
        except ProfileError as error:
            assert error.message.startswith("box.json")
            assert len(error.message) < 200
        else:
            json.dumps(machine.as_json(), allow_nan=False)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"there is no machine file .*gone\.json"):
        Machine.load(tmp_path / "gone.json")
    with pytest.raises(ProfileError, match="cannot read the machine file"):
        Machine.load(tmp_path)


def test_device_by_id() -> None:
    assert FULL.device("Vulkan0") is FULL.devices[1]
    assert FULL.device("CUDA9") is None


def test_a_machine_file_is_read_only_so_far(tmp_path):
    large = tmp_path / "disk.img"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it whole would end in a MemoryError
    with pytest.raises(ProfileError, match="no machine file: it has more than 16 MiB"):
        Machine.load(large)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="is not JSON"):
        Machine.load(binary)
