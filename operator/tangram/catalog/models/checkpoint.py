"""The tensors that a checkpoint stores, by its safetensors headers. Pure; `cli` reads the files."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from tangram.catalog.models.architecture import NO_VISION, Architecture, StoredTensor
from tangram.catalog.models.precision import precision
from tangram.catalog.models.tensors import Tensor
from tangram.catalog.reading.errors import InputError
from tangram.catalog.reading.fields import Fields

# Bits per element, by the name that safetensors gives a data type.
DTYPE_BITS = {
    name: bits
    for bits, names in (
        (64, ("F64", "I64", "U64")),
        (32, ("F32", "I32", "U32")),
        (16, ("BF16", "F16", "I16", "U16")),
        (8, ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0")),
        (4, ("F4",)),
    )
    for name in names
}
_FLOATS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
# Computed by every engine, stored by old versions of transformers.
_BUFFER = re.compile(r"\.(rotary_emb\.inv_freq|masked_bias)$")


INDEX_ALONE = "weights (as config.json implies; the files of the index are not there)"
# Drafts, vision towers and buffers are stored beside what the config implies; another model differs by more.
_SUMS_DIFFER = 1.3


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a header."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def shards(index: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """Return the tensors that `model.safetensors.index.json` expects of each file. Raises `InputError`."""
    weights = Fields(index, where).under("weight_map")
    if weights is None or not weights.values:
        raise InputError(f"{where}: weight_map", "is missing")
    tensors_by_file: dict[str, list[str]] = {}
    for tensor in weights.values:
        file = weights.text(tensor)
        if not file or PurePosixPath(file).name != file or "\0" in file:
            raise weights.error(tensor, f"{file!r} is not a file name")
        tensors_by_file.setdefault(file, []).append(tensor)
    return tensors_by_file


def with_index_alone(architecture: Architecture, index: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture with sizes by its config, marked: of the weights only the index is there.

    The index names tensors and has the sum of their bytes. Raises `InputError` where the sum is not that of
    an unquantised checkpoint of this config.
    """
    names = {name for tensors in shards(index, where).values() for name in tensors}
    metadata = Fields(index, where).under("metadata")
    total = metadata.values.get("total_size") if metadata is not None else None
    if architecture.quantization is None and isinstance(total, int | float) and total > 0:
        elements = architecture.parameters
        if architecture.tied_embeddings and "lm_head.weight" in names:
            elements += architecture.vocab_size * architecture.hidden_size
        implied = elements * precision(architecture.dtype).bits / 8
        if not 1 / _SUMS_DIFFER < total / implied < _SUMS_DIFFER:
            raise InputError(
                f"{where}: metadata: total_size",
                f"is {total / 1e9:.1f} GB; config.json implies {implied / 1e9:.1f}",
            )
    return replace(architecture, unverified=(*architecture.unverified, INDEX_ALONE))


def entries(header: Mapping[str, Any], data_bytes: int, where: str) -> dict[str, Entry]:
    """Return the tensors of one file; `data_bytes` follow its header. Raises `InputError`."""
    fields = Fields(header, where)
    tensors: dict[str, Entry] = {}
    for name in header:
        entry = fields.under(name) if name != "__metadata__" else None
        if entry is not None:
            tensors[name] = _entry(entry, data_bytes)
    return tensors


def _entry(fields: Fields, data_bytes: int) -> Entry:
    dtype, shape = fields.text("dtype"), fields.sizes("shape")
    if dtype not in DTYPE_BITS:
        raise fields.error("dtype", f"{dtype!r} is not a data type of safetensors")
    offsets = fields.sizes("data_offsets")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise fields.error(
            "data_offsets", f"{list(offsets)} do not lie within the file's {data_bytes} bytes of data"
        )
    nbytes = math.ceil(math.prod(shape) * DTYPE_BITS[dtype] / 8)
    if offsets[1] - offsets[0] != nbytes:
        raise fields.error("shape", f"{list(shape)} of {dtype} needs {nbytes} bytes, the offsets differ")
    return Entry(dtype, shape, nbytes)


