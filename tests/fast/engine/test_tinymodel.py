from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from gguf import GGUFReader, dequantize

from launcher.engine.tinymodel import EMBEDDING, LAYERS, TYPES, write_model
from launcher.engine.verify import CASES


@pytest.mark.parametrize("weights", TYPES)
def test_upstreams_reader_finds_finite_small_weights(tmp_path: Path, weights: str) -> None:
    reader = GGUFReader(write_model(tmp_path / "m.gguf", weights))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 9 * LAYERS
    query = tensors["blk.0.attn_q.weight"]
    assert query.tensor_type.name == weights.upper()
    assert list(query.shape) == [EMBEDDING, EMBEDDING]
    values = dequantize(query.data, query.tensor_type)
    assert numpy.isfinite(values).all()
    assert 0.005 < float(values.std()) < 0.2


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (write_model(tmp_path / name, "q4_0").read_bytes() for name in ("a", "b"))
    assert one == two
    assert write_model(tmp_path / "c", "q4_0", seed=2).read_bytes() != one


def test_every_case_of_verification_has_a_type() -> None:
    assert set(CASES) <= set(TYPES)
