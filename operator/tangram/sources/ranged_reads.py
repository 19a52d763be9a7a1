"""JSON files and safetensors headers of a remote checkpoint, by ranged reads."""

import struct

from tangram.sources.checkpoint.errors import changed, invalid
from tangram.sources.checkpoint.files import (
    INDEX,
    RemoteCheckpoint,
    RemoteFile,
    checkpoint_files,
    parse_index,
)

HEADER_LIMIT = 16 << 20  # bytes, about 140,000 tensors, as in the engine
INDEX_LIMIT = 16 << 20  # bytes, as in the engine; the largest published index has 10 MB
PREFIX = 8  # bytes: the header's length, little-endian
_GUESS = 128 << 10  # bytes that one read takes: most headers are shorter


def read_range(checkpoint: RemoteCheckpoint, file: RemoteFile, start: int, end: int) -> bytes:
    """Return the bytes from `start` up to `end` of a file. Raises SourceError."""
    content = b"".join(checkpoint.read(file, start, end))
    if len(content) != end - start:
        raise changed(
            f"{checkpoint.uri}: {file.name} ends {end - start - len(content)} bytes early: start again"
        )
    return content


def read_whole(checkpoint: RemoteCheckpoint, file: RemoteFile, limit: int) -> bytes:
    """Return a small file, verified. Raises SourceError."""
    if file.size > limit:
        raise invalid(f"{checkpoint.uri}: {file.name} has {file.size} bytes; at most {limit} are read")
    content = read_range(checkpoint, file, 0, file.size) if file.size else b""
    if file.digest is not None:
        hasher = file.digest.hasher(file.size)
        hasher.update(content)
        if hasher.hexdigest() != file.digest.value:
            raise changed(
                f"{checkpoint.uri}: {file.name} is not what the listing has: start again from a new revision"
            )
    return content


def read_header(checkpoint: RemoteCheckpoint, file: RemoteFile) -> bytes:
    """Return the beginning of a safetensors file: the length of the header, and the header."""
    where = f"{checkpoint.uri}: {file.name}"
    begin = read_range(checkpoint, file, 0, min(_GUESS, file.size))
    end = PREFIX + header_length(where, begin[:PREFIX], file.size)
    rest = read_range(checkpoint, file, len(begin), end) if end > len(begin) else b""
    return begin[:end] + rest


def header_length(where: str, prefix: bytes, size: int) -> int:
    """Return the bytes of the header that follows the first PREFIX bytes of a file. Raises SourceError."""
    if len(prefix) < PREFIX:
        raise invalid(f"{where} has {size} bytes, too few for a safetensors file: upload it again")
    (length,) = struct.unpack("<Q", prefix)
    if not 0 < length <= min(HEADER_LIMIT, size - PREFIX):
        raise invalid(f"{where} is no safetensors file (or a Git LFS pointer to one): upload it again")
    return int(length)


def files_of(checkpoint: RemoteCheckpoint) -> tuple[RemoteFile, ...]:
    """Return the files of a remote checkpoint that an engine loads. Raises SourceError."""
    index = checkpoint.files.get(INDEX)
    document = None
    if index is not None:
        document = parse_index(checkpoint.uri, read_whole(checkpoint, index, INDEX_LIMIT))
    return checkpoint_files(checkpoint.uri, checkpoint.files, document)
