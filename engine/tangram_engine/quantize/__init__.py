"""Weights in 8 or 4 bits, made from a 16- or 32-bit checkpoint while it is read.

The matrices of the layers are quantised; embedding, head, norms and biases stay as they are stored: they are
a small part of a large model, and its answers depend on them most. A head that is tied is the embedding.
"""

from tangram_engine.quantize.formats import (
    FORMATS,
    GROUP,
    LARGEST_FP8,
    Fp8Weight,
    Int4Weight,
    QuantizedWeight,
    bytes_of,
    quantizable,
    quantize,
    to_fp8,
    to_int4,
)

__all__ = [
    "FORMATS",
    "GROUP",
    "LARGEST_FP8",
    "Fp8Weight",
    "Int4Weight",
    "QuantizedWeight",
    "bytes_of",
    "quantizable",
    "quantize",
    "to_fp8",
    "to_int4",
]
