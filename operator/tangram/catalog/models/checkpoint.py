"""What safetensors headers say: the tensors that a checkpoint really stores. Pure; `cli` reads the files."""

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
    found: dict[str, list[str]] = {}
    for tensor in weights.values:
        file = weights.text(tensor)
        if not file or PurePosixPath(file).name != file or "\0" in file:
            raise weights.error(tensor, f"{file!r} is not a file name")
        found.setdefault(file, []).append(tensor)
    return found


def with_index_alone(architecture: Architecture, index: Mapping[str, Any], where: str) -> Architecture:
    """Return the architecture as its config counts it, marked: of the weights there is only the index.

    The index names tensors and tells the sum of their bytes. Raises `InputError` where the sum is not that of
    an unquantised checkpoint of this config.
    """
    names = {name for each in shards(index, where).values() for name in each}
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
    found: dict[str, Entry] = {}
    for name in header:
        entry = fields.under(name) if name != "__metadata__" else None
        if entry is not None:
            found[name] = _entry(entry, data_bytes)
    return found


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


def with_stored_tensors(architecture: Architecture, found: Mapping[str, Entry]) -> Architecture:
    """Return the architecture with what is stored, as far as an engine loads it.

    Left out: layers beyond the config's (drafts for speculative decoding), a head that is tied, buffers.
    Raises `InputError` where an unquantised checkpoint is not that of the config.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[Entry]] = {}
    for name, entry in found.items():
        if not _is_left_out(architecture, name):
            groups.setdefault((_pattern(name), entry.dtype, entry.shape), []).append(entry)
    stored = tuple(
        StoredTensor(name, dtype, shape, len(each), sum(entry.nbytes for entry in each))
        for (name, dtype, shape), each in groups.items()
    )
    if not sum(each.nbytes for each in stored):
        raise InputError("safetensors", "the files hold no weights of the model")
    dtype = _dtype(stored) or architecture.dtype
    unverified = tuple(note for note in architecture.unverified if note != NO_VISION)  # it is stored too
    found_there = replace(architecture, dtype=dtype, stored_tensors=stored, unverified=unverified)
    if architecture.quantization is None:
        _check(found_there)
    return found_there


def _is_left_out(architecture: Architecture, name: str) -> bool:
    layer = re.search(r"\blayers\.(\d{1,9})\.", name)
    beyond = layer is not None and "vision" not in name and int(layer[1]) >= architecture.layers
    tied = architecture.tied_embeddings and name.startswith("lm_head.")
    return beyond or tied or _BUFFER.search(name) is not None


def _pattern(name: str) -> str:
    """Layer and expert become `*`; a multimodal model's decoder is named as if it stood alone."""
    plain = re.sub(r"^(model\.)?language_model\.(model\.)?", "model.", name)
    plain = plain.replace("model.lm_head.", "lm_head.")
    return re.sub(r"\.\d+(?=\.)", ".*", plain)


def _dtype(stored: tuple[StoredTensor, ...]) -> str | None:
    """Return the float type that most bytes are stored in, whatever config.json claims; None: no floats."""
    totals: Counter[str] = Counter()
    for each in stored:
        if each.dtype in _FLOATS:
            totals[_FLOATS[each.dtype]] += each.nbytes
    return totals.most_common(1)[0][0] if totals else None


def _check(architecture: Architecture) -> None:
    """Every stored tensor that bears a name we expect has the shape and number that the config implies."""
    # A pattern can stand for layers of two shapes (dense ones before experts): compare names that have one.
    expected: dict[str, list[Tensor]] = {}
    for tensor in architecture.tensors:
        expected.setdefault(tensor.name, []).append(tensor)
    stored: dict[str, list[StoredTensor]] = {}
    for each in architecture.stored_tensors or ():
        stored.setdefault(each.name, []).append(each)
    for name, tensors in expected.items():
        shapes = {tensor.shape for tensor in tensors}
        for each in stored.get(name, ()):
            if each.shape not in shapes:
                implied = " or ".join(str(list(shape)) for shape in shapes)
                raise InputError(
                    "safetensors", f"{name} has shape {list(each.shape)}; config.json implies {implied}"
                )
        there = sum(each.count for each in stored.get(name, ()))
        wanted = sum(tensor.count for tensor in tensors)
        if there not in {0, wanted}:
            raise InputError("safetensors", f"{name} is there {there} times; config.json implies {wanted}")
    embedding = architecture.tensors[0].name
    if embedding not in stored:
        raise InputError("safetensors", f"{embedding} is missing")
