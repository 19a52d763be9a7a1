"""The files of a checkpoint in one layer, as they come: by ranged reads, or as a stream that is verified.

Links, devices and sparse files are none.
"""

import gzip
import hashlib
import io
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, cast

from tangram.sources.checkpoint.answers import Retries
from tangram.sources.checkpoint.errors import SourceError, changed, invalid, unreachable
from tangram.sources.oci.manifest import Blob, checkpoint_name
from tangram.sources.oci.registry import ImageRepository

if sys.version_info >= (3, 14):  # pragma: no cover
    from compression.zstd import ZstdError, ZstdFile
else:
    from backports.zstd import ZstdError, ZstdFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_MEMBERS = 100_000  # of one layer
HEADER_LIMIT = 1 << 20  # bytes of a member that only describes the next one
EXPANSION, EXPANSION_BASE = (
    64,
    64 << 20,
)  # bytes of a tar for each byte of a compressed layer, and beside them
_BUFFER = 1 << 20
_READ_AHEAD = 64 << 10  # bytes of a ranged read: of small files, many headers
_DESCRIBES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(frozen=True, slots=True)
class LayerFile:
    """One file of a layer; `content` is read before the next one is asked for."""

    name: str
    size: int  # bytes
    is_ranged: bool  # whether `content` is read where it is asked for
    content: IO[bytes]

    def skip_to(self, start: int, position: int) -> None:
        """Go from `position` of the content to `start`, where it can be sought without the bytes between."""
        if self.is_ranged:
            self.content.seek(start)
            return
        while position < start and (piece := self.content.read(min(_BUFFER, start - position))):
            position += len(piece)


class BlobRanges(io.RawIOBase):
    """A blob that is read where it is asked for. It verifies nothing."""

    def __init__(self, repository: ImageRepository, blob: Blob) -> None:
        self._repository, self._blob, self._position = repository, blob, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._blob.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes by one request."""
        view = memoryview(buffer)
        end = min(self._position + len(view), self._blob.size)
        if end <= self._position:
            return 0
        content = b"".join(self._repository.read(self._blob, self._position, end))
        if len(content) != end - self._position:
            raise unreachable(f"{self._repository.uri}: {self._blob.digest} was cut; the request is repeated")
        view[: len(content)] = content
        self._position = end
        return len(content)


class BlobStream(io.RawIOBase):
    """A blob from its beginning to its end, verified. A cut connection goes on where it was."""

    def __init__(
        self, repository: ImageRepository, blob: Blob, retries: Retries, count: Callable[[int], None]
    ) -> None:
        self._uri = f"{repository.uri}: {blob.digest}"
        self._hasher = hashlib.sha256()
        self._digest = blob.digest
        self._pieces = self._resumed(repository, blob, retries, count)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        view = memoryview(buffer)
        length = min(len(view), len(self._rest))
        view[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length

    def verify(self) -> None:
        """Read what is left, and compare the digest. Raises SourceError."""
        for _ in self._pieces:
            pass
        if f"sha256:{self._hasher.hexdigest()}" != self._digest:
            raise changed(f"{self._uri} is not what its digest says: the next fetch reads it anew")

    def _resumed(
        self, repository: ImageRepository, blob: Blob, retries: Retries, count: Callable[[int], None]
    ) -> Iterator[bytes]:
        position = 0
        while position < blob.size:
            before = position
            try:
                for piece in repository.read(blob, position, blob.size):
                    position += len(piece)
                    self._hasher.update(piece)
                    count(len(piece))
                    yield piece
                if position < blob.size:
                    raise unreachable(f"{self._uri} was cut after {position} of {blob.size} bytes")
            except SourceError as error:
                retries.after(error, progressed=position > before)


class _Expanded(io.RawIOBase):
    """What a decompressor yields, at most `limit` bytes."""

    def __init__(self, inner: IO[bytes], limit: int, where: str) -> None:
        self._inner, self._left, self._where = inner, limit, where

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)
        content = self._inner.read(len(view))
        self._left -= len(content)
        if self._left < 0:
            raise _expands(self._where)
        view[: len(content)] = content
        return len(content)


def _expands(where: str) -> SourceError:
    return invalid(f"{where} has more than {EXPANSION} times its size: push it uncompressed")


class _Member(tarfile.TarInfo):
    """A member whose description is bounded: `tarfile` reads it whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        member = super().frombuf(buf, encoding, errors)
        if member.type in _DESCRIBES and member.size > HEADER_LIMIT:
            raise tarfile.ReadError(f"a description of {member.size} bytes")
        return member


def layer_files(
    repository: ImageRepository, blob: Blob, stream: BlobRanges | BlobStream
) -> Iterator[LayerFile]:
    """Yield the files of a layer, and its whiteouts as empty files. Raises what `explains` explains."""
    where = f"{repository.uri}: layer {blob.digest}"
    if blob.name:
        yield LayerFile(blob.name, blob.size, stream.seekable(), io.BufferedReader(stream, _READ_AHEAD))
    else:
        yield from _members(where, _expanded(blob, stream, where), blob)


def _expanded(blob: Blob, stream: BlobRanges | BlobStream, where: str) -> IO[bytes]:
    buffered = io.BufferedReader(stream, _READ_AHEAD if stream.seekable() else _BUFFER)
    if not blob.compression:
        return cast("IO[bytes]", buffered)
    # Both read layers of several members or frames, as pigz, stargz and zstd:chunked write them.
    inner = gzip.GzipFile(fileobj=buffered) if blob.compression == "gzip" else ZstdFile(buffered)
    expanded = _Expanded(cast("IO[bytes]", inner), _most_expanded(blob), where)
    return cast("IO[bytes]", io.BufferedReader(expanded, _BUFFER))


def _most_expanded(blob: Blob) -> int:
    """Return the most bytes that the tar of a layer may have."""
    return EXPANSION * blob.size + EXPANSION_BASE if blob.compression else blob.size


def _members(where: str, stream: IO[bytes], blob: Blob) -> Iterator[LayerFile]:
    mode: Literal["r:", "r|"] = "r:" if stream.seekable() else "r|"
    with _tar_errors(), tarfile.open(fileobj=stream, mode=mode, tarinfo=_Member) as tar:
        count = 0
        while (member := tar.next()) is not None:
            vars(tar)["members"].clear()  # else they stay in memory
            count += 1
            if count > MOST_MEMBERS:
                raise invalid(f"{where} has more than {MOST_MEMBERS} files: push the checkpoint alone")
            if member.size < 0:
                raise tarfile.ReadError(f"a file of {member.size} bytes")
            name = checkpoint_name(member.name)
            content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if name is not None and content is not None:
                yield LayerFile(name, member.size, stream.seekable(), content)
            # `tarfile` skips to the end of the file, for years where the stream has long ended.
            if tar.offset > _most_expanded(blob) + tarfile.BLOCKSIZE:
                raise _expands(where) if blob.compression else tarfile.ReadError("it was cut")


@contextmanager
def _tar_errors() -> Iterator[None]:
    """Have `tarfile` raise no errors but its own: of some headers it raises what `int` and `seek` do."""
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        raise tarfile.ReadError(str(error)) from None


@contextmanager
def explains(uri: str, blob: Blob) -> Iterator[None]:
    """Turn what tar and decompressors find wrong with a layer into SourceErrors."""
    try:
        yield
    except (tarfile.TarError, zlib.error, ZstdError, EOFError, gzip.BadGzipFile) as error:
        text = f"{uri}: layer {blob.digest} is no tar that can be read ({str(error)[:200]})"
        raise invalid(f"{text}: push it again") from None
