"""Read a model's config.json and the headers of the safetensors files beside it, here or on a hub."""

import json
import os
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from tangram.catalog import Architecture, InputError
from tangram.catalog.configs.model_config import CONFIG, architecture_from_config
from tangram.catalog.models.checkpoint import Entry, entries, shards, with_index_alone, with_stored_tensors
from tangram.cli.input_documents import file_bytes
from tangram.sources.checkpoint.files import INDEX, SINGLE

MODELOPT = "hf_quant_config.json"
JSON_LIMIT = 64 << 20  # bytes; the largest published index has 10 MB
_HEADER_LIMIT = 100 << 20  # bytes; the limit of the safetensors library
_PREFIX = 8  # bytes: the header's length, little-endian


class ModelFiles(Protocol):
    """The files of one model, in one place."""

    @property
    def place(self) -> str:
        """What people call the place."""

    @property
    def names(self) -> Collection[str]:
        """Names of the files, without those in folders."""

    def where(self, name: str) -> str:
        """Return what people call one of the files."""

    def read(self, name: str) -> bytes:
        """Return a JSON file. Raises `InputError`."""

    def header(self, name: str) -> tuple[bytes, int]:
        """Return the header of a safetensors file, and the bytes behind it. Raises `InputError`."""


class LocalFiles:
    """The files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def names(self) -> Collection[str]:
        """Names in it, of folders, too: reading one says so."""
        return {path.name for path in self._directory.iterdir()}

    def where(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._directory / name)

    def read(self, name: str) -> bytes:
        """Return a JSON file. Raises `InputError`."""
        return file_bytes(self._directory / name, "model", JSON_LIMIT)

    def header(self, name: str) -> tuple[bytes, int]:
        """Return the header of a safetensors file, and the bytes behind it. Raises `InputError`."""
        path = self._directory / name
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                prefix = file.read(_PREFIX)
                length = struct.unpack("<Q", prefix)[0] if len(prefix) == _PREFIX else -1
                if not 0 < length <= min(_HEADER_LIMIT, size - _PREFIX):
                    raise InputError(str(path), "is not a safetensors file (or a Git LFS pointer to one)")
                return file.read(length), size - _PREFIX - length
        except OSError as error:
            raise InputError(str(path), error.strerror or "cannot be read") from None


def read_architecture(path: Path) -> Architecture:
    """Return the model of a directory or of a config file. Raises `InputError` naming file and key."""
    if path.is_dir():
        return architecture_of(LocalFiles(path), path.resolve().name)
    config = _with_modelopt(LocalFiles(path.parent), _parse(file_bytes(path, "model", JSON_LIMIT), str(path)))
    return architecture_from_config(config, path.parent.name or path.name, str(path))


def architecture_of(files: ModelFiles, name: str) -> Architecture:
    """Return the model of these files. Raises `InputError` naming file and key."""
    names = files.names
    if CONFIG not in names:
        raise InputError(files.place, f"has no {CONFIG}{_other_content(names)}")
    config = _with_modelopt(files, _object(files, CONFIG))
    architecture = architecture_from_config(config, name, files.where(CONFIG))
    if INDEX in names and not any(name.endswith(".safetensors") for name in names):
        return with_index_alone(architecture, _object(files, INDEX), files.where(INDEX))
    stored = _stored(files)
    return architecture if stored is None else with_stored_tensors(architecture, stored)


def _other_content(names: Collection[str]) -> str:
    """Return what a directory without a config.json holds instead, if that is recognised."""
    if "adapter_config.json" in names:
        return "; it is a LoRA adapter: name its base model"
    if "model_index.json" in names:
        return "; it is a diffusers pipeline, not a language model"
    if any(name.endswith(".gguf") for name in names):
        return "; GGUF files are not read: name the model they were made of"
    return ""


def _with_modelopt(files: ModelFiles, config: dict[str, Any]) -> dict[str, Any]:
    """Add the weight format that older exports of NVIDIA ModelOpt keep in a file of its own."""
    if config.get("quantization_config") is not None or MODELOPT not in files.names:
        return config
    quantization = _object(files, MODELOPT).get("quantization")
    if not isinstance(quantization, dict):
        raise InputError(f"{files.where(MODELOPT)}: quantization", "is missing")
    return config | {"quantization_config": quantization | {"quant_method": "modelopt"}}


def _stored(files: ModelFiles) -> dict[str, Entry] | None:
    """Return the tensors of the checkpoint; None: the directory holds no weights.

    SINGLE counts alone, whatever an index says, as for engines and fetches.
    """
    if SINGLE in files.names:
        return _header(files, SINGLE)
    if INDEX not in files.names:
        names = sorted(n for n in files.names if n.startswith("model") and n.endswith(".safetensors"))
        found = {tensor: entry for name in names for tensor, entry in _header(files, name).items()}
        return found if names else None
    index, tensors = files.where(INDEX), dict[str, Entry]()
    for file, expected in shards(_object(files, INDEX), index).items():
        if file not in files.names:
            raise InputError(f"{index}: weight_map", f"names {file}, which is not there")
        header = _header(files, file)
        for name in expected:
            if name not in header:
                raise InputError(f"{index}: weight_map", f"{file} holds no tensor {name[:200]!r}")
            tensors[name] = header[name]
    return tensors


def _header(files: ModelFiles, name: str) -> dict[str, Entry]:
    text, data_bytes = files.header(name)
    return entries(_parse(text, files.where(name)), data_bytes, files.where(name))


def _object(files: ModelFiles, name: str) -> dict[str, Any]:
    return _parse(files.read(name), files.where(name))


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise InputError(where, "is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise InputError(where, f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(where, "is not a JSON object")
    return document
