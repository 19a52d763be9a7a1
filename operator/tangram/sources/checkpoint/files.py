"""Which files of a repository an engine loads, and why a repository has none. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from tangram.catalog import InputError
from tangram.catalog.models.checkpoint import shards
from tangram.sources.checkpoint.errors import SourceError, SourceReason, invalid

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_FILES = 4096  # of one checkpoint, as in the engine
SMALL_FILE_LIMIT = 64 << 20  # bytes of a file that is not safetensors; the largest tokenizers have 40 MB
_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.txt", "merges.txt", "chat_template.jinja")
_SUFFIXES = (".json", ".tiktoken")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class Digest:
    """What a source publishes about the content of a file."""

    algorithm: str  # sha256 | git (SHA-1 of a blob object of git)
    value: str  # hexadecimal

    def hasher(self, size: int) -> "hashlib._Hash":
        """Return the hash that has this value after all `size` bytes of the file."""
        if self.algorithm == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a pinned revision."""

    name: str
    size: int  # bytes
    digest: Digest | None = None


class RemoteCheckpoint(Protocol):
    """A repository at a pinned revision."""

    @property
    def uri(self) -> str:
        """The URI with the pinned revision."""

    @property
    def revision(self) -> str:
        """The pinned revision: it names the same bytes for ever."""

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        """The files outside of folders, by name."""

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to `end` of a file. Raises SourceError."""


def checkpoint_files(
    uri: str, files: Mapping[str, RemoteFile], index: Mapping[str, Any] | None
) -> tuple[RemoteFile, ...]:
    """Return what an engine loads: weights as safetensors, tokenizer, JSON and chat template, by name.

    `index`: the parsed INDEX, None where there is none. Beside SINGLE it is left out: vLLM and SGLang load
    the shards that an index names, and no other file. Never code, pickles or anything in folders.
    Raises SourceError where the repository is no checkpoint.
    """
    check_has_config(uri, files)
    weights = _weights(uri, files, index)
    left_out = INDEX if SINGLE in files else ""
    small = [file for name, file in files.items() if _is_small_file(name) and name != left_out]
    for file in small:
        if file.size > SMALL_FILE_LIMIT:
            limit = f"{SMALL_FILE_LIMIT >> 20} MiB"
            raise invalid(f"{uri}: {file.name} has {file.size} bytes, and a file of its kind {limit} at most")
    if len(weights) + len(small) > MOST_FILES:
        count = len(weights) + len(small)
        raise invalid(
            f"{uri} has {count} files of a checkpoint; at most {MOST_FILES} are fetched: merge its shards"
        )
    return tuple(sorted((*weights, *small), key=lambda file: file.name))


def check_has_config(uri: str, names: Collection[str]) -> None:
    """Raise SourceError where there is no config.json, with what the repository seems to be instead."""
    if CONFIG in names:
        return
    if "adapter_config.json" in names:
        raise invalid(f"{uri} is a LoRA adapter, not a model: name its base model, or merge the two")
    if "model_index.json" in names:
        raise invalid(f"{uri} is a diffusers pipeline, not a language model: name a language model")
    if any(name.endswith(".gguf") for name in names):
        raise invalid(f"{uri} has GGUF files only: name the safetensors model that they were made of")
    raise SourceError(SourceReason.NOT_FOUND, f"{uri} has no {CONFIG}: name the directory of a checkpoint")


def parse_index(uri: str, text: bytes) -> dict[str, Any]:
    """Return the parsed INDEX. Raises SourceError."""
    return parse_object(f"{uri}: {INDEX}", text)


def parse_object(where: str, text: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises SourceError."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise invalid(f"{where} is nested too deeply: upload a valid one") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise invalid(f"{where} is not JSON ({error}): upload a valid one") from None
    if not isinstance(document, dict):
        raise invalid(f"{where} is not a JSON object: upload a valid one")
    return document


def _weights(
    uri: str, files: Mapping[str, RemoteFile], index: Mapping[str, Any] | None
) -> tuple[RemoteFile, ...]:
    if SINGLE in files:  # as the bundled engine does, whatever an index says
        return (files[SINGLE],)
    if index is None:
        raise _no_weights(uri, files)
    try:
        names = sorted(shards(index, f"{uri}: {INDEX}"))
    except InputError as error:
        raise invalid(f"{error}: upload a valid index") from None
    foreign = next((name for name in names if not name.endswith(".safetensors")), None)
    if foreign is not None:
        raise invalid(f"{uri}: {INDEX} names {foreign[:100]!r}, which is no safetensors file: convert it")
    missing = [name for name in names if name not in files]
    if missing:
        count = f"{len(missing)} of {len(names)} files that are not there"
        raise invalid(f"{uri}: {INDEX} names {count}, first {missing[0][:100]!r}: finish the upload")
    return tuple(files[name] for name in names)


def _no_weights(uri: str, names: Collection[str]) -> SourceError:
    pickle = next((name for name in sorted(names) if PurePosixPath(name).suffix in _PICKLES), None)
    if pickle is not None:
        text = f"{uri} has pickled weights only ({pickle[:100]}), which can run code when they are loaded"
        return invalid(f"{text}: convert them to safetensors")
    if any(name.endswith(".gguf") for name in names):
        return invalid(f"{uri} has GGUF files only: name the safetensors model that they were made of")
    other = next((name for name in sorted(names) if name.endswith(".safetensors")), None)
    beside = "" if other is None else f" (it has {other[:100]})"
    return invalid(f"{uri} has neither {SINGLE} nor {INDEX}{beside}: upload one of them")


def is_checkpoint_file(name: str) -> bool:
    """Say whether a file may be one of a checkpoint."""
    return name.endswith(".safetensors") or _is_small_file(name)


def _is_small_file(name: str) -> bool:
    return name.endswith(_SUFFIXES) or name in _TOKENIZERS
