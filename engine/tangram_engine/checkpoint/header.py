"""The safetensors header, validated before anything is mapped.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes without holes.
Source: the README of safetensors and the checks of its Rust reader (`SafeTensors::read_metadata`).
"""

import hashlib
import math
import struct
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tangram_engine.validation import locate

from .errors import invalid
from .files import open_inside, strict_object
from .spec import TensorEntry

# Bytes, about 140,000 tensors; the reference reader takes 100 MB, which need 2 GB here.
HEADER_LIMIT = 16 << 20
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor as the header describes it."""

    dtype: str
    shape: Annotated[list[_Natural], Meta(max_length=8)]
    data_offsets: tuple[_Natural, _Natural]


def read_header(directory: Path, name: str) -> tuple[dict[str, TensorEntry], bytes]:
    """All tensors of one file and the SHA-256 digest of its header and length."""
    raw, path, size, digest = _read_raw(directory, name)
    return _entries(strict_object(raw, f"{name} header"), path, name, 8 + len(raw), size), digest


def read_data_size(directory: Path, name: str) -> tuple[int, bytes]:
    """Bytes of the tensors of one file, of whatever types, and the digest of its header and length."""
    raw, _, size, digest = _read_raw(directory, name)
    return size - 8 - len(raw), digest


def _read_raw(directory: Path, name: str) -> tuple[bytes, Path, int, bytes]:
    """The header of one file as it is, with the file's real path, its size and the digest of both."""
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
    return raw, path, size, hashlib.sha256(b"%d:" % size + raw).digest()


def _entries(
    header: dict[str, Any], path: Path, name: str, data_start: int, size: int
) -> dict[str, TensorEntry]:
    _convert(header.pop("__metadata__", None), dict[str, str] | None, f"{name}: __metadata__")
    entries = {
        tensor: _entry(value, path, f"{name}: tensor {tensor[:200]!r}", data_start, size)
        for tensor, value in header.items()
    }
    _check_coverage(entries, name, data_start, size)
    return entries


def _convert(value: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid(": ".join(filter(None, [where, *locate(error)]))) from None


def _entry(value: Any, path: Path, where: str, data_start: int, size: int) -> TensorEntry:
    stored: _Stored = _convert(value, _Stored, where)
    dtype, shape = stored.dtype, tuple(stored.shape)
    if dtype not in _ITEM_BYTES:
        raise invalid(f"{where} has unknown dtype {dtype[:50]!r}")
    begin, end = stored.data_offsets
    if begin > end:
        raise invalid(f"{where}: data_offsets run backwards ({begin} to {end})")
    if end > size - data_start:
        raise invalid(f"{where} ends at byte {end}, the file holds {size - data_start}: it is truncated")
    expected = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != expected:
        raise invalid(f"{where} has {end - begin} bytes; shape {stored.shape} of {dtype} needs {expected}")
    return TensorEntry(file=path, dtype=dtype, shape=shape, offset=data_start + begin, nbytes=expected)


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
