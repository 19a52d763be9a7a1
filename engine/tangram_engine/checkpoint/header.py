"""The safetensors header, validated before anything is mapped.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes without holes.
Source: the README of safetensors and the checks of its Rust reader (`SafeTensors::read_metadata`).
"""

import hashlib
import math
import struct
from pathlib import Path
from typing import Any

from .errors import CheckpointError, invalid
from .files import open_inside, strict_object
from .spec import TensorEntry

HEADER_LIMIT = (
    16 << 20
)  # bytes, about 140,000 tensors; the reference reader takes 100 MB, which need 2 GB here
_MAX_DIMENSIONS = 8
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


def read_header(directory: Path, name: str) -> tuple[dict[str, TensorEntry], bytes]:
    """All tensors of one file and the SHA-256 digest of its header and length."""
    stream, path, size = open_inside(directory, name)
    with stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise invalid(f"{name} is truncated: {size} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length > HEADER_LIMIT:
            raise invalid(f"{name}: the header claims {length} bytes; at most {HEADER_LIMIT} are accepted")
        if length > size - 8:
            raise invalid(f"{name} is truncated: its header needs {length} bytes, the file has {size - 8}")
        raw = stream.read(length)
    if len(raw) != length:
        raise invalid(f"{name} changed while it was read")
    digest = hashlib.sha256(b"%d:" % size + raw).digest()
    return _entries(strict_object(raw, f"{name} header"), path, name, 8 + length, size), digest


def _entries(
    header: dict[str, Any], path: Path, name: str, data_start: int, size: int
) -> dict[str, TensorEntry]:
    _check_metadata(header.pop("__metadata__", None), name)
    entries = {
        tensor: _entry(value, path, f"{name}: tensor {tensor[:200]!r}", data_start, size)
        for tensor, value in header.items()
    }
    _check_coverage(entries, name, data_start, size)
    return entries


def _check_metadata(metadata: Any, name: str) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise invalid(f"{name}: __metadata__ must map strings to strings")


def _entry(value: Any, path: Path, where: str, data_start: int, size: int) -> TensorEntry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise invalid(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise invalid(f"{where} has unknown dtype {str(dtype)[:50]!r}")
    if not _naturals(shape) or len(shape) > _MAX_DIMENSIONS:
        raise invalid(f"{where}: shape must be at most {_MAX_DIMENSIONS} non-negative integers")
    if not _naturals(offsets) or len(offsets) != 2:
        raise invalid(f"{where}: data_offsets must be two non-negative integers")
    begin, end = offsets
    if not begin <= end <= size - data_start:
        raise _outside(where, begin, end, size - data_start)
    wanted = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != wanted:
        raise invalid(f"{where} has {end - begin} bytes; shape {shape} of {dtype} needs {wanted}")
    return TensorEntry(file=path, dtype=dtype, shape=tuple(shape), offset=data_start + begin, nbytes=wanted)


def _outside(where: str, begin: int, end: int, available: int) -> CheckpointError:
    if begin > end:
        return invalid(f"{where}: data_offsets run backwards ({str(begin)[:30]} to {str(end)[:30]})")
    return invalid(f"{where} ends at byte {str(end)[:30]}, the file holds {available}: it is truncated")


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63 for item in value
    )


def _check_coverage(entries: dict[str, TensorEntry], name: str, data_start: int, size: int) -> None:
    """Tensors follow each other without overlap or hole, and end where the file ends."""
    position = data_start
    for tensor, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != position:
            problem = (
                "overlaps the tensor before it" if entry.offset < position else "leaves a hole before it"
            )
            raise invalid(f"{name}: tensor {tensor[:200]!r} {problem}")
        position += entry.nbytes
    if position != size:
        raise invalid(f"{name} has {size - position} bytes after its last tensor")
