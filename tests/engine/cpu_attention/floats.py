"""A model with F32 weights: products with them round nothing, and what two runs differ in is the attention."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_floats(model: Path, out: Path) -> Path:
    """The same model, each tensor dequantized (five times as large as with Q4_1)."""
    reader = gguf.GGUFReader(model)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in (gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE):
            continue
        element = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights.reshape(tuple(int(n) for n in tensor.shape[::-1])))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