def with_stored_tensors(architecture: Architecture, tensors: Mapping[str, Entry]) -> Architecture:
    """Return the architecture with the stored tensors that an engine loads.

    Left out: layers beyond the config's (drafts for speculative decoding), a head that is tied, buffers.
    Raises `InputError` where an unquantised checkpoint is not that of the config.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[Entry]] = {}
    for name, entry in tensors.items():
        if not _is_left_out(architecture, name):
            groups.setdefault((_pattern(name), entry.dtype, entry.shape), []).append(entry)
    stored = tuple(
        StoredTensor(name, dtype, shape, len(group), sum(entry.nbytes for entry in group))
        for (name, dtype, shape), group in groups.items()
    )
    if not sum(tensor.nbytes for tensor in stored):
        raise InputError("safetensors", "the files hold no weights of the model")
    dtype = _dtype(stored) or architecture.dtype
    unverified = tuple(note for note in architecture.unverified if note != NO_VISION)  # it is stored too
    updated = replace(architecture, dtype=dtype, stored_tensors=stored, unverified=unverified)
    if architecture.quantization is None:
        _check(updated)
    return updated


def _is_left_out(architecture: Architecture, name: str) -> bool:
    layer = re.search(r"\blayers\.(\d{1,9})\.", name)
    beyond = layer is not None and "vision" not in name and int(layer[1]) >= architecture.layers
    tied = architecture.tied_embeddings and name.startswith("lm_head.")
    return beyond or tied or name.startswith("mtp.") or _BUFFER.search(name) is not None


def _pattern(name: str) -> str:
    """Layer and expert become `*`; a multimodal model's decoder is named as if it stood alone.

    Nemotron-H calls its decoder `backbone`.
    """
    plain = re.sub(r"^((model\.)?language_model\.(model\.)?|backbone\.)", "model.", name)
    plain = plain.replace("model.embeddings.weight", "model.embed_tokens.weight")
    plain = plain.replace("model.lm_head.", "lm_head.")
    return re.sub(r"\.\d+(?=\.)", ".*", plain)


def _dtype(stored: tuple[StoredTensor, ...]) -> str | None:
    """Return the float type that most bytes are stored in, whatever config.json claims; None: no floats."""
    totals: Counter[str] = Counter()
    for tensor in stored:
        if tensor.dtype in _FLOATS:
            totals[_FLOATS[tensor.dtype]] += tensor.nbytes
    return totals.most_common(1)[0][0] if totals else None


def _check(architecture: Architecture) -> None:
    """Check that stored tensors with expected names have the shape and number that the config implies."""
    # A pattern can stand for layers of two shapes (dense ones before experts): compare names that have one.
    expected: dict[str, list[Tensor]] = {}
    for tensor in architecture.tensors:
        expected.setdefault(tensor.name, []).append(tensor)
    stored: dict[str, list[StoredTensor]] = {}
    for stored_tensor in architecture.stored_tensors or ():
        stored.setdefault(stored_tensor.name, []).append(stored_tensor)
    for name, tensors in expected.items():
        shapes = {tensor.shape for tensor in tensors}
        for stored_tensor in stored.get(name, ()):
            if stored_tensor.shape not in shapes:
                implied = " or ".join(str(list(shape)) for shape in shapes)
                raise InputError(
                    "safetensors",
                    f"{name} has shape {list(stored_tensor.shape)}; config.json implies {implied}",
                )
        present = sum(tensor.count for tensor in stored.get(name, ()))
        expected_count = sum(tensor.count for tensor in tensors)
        if present not in {0, expected_count}:
            raise InputError(
                "safetensors", f"{name} is there {present} times; config.json implies {expected_count}"
            )
    embedding = architecture.tensors[0].name
    if embedding not in stored:
        raise InputError("safetensors", f"{embedding} is missing")
