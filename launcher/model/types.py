"""Storage types of tensors and cache rows: how many elements a block holds and how many bytes it takes.

Ids and names are those of the pin (`enum ggml_type` in ggml/include/ggml.h, `type_traits` in ggml/src/ggml.c, block
structs in ggml/src/ggml-common.h). The turbo tiers are ours (patch 0073).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageType:
    """`block` elements of a row take `size` bytes."""

    name: str
    block: int
    size: int

    @property
    def quantized(self) -> bool:
        """True for types that store blocks with a scale; their rows must be whole blocks."""
        return self.block > 1

    @property
    def bits(self) -> float:
        """Bits per element, scales included."""
        return 8 * self.size / self.block

    def row_bytes(self, elements: int) -> int:
        """Bytes of one row (`ggml_row_size`). Raises ValueError where the row is not a whole number of blocks."""
        if elements % self.block:
            raise ValueError(f"a row of {elements} elements is no multiple of {self.name}'s block of {self.block}")
        return elements // self.block * self.size


# id: name, elements a block, bytes a block. Ids that are missing were removed from the format.
_GGUF: dict[int, StorageType] = {
    number: StorageType(name, block, size)
    for number, name, block, size in (
        (0, "f32", 1, 4),
        (1, "f16", 1, 2),
        (2, "q4_0", 32, 18),
        (3, "q4_1", 32, 20),
        (6, "q5_0", 32, 22),
        (7, "q5_1", 32, 24),
        (8, "q8_0", 32, 34),
        (9, "q8_1", 32, 36),
        (10, "q2_K", 256, 84),
        (11, "q3_K", 256, 110),
        (12, "q4_K", 256, 144),
        (13, "q5_K", 256, 176),
        (14, "q6_K", 256, 210),
        (15, "q8_K", 256, 292),
        (16, "iq2_xxs", 256, 66),
        (17, "iq2_xs", 256, 74),
        (18, "iq3_xxs", 256, 98),
        (19, "iq1_s", 256, 50),
        (20, "iq4_nl", 32, 18),
        (21, "iq3_s", 256, 110),
        (22, "iq2_s", 256, 82),
        (23, "iq4_xs", 256, 136),
        (24, "i8", 1, 1),
        (25, "i16", 1, 2),
        (26, "i32", 1, 4),
        (27, "i64", 1, 8),
        (28, "f64", 1, 8),
        (29, "iq1_m", 256, 56),
        (30, "bf16", 1, 2),
        (34, "tq1_0", 256, 54),
        (35, "tq2_0", 256, 66),
        (39, "mxfp4", 32, 17),
        (40, "nvfp4", 64, 36),
        (41, "q1_0", 128, 18),
        (42, "q2_0", 64, 18),
    )
}

# patch 0073: an f16 scale and 64 codes of 4, 3 or 2 bits
_TURBO = (StorageType("turbo4", 64, 34), StorageType("turbo3", 64, 26), StorageType("turbo2", 64, 18))

_BY_NAME: dict[str, StorageType] = {t.name: t for t in (*_GGUF.values(), *_TURBO)}


def storage_type(name: str) -> StorageType:
    """The type of this name. Raises KeyError for a name that neither the engine nor a patch knows."""
    return _BY_NAME[name]


def gguf_type(number: int) -> StorageType | None:
    """The type a GGUF tensor table means by this number, None for one that this format does not have."""
    return _GGUF.get(number)
