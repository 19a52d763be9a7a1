"""Read a model's config.json and the headers of the safetensors files beside it."""

import json
import os
import struct
from pathlib import Path
from typing import Any

from tangram.catalog import Architecture, InputError
from tangram.catalog.configs.model_config import CONFIG, architecture_from_config
from tangram.catalog.models.checkpoint import Entry, entries, shards, with_index_alone, with_stored_tensors
from tangram.cli.input_documents import file_bytes

INDEX = "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"
_JSON_LIMIT = 64 << 20  # bytes; the largest published index has 10 MB
_HEADER_LIMIT = 100 << 20  # bytes; the limit of the safetensors library
_PREFIX = 8  # bytes: the header's length, little-endian


def read_architecture(path: Path) -> Architecture:
    """Return the model of a directory or of a config file. Raises `InputError` naming file and key."""
    if not path.is_dir():
        config = _with_modelopt(path.parent, _object(path))
        return architecture_from_config(config, path.parent.name or path.name, str(path))
    file = path / CONFIG
    if not file.is_file():
        raise InputError(str(path), f"has no {CONFIG}{_other_content(path)}")
    architecture = architecture_from_config(
        _with_modelopt(path, _object(file)), path.resolve().name, str(file)
    )
    if (path / INDEX).is_file() and not any(path.glob("*.safetensors")):
        return with_index_alone(architecture, _object(path / INDEX), str(path / INDEX))
    stored = _stored(path)
    return architecture if stored is None else with_stored_tensors(architecture, stored)


def _other_content(directory: Path) -> str:
    """Return what a directory without a config.json holds instead, if that is recognised."""
    for pattern, what in (
        ("adapter_config.json", "it is a LoRA adapter: name its base model"),
        ("model_index.json", "it is a diffusers pipeline, not a language model"),
        ("*.gguf", "GGUF files are not read: name the model they were made of"),
    ):
        if any(directory.glob(pattern)):
            return f"; {what}"
    return ""


def _with_modelopt(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Add the weight format that older exports of NVIDIA ModelOpt keep in a file of its own."""
    path = directory / MODELOPT
    if config.get("quantization_config") is not None or not path.is_file():
        return config
    quantization = _object(path).get("quantization")
    if not isinstance(quantization, dict):
        raise InputError(f"{path}: quantization", "is missing")
    return config | {"quantization_config": quantization | {"quant_method": "modelopt"}}


def _stored(directory: Path) -> dict[str, Entry] | None:
    """Return the tensors of the checkpoint; None: the directory holds no weights."""
    index = directory / INDEX
    if not index.is_file():
        files = sorted(directory.glob("model*.safetensors"))
        return {name: entry for file in files for name, entry in _header(file).items()} if files else None
    tensors: dict[str, Entry] = {}
    for file, names in shards(_object(index), str(index)).items():
        header = _header(directory / file, f"{index}: weight_map")
        for name in names:
            if name not in header:
                raise InputError(f"{index}: weight_map", f"{file} holds no tensor {name[:200]!r}")
            tensors[name] = header[name]
    return tensors


def _header(path: Path, named_by: str = "") -> dict[str, Entry]:
    if not path.is_file():
        raise InputError(named_by or str(path), f"names {path.name}, which is not there")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(_PREFIX)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == _PREFIX else -1
            if not 0 < length <= min(_HEADER_LIMIT, size - _PREFIX):
                raise InputError(str(path), "is not a safetensors file (or a Git LFS pointer to one)")
            header = _parse(file.read(length), path)
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read") from None
    return entries(header, size - _PREFIX - length, str(path))


def _object(path: Path) -> dict[str, Any]:
    return _parse(file_bytes(path, "model", _JSON_LIMIT), path)


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise InputError(str(path), "is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise InputError(str(path), f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(str(path), "is not a JSON object")
    return document
