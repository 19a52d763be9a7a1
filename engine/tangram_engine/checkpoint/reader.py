"""`read_checkpoint`: an untrusted directory -> a validated `Checkpoint`. Never imports torch."""

import hashlib
from pathlib import Path
from typing import Any

from .config import parse_config
from .errors import CheckpointError, invalid, not_found
from .files import exists, read_bytes, strict_object
from .header import read_header
from .spec import Checkpoint, TensorEntry
from .tensors import select, stored_dtype

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_CONFIG_LIMIT = 1 << 20
_INDEX_LIMIT = 16 << 20
_MAX_TENSORS = 200_000  # in all shards; each takes about a kilobyte here
_MAX_FILES = 4096
_CONFIG_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_checkpoint(directory: Path) -> Checkpoint:
    """Validate config.json and every safetensors header. Raises CheckpointError; reads no tensor data."""
    raw_config, config, generation = _read_configs(directory)
    # An unknown architecture is the more useful news, so it is reported before the weights are looked at.
    parse_config(config, generation, dtype="fp32")
    digest = hashlib.sha256(raw_config)
    tensors, files = _read_tensors(directory, digest)
    spec = parse_config(config, generation, dtype=stored_dtype(tensors))
    return Checkpoint(spec=spec, files=files, tensors=select(spec, tensors), digest=digest.hexdigest())


def read_shapes(directory: Path) -> Checkpoint:
    """A checkpoint without tensors, for random weights: config.json alone. Raises CheckpointError."""
    raw_config, config, generation = _read_configs(directory)
    name = config.get("dtype", config.get("torch_dtype"))
    dtype = _CONFIG_DTYPES.get(name, "bf16") if isinstance(name, str) else "bf16"
    spec = parse_config(config, generation, dtype=dtype)
    return Checkpoint(spec=spec, files=(), tensors={}, digest=hashlib.sha256(raw_config).hexdigest())


def _read_configs(directory: Path) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """config.json, as it is and parsed, and generation_config.json, which may be missing."""
    if not directory.is_dir():
        raise not_found(f"model directory {directory} does not exist")
    raw_config = read_bytes(directory, CONFIG, _CONFIG_LIMIT)
    config = strict_object(raw_config, CONFIG)
    generation = {}
    if exists(directory, GENERATION_CONFIG):
        generation = strict_object(read_bytes(directory, GENERATION_CONFIG, _CONFIG_LIMIT), GENERATION_CONFIG)
    return raw_config, config, generation


def _read_tensors(
    directory: Path, digest: "hashlib._Hash"
) -> tuple[dict[str, TensorEntry], tuple[Path, ...]]:
    weight_map = _weight_map(directory)
    names = [SINGLE] if weight_map is None else sorted(set(weight_map.values()))
    tensors: dict[str, TensorEntry] = {}
    origin: dict[str, str] = {}
    files: list[Path] = []
    for name in names:
        entries, header_digest = read_header(directory, name)
        digest.update(name.encode() + header_digest)
        files.append(directory.resolve() / name)
        if len(tensors) + len(entries) > _MAX_TENSORS:
            raise invalid(f"the checkpoint has more than {_MAX_TENSORS} tensors")
        for tensor, entry in entries.items():
            if tensor in origin:
                raise invalid(f"tensor {tensor[:200]!r} is in both {origin[tensor]} and {name}")
            origin[tensor] = name
            tensors[tensor] = entry
    if weight_map is not None:
        _check_index(weight_map, origin)
    return tensors, tuple(files)


def _weight_map(directory: Path) -> dict[str, str] | None:
    """Tensor -> file of a sharded checkpoint; None when there is a single file."""
    if exists(directory, SINGLE):
        return None
    if not exists(directory, INDEX):
        raise _no_weights(directory)
    weight_map = strict_object(read_bytes(directory, INDEX, _INDEX_LIMIT), INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise invalid(f"{INDEX}: weight_map must be an object that maps tensors to files")
    for name in weight_map.values():
        if not isinstance(name, str) or "/" in name or "\0" in name or not name.endswith(".safetensors"):
            raise invalid(f"{INDEX}: {str(name)[:100]!r} is not the name of a safetensors file beside it")
    if len(set(weight_map.values())) > _MAX_FILES:
        raise invalid(f"{INDEX} names more than {_MAX_FILES} files")
    return weight_map


def _check_index(weight_map: dict[str, str], origin: dict[str, str]) -> None:
    for tensor, name in weight_map.items():
        if origin.get(tensor) != name:
            raise invalid(f"{INDEX} says {tensor[:200]!r} is in {name}, but it is not")
    for tensor, name in origin.items():
        if tensor not in weight_map:
            raise invalid(f"{name} holds {tensor[:200]!r}, which {INDEX} does not list")


def _no_weights(directory: Path) -> CheckpointError:
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return invalid(
            f"{directory} has only pickled weights ({pickles[0][:100]}), which can run code when loaded; "
            "convert them with safetensors' `save_file` and add model.safetensors"
        )
    return not_found(f"{directory} has neither {SINGLE} nor {INDEX}")
