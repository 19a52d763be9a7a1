"""Fetch the checkpoint of an image, or its headers: each layer into a folder of its own, then the files that
are visible in the image into the directory, which appears when all of them are there and verified.

A layer's folder gets its name once the digest of the layer is right, so that a later fetch does not read it
again. A layer that was cut by the end of its container is read anew: the state of a decompressor is not kept.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from tangram.sources.checkpoint.answers import Retries
from tangram.sources.checkpoint.errors import changed, invalid, unreachable
from tangram.sources.checkpoint.files import (
    INDEX,
    SMALL_FILE_LIMIT,
    RemoteFile,
    checkpoint_files,
    is_checkpoint_file,
    parse_index,
)
from tangram.sources.download import Fetched, check_space, no_space, run_all, staging_of, sync_name
from tangram.sources.oci.layers import BlobRanges, BlobStream, LayerFile, explains, layer_files
from tangram.sources.oci.manifest import HIDES_ALL, WHITEOUT, Blob
from tangram.sources.oci.registry import ModelImage
from tangram.sources.progress import STALL_S, Progress
from tangram.sources.ranged_reads import INDEX_LIMIT, PREFIX, header_length
from tangram.sources.sparse_copy import sampled

COMPRESSED_LIMIT = 40_000_000_000  # bytes of layers that an inspection reads whole, within its deadline
_PIECE = 1 << 20
_VISIBLE = "visible"


def fetch_image(
    image: ModelImage,
    directory: Path,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    stall_s: float = STALL_S,
    size: int | None = None,
) -> Fetched:
    """Make `directory` hold the checkpoint of an image. Raises SourceError; then a later call continues.

    `size`: bytes that the inspection found in all layers; more are not written.
    """
    progress = Progress(sum(blob.size for blob in image.layers), clock, stall_s)
    fetched = _unpack(_Unpacking(image, progress, pause, size), directory, report)
    return Fetched(fetched, progress.seconds)


def write_headers(image: ModelImage, directory: Path, report: Callable[[str], None]) -> Fetched:
    """Write a copy in which tensors are holes, as `write_sparse_copy` does; return the bytes of a fetch.

    Raises SourceError. A layer that is not compressed is read by ranges, and others whole.
    """
    ranged = {blob for blob in image.layers if _has_holes(blob)}
    if ranged and not image.repository.reads_ranges(min(ranged, key=lambda blob: blob.size)):
        ranged = set()
    size = sum(blob.size for blob in image.layers if blob not in ranged)
    if size > COMPRESSED_LIMIT:
        text = f"{image.uri} has {size / 1e9:.0f} GB of layers that must be read whole to inspect it"
        most = f"at most {COMPRESSED_LIMIT / 1e9:.0f} GB are"
        raise invalid(f"{text}; {most}: push them uncompressed (tensors hardly compress)")
    progress = Progress(size, time.monotonic)
    unpacking = _Unpacking(image, progress, time.sleep, None, headers_only=True, ranged=frozenset(ranged))
    return Fetched(_unpack(unpacking, directory, report), progress.seconds)


def _has_holes(blob: Blob) -> bool:
    """Say whether ranges of a layer suffice for the headers; smaller files are read whole, and verified."""
    return not blob.compression and (not blob.name or blob.name.endswith(".safetensors"))


@dataclass(slots=True)
class _Unpacking:
    """Layers of an image on their way into their folders."""

    image: ModelImage
    progress: Progress
    pause: Callable[[float], None]
    limit: int | None  # bytes of all files
    headers_only: bool = False
    ranged: frozenset[Blob] = frozenset()  # layers that are read by ranges
    stopped: threading.Event = field(default_factory=threading.Event)
    written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def bring(self, blob: Blob, folder: Path) -> None:
        """Make `folder` hold the files of one layer, verified. Raises SourceError."""
        if folder.exists():
            for path in folder.iterdir():
                self._reserve(path.stat().st_size)
            self.progress.add_present(blob.size)
            return
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        repository = self.image.repository
        with explains(repository.uri, blob):
            if blob in self.ranged:
                self._save_all(layer_files(repository, blob, BlobRanges(repository, blob)), part)
            else:
                stream = BlobStream(repository, blob, Retries(self.pause, self.stopped.is_set), self._count)
                self._save_all(layer_files(repository, blob, stream), part)
                stream.verify()
        part.rename(folder)

    def _save_all(self, files: Iterable[LayerFile], folder: Path) -> None:
        for file in files:
            if file.name.startswith(WHITEOUT):
                (folder / file.name).touch()
                continue
            if not is_checkpoint_file(file.name):
                continue
            is_weights = file.name.endswith(".safetensors")
            if not is_weights and file.size > SMALL_FILE_LIMIT:
                limit = f"a file of its kind {SMALL_FILE_LIMIT >> 20} MiB at most"
                raise invalid(f"{self.image.uri}: {file.name} has {file.size} bytes, and {limit}")
            self._reserve(file.size)
            with (folder / file.name).open("wb") as out:
                if is_weights and self.headers_only:
                    _copy_sparse(f"{self.image.uri}: {file.name}", file, out)
                else:
                    shutil.copyfileobj(file.content, out, _PIECE)
                    out.flush()
                    os.fsync(out.fileno())  # the folder's name says that the layer is whole

    def _count(self, size: int) -> None:
        if self.stopped.is_set():
            raise unreachable("another layer failed")
        self.progress.add_fetched(size)

    def _reserve(self, size: int) -> None:
        with self._lock:
            self.written += size
            if self.limit is not None and self.written > self.limit:
                text = f"{self.image.uri} has more than the {self.limit} bytes that were inspected"
                raise changed(f"{text}: set model.revision to what is to be served")


def _unpack(unpacking: _Unpacking, directory: Path, report: Callable[[str], None]) -> int:
    """Make `directory`; return the bytes of the files of all layers."""
    image = unpacking.image
    staging = staging_of(directory, image.uri)
    visible = staging / _VISIBLE
    if visible.exists():  # a process ended while it moved files out of their layers
        shutil.rmtree(staging)
        staging.mkdir()
    if unpacking.limit is not None:
        check_space(staging, unpacking.limit)
    folders = [staging / f"{number:04}" for number in range(len(image.layers))]
    with no_space(staging):
        pairs = zip(image.layers, folders, strict=True)
        tasks = [partial(unpacking.bring, blob, folder) for blob, folder in pairs]
        run_all(tasks, image.uri, unpacking.progress, unpacking.stopped, report)
        files = _visible_files([{path.name: path for path in folder.iterdir()} for folder in folders])
        visible.mkdir()
        for name in _selected(image.uri, files):
            files[name].rename(visible / name)
        visible.rename(directory)
        sync_name(directory.parent)
    shutil.rmtree(staging)
    return unpacking.written


def _visible_files(layers: list[dict[str, Path]]) -> Mapping[str, Path]:
    """Return the files that an image shows: those of a higher layer replace or hide those below."""
    visible: dict[str, Path] = {}
    for layer in layers:
        if HIDES_ALL in layer:
            visible.clear()
        for name in layer:
            if name.startswith(WHITEOUT):
                visible.pop(name.removeprefix(WHITEOUT), None)
        visible |= {name: path for name, path in layer.items() if not name.startswith(WHITEOUT)}
    return visible


def _selected(uri: str, files: Mapping[str, Path]) -> list[str]:
    """Return the names of the files that an engine loads. Raises SourceError."""
    index = None
    if INDEX in files:
        if files[INDEX].stat().st_size > INDEX_LIMIT:
            raise invalid(f"{uri}: {INDEX} has more than {INDEX_LIMIT} bytes: upload a valid one")
        index = parse_index(uri, files[INDEX].read_bytes())
    remote = {name: RemoteFile(name, path.stat().st_size) for name, path in files.items()}
    return [file.name for file in checkpoint_files(uri, remote, index)]


def _copy_sparse(where: str, file: LayerFile, out: IO[bytes]) -> None:
    """Write header and samples of a safetensors file; the rest are holes. Raises SourceError."""
    prefix = file.content.read(PREFIX)
    header = prefix + file.content.read(header_length(where, prefix, file.size))
    out.write(header)
    for start, end in sorted(sampled(header, file.size)):
        file.skip_to(start, out.tell())
        out.seek(start)
        out.write(file.content.read(end - start))
    out.truncate(file.size)
