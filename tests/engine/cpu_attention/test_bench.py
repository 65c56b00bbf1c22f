"""The bench's own arithmetic: which checks it makes of figures. No engine is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from launcher.bench.cpu_attention import _judge, cases
from launcher.bench.cpu_attention_plot import draw, plot
from launcher.bench.cpu_attention_program import Roofs, options_of
from launcher.errors import BuildError

_ROOFS = Roofs(dram=10.0, l3=30.0, f32=50.0, i8=200.0)


def _figures(wanted: Sequence[Any], ratio: float, nmse: float) -> list[dict[str, float]]:
    one = {"upstream_ms": ratio, "grouped_ms": 1.0, "ratio": ratio, "bytes": 8e6, "upstream_nmse": 1e-4}
    return [one | {"grouped_nmse": nmse} for _ in wanted]


def _hard(body: dict[str, Any]) -> dict[str, bool]:
    return {check["name"].split(" (")[0]: check["ok"] for check in body["checks"] if check["hard"]}


@pytest.mark.parametrize(("ratio", "ok"), [(0.97, False), (0.98, True), (20.0, True)])
def test_slower_than_upstream_fails(ratio: float, ok: bool) -> None:
    body: dict[str, Any] = {"rows": [], "checks": []}
    wanted = cases(quick=True)
    _judge(body, wanted, _figures(wanted, ratio, 1e-12), _ROOFS)
    assert _hard(body)["nothing slower than upstream"] is ok


def test_an_error_that_is_too_large_fails() -> None:
    body: dict[str, Any] = {"rows": [], "checks": []}
    wanted = cases(quick=True)
    _judge(body, wanted, _figures(wanted, 9.0, 1e-8), _ROOFS)
    # 1e-8 is well for a quantized cache, and a hundred times too much for f16
    assert {name for name, ok in _hard(body).items() if not ok} == {
        f"error {case.name} {case.tier}" for case in wanted if case.tier == "f16"
    }


def test_every_target_has_its_case() -> None:
    """A case that is renamed must not lose its check in silence."""
    body: dict[str, Any] = {"rows": [], "checks": []}
    wanted = cases(quick=False)
    _judge(body, wanted, _figures(wanted, 9.0, 1e-12), _ROOFS)
    assert sum(not check["hard"] for check in body["checks"]) == 17


@pytest.mark.parametrize(
    ("name", "tier", "read", "least"),
    [
        ("head64 decode 8k", "f16", 6_291_456, 6_291_456e-6 / 30),  # 9.4e6 products take 0.19 ms, the reading 0.21
        ("head128 decode 8k", "f16", 1, 2 * 128 * 32 * 8192e-6 / 50),
        ("head128 16 rows 4k", "q8_0", 1, 2 * 2 * 128 * 32 * 16 * 4096e-6 / 200),
        ("head128 decode 8k cold", "q4_0", 9_437_184, 9_437_184e-6 / 10),
    ],
)
def test_the_limit_is_the_slower_of_arithmetic_and_reading(name: str, tier: str, read: int, least: float) -> None:
    case = next(case for case in cases(quick=False) if (case.name, case.tier) == (name, tier))
    assert case.least_ms(read, _ROOFS) == pytest.approx(least)


def test_the_plot_has_a_point_per_case() -> None:
    rows = [
        {"case": "head128 decode 8k f16", "metric": "ratio", "value": 8.0, "unit": "ratio"},
        {"case": "head128 decode 32k f16", "metric": "ratio", "value": 16.0, "unit": "ratio"},
        {"case": "head128 decode 32k q8_0:q4_0", "metric": "ratio", "value": 0.5, "unit": "ratio"},
        {"case": "head128 decode 32k f16", "metric": "grouped", "value": 3.0, "unit": "ms"},
        {"case": "smollm2 q8_0 8k", "metric": "ratio", "value": 4.0, "unit": "ratio"},
    ]
    drawn = list(ElementTree.fromstring(plot(rows)).iter())
    points = [(float(e.attrib["cx"]), float(e.attrib["cy"])) for e in drawn if e.tag.endswith("circle")]
    titles = [e.text for e in drawn if e.attrib.get("font-weight") and e.attrib.get("fill") is None]
    assert titles == ["head 128", "smollm2, tokens/s"]
    assert len(points) == 4
    (x8, y8), (x32, y32), slow, model = points
    assert x8 < x32 == slow[0] < model[0]
    assert y8 - y32 == pytest.approx(50)  # twice as fast: an octave higher
    assert slow[1] > y8, "slower than upstream is below"


def test_the_picture_lies_beside_its_record(tmp_path: Path) -> None:
    record = tmp_path / "cpu-attention.json"
    record.write_text('{"rows": [{"case": "head64 decode 2k f16", "metric": "ratio", "value": 5.0, "unit": "ratio"}]}')
    picture = draw(record)
    assert picture == tmp_path / "cpu-attention.svg"
    assert "head 64" in picture.read_text()


def test_a_server_of_unknown_origin_is_told(tmp_path: Path) -> None:
    server = tmp_path / "bin" / "llama-server"
    server.parent.mkdir()
    server.touch()
    with pytest.raises(BuildError, match="not built here"):
        options_of(server)
    (tmp_path / "CMakeCache.txt").write_text("GGML_AVX2:BOOL=ON\nGGML_AVX512:BOOL=OFF\nGGML_RPC:BOOL=ON\n")
    assert options_of(server) == {"GGML_AVX2": "ON", "GGML_AVX512": "OFF"}
