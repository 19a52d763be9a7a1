"""Weight formats: bytes of a matrix with its scales and zeros, and the data type it is multiplied in."""

import re
from dataclasses import dataclass, replace
from math import ceil

from tangram.catalog.reading.errors import InputError
from tangram.catalog.reading.fields import LARGEST


@dataclass(frozen=True, slots=True)
class Precision:
    """How linear layers of the body are stored. Embeddings, head, norms and router stay 16-bit."""

    name: str
    bits: int  # per weight, without scales
    compute: tuple[str, ...]  # data types it is multiplied in, best first: keys of a GPU's FLOPS
    group: int | None = None  # input features that share a scale
    block_rows: int = 1  # output features that share a scale
    scale_bytes: int = 0  # per (block of rows, group)
    zero_bits: int = 0  # per (row, group)
    row_bytes: int = 0  # per output feature: per-channel scales
    column_bytes: int = 0  # per input feature: GPTQ's g_idx
    matrix_bytes: int = 0  # per matrix: global scales

    @property
    def quantised(self) -> bool:
        """Whether it needs scales."""
        return self.bits < 16

    def bytes_of(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of `rows` output and `columns` input features, scales and zeros included."""
        groups = ceil(columns / self.group) if self.group else 0
        return (
            ceil(rows * columns * self.bits / 8)
            + groups * ceil(rows / self.block_rows) * self.scale_bytes
            + groups * ceil(rows * self.zero_bits / 8)
            + rows * self.row_bytes
            + columns * self.column_bytes
            + self.matrix_bytes
        )


_SIXTEEN = ("bf16", "fp16")  # a GPU without bf16 (T4) computes in fp16

# Sources: compressed-tensors and vLLM's loaders (fp8: one fp32 scale per output channel, or per tensor, which
# is less; int8 likewise; packed: bf16 scales, a shape of two int64, zeros only where asymmetric), DeepSeek-V3
# README_WEIGHTS (fp8_block: fp32 scale_inv per 128 x 128), AutoAWQ and GPTQModel (int4: fp16 scale and 4-bit
# zero per group of 128, GPTQ with an int32 g_idx), NVIDIA ModelOpt (nvfp4: one fp8 scale per 16, fp32 weight
# and input scale per matrix), OCP microscaling formats (mxfp4, mxfp8: one e8m0 scale per 32), bitsandbytes
# (bnb4: one fp32 scale per 64 weights; nested: one byte, and one fp32 scale per 256 of these, not counted).
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("bf16", 16, _SIXTEEN),
        Precision("fp16", 16, ("fp16",)),
        Precision("fp32", 32, ("fp32",)),
        Precision("fp8", 8, ("fp8",), row_bytes=4),
        Precision("fp8_block", 8, ("fp8",), group=128, block_rows=128, scale_bytes=4),
        Precision("int8", 8, ("int8",), row_bytes=4),
        Precision("int4", 4, _SIXTEEN, group=128, scale_bytes=2, zero_bits=4),
        Precision("int4_gptq", 4, _SIXTEEN, group=128, scale_bytes=2, zero_bits=4, column_bytes=4),
        Precision("int8_gptq", 8, _SIXTEEN, group=128, scale_bytes=2, zero_bits=8, column_bytes=4),
        Precision("nvfp4", 4, ("fp4", "bf16"), group=16, scale_bytes=1, matrix_bytes=8),
        Precision("mxfp4", 4, ("bf16",), group=32, scale_bytes=1),
    )
}
# Layouts in which checkpoints are stored, beside these: engines convert to none of them.
STORED_LAYOUTS = {
    precision.name: precision
    for precision in (
        Precision("mxfp8", 8, ("fp8",), group=32, scale_bytes=1),
        Precision("int4_packed", 4, _SIXTEEN, group=128, scale_bytes=2, matrix_bytes=16),
        Precision("int8_packed", 8, _SIXTEEN, group=128, scale_bytes=2, matrix_bytes=16),
        Precision("int4_packed_zeros", 4, _SIXTEEN, group=128, scale_bytes=2, zero_bits=4, matrix_bytes=16),
        Precision("int8_packed_zeros", 8, _SIXTEEN, group=128, scale_bytes=2, zero_bits=8, matrix_bytes=16),
        Precision("bnb4", 4, _SIXTEEN, group=64, scale_bytes=4),
        Precision("bnb4_nested", 4, _SIXTEEN, group=64, scale_bytes=1),
        Precision("bnb_int8", 8, _SIXTEEN, row_bytes=4),
    )
}
_FORMATS = PRECISIONS | STORED_LAYOUTS
ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    **dict.fromkeys(
        ("awq", "awq_marlin", "awq_int4", "int4_awq", "w4a16", "w4a16_awq", "int4_wo", "4bit"), "int4"
    ),
    **dict.fromkeys(("gptq", "gptq_marlin", "gptq_int4", "int4_gptq", "w4a16_gptq"), "int4_gptq"),
    **dict.fromkeys(("w8a8", "w8a8_int8", "int8_w8a8", "smoothquant"), "int8"),
    **dict.fromkeys(("gptq_int8", "w8a16", "int8_wo"), "int8_gptq"),
    **dict.fromkeys(("fp8_e4m3", "e4m3", "fp8_w8a8", "w8a8_fp8", "fp8_dynamic"), "fp8"),
    **dict.fromkeys(("block_fp8", "fp8_blockwise"), "fp8_block"),
    "fp4": "nvfp4",
}
# Per element of the KV cache; in fp32 only the bundled engine keeps one, for checkpoints in fp32.
KV_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


def precision(name: str, field: str = "precision") -> Precision:
    """Return a format by name or alias. Raises `InputError`.

    `int4_g64` is int4 in groups of 64, `int4_channel` with one scale per output feature.
    """
    normalized = re.sub(r"[-\s]+", "_", name.strip().lower().removeprefix("torch."))
    grouped = re.fullmatch(
        r"(int4|int4_gptq|int8_gptq|int[48]_packed|int[48]_packed_zeros)_(?:g([1-9]\d{0,8})|channel)",
        normalized,
    )
    if grouped:
        base = _FORMATS[grouped[1]]
        return replace(base, name=normalized, group=int(grouped[2] or LARGEST))
    known_format = _FORMATS.get(ALIASES.get(normalized, normalized))
    if known_format is None:
        raise InputError(field, f"{name!r} is not a precision of weights; known are {', '.join(PRECISIONS)}")
    return known_format


def kv_bytes(name: str, field: str = "kv precision") -> int:
    """Return the bytes of one element of a KV cache. Raises `InputError`."""
    plain = ALIASES.get(name, name)
    if plain not in KV_BYTES:
        raise InputError(field, f"{name!r} is not one of {', '.join(KV_BYTES)}")
    return KV_BYTES[plain]
