"""The content of an input file that may be packed by gzip, in pieces and within a limit."""

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from tangram.catalog import InputError

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"


def unpacked(file: BinaryIO, shown: str, most_bytes: int) -> Iterator[bytes]:
    """Yield the content, gzip being recognised by its first bytes. Raises `InputError` about the file `shown`
    where gzip data is broken, and beyond `most_bytes` of content, however well it is packed.
    """
    first = file.read(_CHUNK)
    pieces = _gunzipped(first, file, shown) if first.startswith(_GZIP) else _plain(first, file)
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > most_bytes:
            raise InputError(shown, f"is larger than {most_bytes >> 20} MiB when unpacked")
        yield piece


def _plain(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    yield first
    while piece := file.read(_CHUNK):
        yield piece


def _gunzipped(packed: bytes, file: BinaryIO, shown: str) -> Iterator[bytes]:
    unpack = zlib.decompressobj(wbits=31)
    while packed:
        try:
            piece = unpack.decompress(packed, _CHUNK)
        except zlib.error:
            raise InputError(shown, "begins like gzip, but cannot be unpacked") from None
        yield piece
        packed = unpack.unconsumed_tail
        if unpack.eof:  # a file may have several members
            packed = unpack.unused_data.lstrip(b"\0") or file.read(_CHUNK).lstrip(b"\0")
            if not packed:
                return
            if not packed.startswith(_GZIP):
                raise InputError(shown, "has other data after its gzip data")
            unpack = zlib.decompressobj(wbits=31)
        elif not packed:
            packed = file.read(_CHUNK)
    raise InputError(shown, "is cut off: the gzip data has no end")
