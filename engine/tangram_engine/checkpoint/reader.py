"""`read_checkpoint`: an untrusted directory -> a validated `Checkpoint`. Never imports torch."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from .config import parse_config
from .config_values import CONFIG, GENERATION_CONFIG
from .errors import CheckpointError, invalid, not_found
from .files import exists, read_bytes, strict_object
from .header import read_data_size, read_header
from .spec import Checkpoint, DecoderSpec, OtherCheckpoint, TensorEntry
from .tensors import EMBEDDING, HEAD, can_lack, equal_data, select, stored_dtype

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_CONFIG_LIMIT = 1 << 20
_INDEX_LIMIT = 16 << 20
_MAX_TENSORS = 200_000  # in all shards; each takes about a kilobyte here
_MAX_FILES = 4096
_CONFIG_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_checkpoint(directory: Path) -> Checkpoint:
    """Validate config.json and every safetensors header. Raises CheckpointError.

    Reads no data of tensors, except of a head that is stored beside the embedding it is tied to. Training
    leaves such files. Where the two differ, both are loaded, as transformers 5 does.
    """
    raw_config, config, generation = _read_configs(directory)
    # An unknown architecture is the more useful news, so it is reported before the weights are looked at.
    spec = parse_config(config, generation, dtype="fp32")
    digest = hashlib.sha256(raw_config)
    stored = _read_tensors(directory, spec, digest)
    if spec.tied_embeddings and _has_own_head(stored):
        spec = replace(spec, tied_embeddings=False)
        digest.update(b"own head")  # which the headers do not show
    tensors = select(spec, stored)
    spec = replace(spec, dtype=stored_dtype(tensors))
    return Checkpoint(spec=spec, tensors=tensors, digest=digest.hexdigest())


def read_other(directory: Path) -> OtherCheckpoint | None:
    """The parts of a checkpoint that this engine does not implement, for other runtimes; None: it does.

    No tensor is looked at but for its bytes. Raises CheckpointError for files that no runtime should load.
    """
    raw_config, config, generation = _read_configs(directory)
    try:
        parse_config(config, generation, dtype="fp32")
    except CheckpointError:
        pass
    else:
        return None
    weight_map, digest, weight_bytes = _weight_map(directory), hashlib.sha256(raw_config), 0
    for name in [SINGLE] if weight_map is None else sorted(set(weight_map.values())):
        size, header_digest = read_data_size(directory, name)
        digest.update(name.encode() + header_digest)
        weight_bytes += size
    return OtherCheckpoint(config, weight_bytes, digest.hexdigest())


def read_shapes(directory: Path) -> Checkpoint:
    """A checkpoint without tensors, for random weights: config.json alone. Raises CheckpointError."""
    raw_config, config, generation = _read_configs(directory)
    name = config.get("dtype") or config.get("torch_dtype")  # of transformers 5 and 4
    dtype = _CONFIG_DTYPES.get(str(name).removeprefix("torch."), "bf16")
    spec = parse_config(config, generation, dtype=dtype)
    return Checkpoint(spec=spec, tensors={}, digest=hashlib.sha256(raw_config).hexdigest())


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


def _read_tensors(directory: Path, spec: DecoderSpec, digest: "hashlib._Hash") -> dict[str, TensorEntry]:
    """Every tensor that is stored, needed or not."""
    weight_map = _weight_map(directory)
    names = [SINGLE] if weight_map is None else sorted(set(weight_map.values()))
    tensors: dict[str, TensorEntry] = {}
    origin: dict[str, str] = {}
    for name in names:
        entries, header_digest = read_header(directory, name)
        digest.update(name.encode() + header_digest)
        if len(tensors) + len(entries) > _MAX_TENSORS:
            raise invalid(f"the checkpoint has more than {_MAX_TENSORS} tensors")
        for tensor, entry in entries.items():
            if tensor in origin:
                raise invalid(f"tensor {tensor[:200]!r} is in both {origin[tensor]} and {name}")
            origin[tensor] = name
            tensors[tensor] = entry
    if weight_map is not None:
        _check_index(spec, weight_map, origin)
    return tensors


def _has_own_head(stored: dict[str, TensorEntry]) -> bool:
    embedding, head = stored.get(EMBEDDING), stored.get(HEAD)
    return embedding is not None and head is not None and not equal_data(embedding, head)


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


def _check_index(spec: DecoderSpec, weight_map: dict[str, str], origin: dict[str, str]) -> None:
    """The index and the headers agree on every tensor, but for those that the model can do without."""
    for tensor, name in weight_map.items():
        if origin.get(tensor) != name and (tensor in origin or not can_lack(spec, tensor)):
            raise invalid(f"{INDEX} says {tensor[:200]!r} is in {name}, but it is not")
    for tensor, name in origin.items():
        if tensor not in weight_map and not can_lack(spec, tensor):
            raise invalid(f"{name} holds {tensor[:200]!r}, which {INDEX} does not list")


def _no_weights(directory: Path) -> CheckpointError:
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return invalid(
            f"{directory} has only pickled weights ({pickles[0][:100]}), which can run code when loaded; "
            "convert them with safetensors' `save_file` and add model.safetensors"
        )
    return not_found(f"{directory} has neither {SINGLE} nor {INDEX}")
