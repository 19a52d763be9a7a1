"""A copy of a remote checkpoint in which tensors are holes: the engine's `inspect` reads it like the whole.

Every file has its true size, and JSON files, tokenizers and headers their true content, so that a checkpoint
of 400 GB takes some megabytes of transfer and disk, and seconds. An engine compares a head with the embedding
that it may be tied to: of these two tensors the first bytes are true.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tangram.sources.checkpoint.files import SMALL_FILE_LIMIT, RemoteCheckpoint, RemoteFile
from tangram.sources.download import no_space
from tangram.sources.ranged_reads import files_of, read_header, read_range, read_whole

_COMPARED = ("model.embed_tokens.weight", "lm_head.weight")
_AT_ONCE = 8  # files
_SAMPLE = 1 << 20  # bytes of each


def write_sparse_copy(checkpoint: RemoteCheckpoint, directory: Path) -> tuple[RemoteFile, ...]:
    """Write the copy into `directory`, and return the files of the checkpoint. Raises SourceError."""
    directory.mkdir(parents=True, exist_ok=True)
    files = files_of(checkpoint)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        copies = [pool.submit(_copy, checkpoint, file, directory) for file in files]
        try:
            for copy in copies:
                copy.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return files


def _copy(checkpoint: RemoteCheckpoint, file: RemoteFile, directory: Path) -> None:
    with no_space(directory), (directory / file.name).open("wb") as copy:
        if not file.name.endswith(".safetensors"):
            copy.write(read_whole(checkpoint, file, SMALL_FILE_LIMIT))
            return
        header = read_header(checkpoint, file)
        copy.write(header)
        for start, end in sampled(header, file.size):
            copy.seek(start)
            copy.write(read_range(checkpoint, file, start, end))
        copy.truncate(file.size)


def sampled(header: bytes, size: int) -> list[tuple[int, int]]:
    """Return the ranges of a file whose bytes the engine looks at, none where its header is not valid."""
    try:
        tensors: dict[str, Any] = json.loads(header[8:])
        offsets = [tensors[name]["data_offsets"] for name in _COMPARED if name in tensors]
        ranges = [(len(header) + int(begin), len(header) + int(end)) for begin, end in offsets]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []  # inspect says what is wrong with it
    return [(start, min(end, start + _SAMPLE)) for start, end in ranges if len(header) <= start < end <= size]
