"""A model on a hub, from a person's machine: its config and headers, by ranged reads."""

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from huggingface_hub import get_token

from tangram.api import model_source
from tangram.catalog import Architecture, InputError
from tangram.cli.options.model_files import JSON_LIMIT, architecture_of
from tangram.sources.checkpoint.errors import SourceError
from tangram.sources.checkpoint.files import RemoteCheckpoint
from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import ENDPOINT, HubAccess
from tangram.sources.ranged_reads import read_header, read_whole

_PREFIX = 8  # bytes: the length of a header
_AT_ONCE = 8  # headers
_MOST_SHARDS = 1000  # whose headers are read: the largest models have some 200

T = TypeVar("T")


def hub_architecture(uri: str, field: str) -> Architecture:
    """Return the model of an hf:// URI, with the token of `hf auth login`. Raises `InputError`.

    HF_ENDPOINT names a mirror, as for every client of the hub.
    """
    try:
        source = model_source(uri)
    except ValueError as error:
        raise InputError(field, str(error).removeprefix("model.uri ")) from None
    token = get_token()
    access = HubAccess(os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/"), token, "`hf auth login`")
    checkpoint = _read(field, lambda: open_hub(source.repository, source.revision or None, access))
    return architecture_of(_HubFiles(checkpoint, field), source.repository.split("/")[1])


class _HubFiles:
    """The files of a repository. Headers are read side by side, when the first one is asked for."""

    def __init__(self, checkpoint: RemoteCheckpoint, field: str) -> None:
        self._checkpoint = checkpoint
        self._field = field
        self._headers: dict[str, bytes] = {}

    @property
    def place(self) -> str:
        return self._checkpoint.uri

    @property
    def names(self) -> Collection[str]:
        return self._checkpoint.files.keys()

    def where(self, name: str) -> str:
        return f"{self._checkpoint.uri}/{name}"

    def read(self, name: str) -> bytes:
        file = self._checkpoint.files[name]
        return _read(self._field, lambda: read_whole(self._checkpoint, file, JSON_LIMIT))

    def header(self, name: str) -> tuple[bytes, int]:
        if not self._headers:
            self._headers = _read(self._field, self._read_headers)
        file, header = self._checkpoint.files[name], self._headers.get(name)
        if header is None:
            header = _read(self._field, lambda: read_header(self._checkpoint, file))
        return header[_PREFIX:], file.size - len(header)

    def _read_headers(self) -> dict[str, bytes]:
        files = [file for name, file in self._checkpoint.files.items() if _is_shard(name)]
        if len(files) > _MOST_SHARDS:
            raise InputError(
                self._field, f"{self.place} has {len(files)} shards; at most {_MOST_SHARDS} are read"
            )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            headers = pool.map(lambda file: read_header(self._checkpoint, file), files)
            return {file.name: header for file, header in zip(files, headers, strict=True)}


def _is_shard(name: str) -> bool:
    return name.startswith("model") and name.endswith(".safetensors")


def _read(field: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except SourceError as error:
        raise InputError(field, error.message) from None
