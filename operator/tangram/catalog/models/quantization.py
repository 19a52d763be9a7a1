"""The `quantization_config` of a checkpoint: which weight format, and which modules it leaves in 16 bits."""

import fnmatch
import re
from dataclasses import replace

from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.tensors import Tensor, TensorKind
from tangram.catalog.reading.errors import InputError
from tangram.catalog.reading.fields import Fields

METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
PARTIAL = "weight format of some layers"  # in `Architecture.unverified`
_EXCLUSIONS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "MXFP4": "mxfp4"}


def with_quantization(architecture: Architecture, fields: Fields | None) -> Architecture:
    """Return the architecture with its checkpoint's format. Raises `InputError` for unknown formats."""
    if fields is None:
        return architecture
    form, mixed = _format(fields)
    kinds, partly = _unquantised(architecture, fields)
    notes = (PARTIAL,) if mixed or partly else ()
    return replace(
        architecture,
        quantization=form,
        unquantised=tuple(dict.fromkeys((*architecture.unquantised, *kinds))),
        unverified=(*architecture.unverified, *notes),
    )


def _format(fields: Fields) -> tuple[str, bool]:
    """Name of the format, and whether other tensors have another one."""
    method = fields.text("quant_method").lower()
    if method == "fp8":
        return _fp8(fields), False
    if method in {"awq", "gptq"}:
        return _integers(fields, method), False
    if method == "compressed-tensors":
        return _compressed(fields)
    if method.startswith("modelopt"):
        return _modelopt(fields), False
    if method in {"mxfp4", "fbgemm_fp8"}:
        return {"mxfp4": "mxfp4", "fbgemm_fp8": "fp8"}[method], False
    raise fields.error("quant_method", f"{method!r} is not supported; known are {', '.join(METHODS)}")


def _fp8(fields: Fields) -> str:
    block = fields.sizes("weight_block_size")
    if not block:
        return "fp8"
    if block != (128, 128):
        raise fields.error("weight_block_size", f"{list(block)} is not supported; [128, 128] is")
    return "fp8_block"


def _integers(fields: Fields, method: str) -> str:
    bits = fields.size("bits", 4)
    base = {("awq", 4): "int4", ("gptq", 4): "int4_gptq", ("gptq", 8): "int8_gptq"}.get((method, bits))
    if base is None:
        raise fields.error("bits", f"{bits} is not supported with {method}")
    return _grouped(base, fields)


def _grouped(base: str, fields: Fields) -> str:
    """`group_size` -1: one scale per output feature."""
    if fields.values.get("group_size") == -1:
        return f"{base}_channel"
    size = fields.size("group_size", 128)
    return base if size == 128 else f"{base}_g{size}"


def _compressed(fields: Fields) -> tuple[str, bool]:
    groups = fields.under("config_groups")
    if groups is None or not groups.values:
        raise fields.error("config_groups", "is missing")
    formats: set[str] = set()
    for key in groups.values:
        group = groups.under(str(key))
        weights = group.under("weights") if group else None
        if group is not None and weights is not None:
            activations = group.under("input_activations")
            formats.add(_compressed_weights(weights, activations is not None))
    if not formats:
        raise fields.error("config_groups", "has no group with weights")
    return min(formats), len(formats) > 1


def _compressed_weights(weights: Fields, activations: bool) -> str:
    bits, kind = weights.size("num_bits"), weights.text("type", "int")
    strategy = weights.text("strategy", "channel")
    if (kind, bits) == ("float", 8):
        return "fp8_block" if strategy == "block" else "fp8"
    if (kind, bits) == ("float", 4):
        return "mxfp4" if weights.size("group_size", 16) == 32 else "nvfp4"
    if (kind, bits) == ("int", 8) and activations:
        return "int8"
    if kind == "int" and bits in {4, 8}:
        base = "int4" if bits == 4 else "int8_gptq"
        return f"{base}_channel" if strategy == "channel" else _grouped(base, weights)
    raise weights.error("num_bits", f"{bits}-bit {kind} weights are not supported")


def _modelopt(fields: Fields) -> str:
    algorithm = fields.text("quant_algo").upper()
    if algorithm not in _MODELOPT:
        raise fields.error("quant_algo", f"{algorithm!r} is not one of {', '.join(_MODELOPT)}")
    return _MODELOPT[algorithm]


def _unquantised(architecture: Architecture, fields: Fields) -> tuple[list[TensorKind], bool]:
    """Kinds that the exclusions cover in every layer, and whether some are covered in some layers only."""
    patterns = [(key, pattern) for key in _EXCLUSIONS for pattern in fields.names(key)]
    if not patterns:
        return [], False
    excluded = [_expression(fields, key, pattern) for key, pattern in patterns]
    kinds: dict[TensorKind, set[bool]] = {}
    for tensor in architecture.tensors:
        if tensor.quantisable:
            names = _modules(tensor, architecture.layers)
            hits = {any(expression.match(name) for expression in excluded) for name in names}
            kinds.setdefault(tensor.kind, set()).update(hits)
    return [kind for kind, hits in kinds.items() if hits == {True}], any(len(h) > 1 for h in kinds.values())


def _modules(tensor: Tensor, layers: int) -> list[str]:
    """Names of the module in each layer; the first expert stands for all."""
    pattern = tensor.name.removesuffix(".weight")
    return [pattern.replace("*", str(layer), 1).replace("*", "0") for layer in range(layers)]


def _expression(fields: Fields, key: str, pattern: str) -> re.Pattern[str]:
    """One exclusion as a regular expression, in the three dialects in use.

    compressed-tensors: `re:` and a regular expression; modelopt: shell wildcards; the rest: a module's path,
    or one component of it, with everything below.
    """
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:])
        except (re.error, RecursionError, OverflowError) as error:
            raise InputError(f"{fields.where}: {key}", f"{pattern!r} is no expression: {error}") from None
    if "*" in pattern or "?" in pattern:
        translated = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
        return re.compile(f"(?:{translated}(?:\\.|$))")
    start = "" if "." in pattern else r"(?:.*\.)?"
    return re.compile(f"{start}{re.escape(pattern)}(?:\\.|$)")
