"""The `quantization_config` of a checkpoint: the weight format of each module."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from tangram.catalog.configs.module_patterns import ModulePatterns, check_cost, expression, module_patterns
from tangram.catalog.models.architecture import Architecture, ModuleFormat
from tangram.catalog.models.layer_parts import LayerGroup
from tangram.catalog.models.layer_tensors import layer_tensors
from tangram.catalog.models.tensors import Tensor, TensorKind
from tangram.catalog.reading.fields import Fields, short

METHODS = ("awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
_EXCLUSIONS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
)
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "int4",
    "MXFP4": "mxfp4",
    "MXFP8": "mxfp8",
}
_MOST_RULES = 1000  # of one list
_SIXTEEN_BITS = ""  # the format of a module that no rule covers

Names = tuple[str, ...]  # spellings of one module's name
Format = Callable[[Names], str]  # weight format of a module

# Beginnings of module names: a decoder alone, within multimodal classes, and of Nemotron-H.
_BEGINNINGS = ("model.", "model.language_model.", "language_model.model.", "backbone.")


def with_quantization(
    architecture: Architecture,
    fields: Fields | None,
    layers: tuple[LayerGroup, ...],
    module_names: tuple[tuple[str, str], ...] = (),
) -> Architecture:
    """Return the architecture with its checkpoint's formats; `layers` are its layers in order.

    `module_names` are parts of our names, with what the family's checkpoints call them.
    Raises `InputError` for unknown formats.
    """
    if fields is None:
        return architecture
    format_of = _format(fields, len(layers))
    modules = [
        (tensor, _SIXTEEN_BITS if stays else format_of(tuple(_spellings(name, module_names))))
        for tensor, name in _modules(architecture, layers, _quantises_head(fields))
        for stays in (tensor.kind in architecture.unquantised,)
    ]
    elements: Counter[str] = Counter()
    for tensor, form in modules:
        elements[form] += tensor.elements
    del elements[_SIXTEEN_BITS]
    if not elements:
        raise fields.error("quant_method", "quantises no module of the model")
    return replace(
        architecture,
        quantization=elements.most_common(1)[0][0],
        unquantised=_unquantised(modules),
        module_formats=_module_formats(modules, "fp16" if architecture.dtype == "fp16" else "bf16"),
    )


def _unquantised(modules: list[tuple[Tensor, str]]) -> tuple[TensorKind, ...]:
    """Return the kinds of which no module is quantised."""
    quantised = {tensor.kind for tensor, form in modules if form}
    return tuple(dict.fromkeys(tensor.kind for tensor, _ in modules if tensor.kind not in quantised))


def _module_formats(modules: list[tuple[Tensor, str]], sixteen_bits: str) -> tuple[ModuleFormat, ...]:
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for tensor, form in modules:
        counts[tensor.name, tensor.shape, form or sixteen_bits] += tensor.count
    return tuple(ModuleFormat(*module, count) for module, count in counts.items())


def _modules(
    architecture: Architecture, layers: tuple[LayerGroup, ...], with_head: bool
) -> Iterator[tuple[Tensor, str]]:
    """Yield the linear layers and the name of their module; the first expert stands for all of its layer."""
    of_layer: dict[LayerGroup, tuple[Tensor, ...]] = {}
    for index, layer in enumerate(layers):
        if layer not in of_layer:
            tensors = layer_tensors(architecture.hidden_size, layer)
            of_layer[layer] = tuple(tensor for tensor in tensors if tensor.quantisable)
        for tensor in of_layer[layer]:
            yield tensor, _module(tensor, index)
    if with_head:
        yield from (
            (tensor, _module(tensor, 0)) for tensor in architecture.tensors if tensor.kind is TensorKind.HEAD
        )
    for tensor in architecture.draft_tensors:
        if tensor.quantisable:
            yield tensor, _module(tensor, len(layers) if tensor.name.startswith("model.") else 0)


def _quantises_head(fields: Fields) -> bool:
    """compressed-tensors quantise a head that they do not ignore, GPTQ by a flag, the others never."""
    return _method(fields) == "compressed-tensors" or fields.flag("lm_head")


def _module(tensor: Tensor, layer: int) -> str:
    return tensor.name.removesuffix(".weight").replace("*", str(layer), 1).replace("*", "0")


def _spellings(name: str, module_names: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yield the names that the module may have in checkpoints of the family."""
    for canonical, published in module_names:
        name = f"{name}.".replace(canonical, published).removesuffix(".")
    rest = name.removeprefix("model.")
    yield from (beginning + rest for beginning in _BEGINNINGS) if rest != name else (name,)


def _format(fields: Fields, layers: int) -> Format:
    """Return the rule of the config, exclusions included."""
    rule = _rule(fields, layers)
    excluded = [
        module_patterns(fields.names(key), layers, f"{fields.where}: {key}")
        for key in _EXCLUSIONS
        if fields.has(key)
    ]

    def format_of(names: Names) -> str:
        return _SIXTEEN_BITS if any(patterns.match(names) for patterns in excluded) else rule(names)

    return format_of


def _rule(fields: Fields, layers: int) -> Format:
    method = _method(fields)
    if method == "compressed-tensors":
        return _compressed(fields, layers)
    if method.startswith("modelopt"):
        return _modelopt(fields)
    if method in {"awq", "gptq"}:
        return _integers(fields, method, layers)
    if method == "fp8":
        return _always(_fp8(fields))
    if method == "bitsandbytes":
        return _always(_bitsandbytes(fields))
    if method in {"mxfp4", "fbgemm_fp8"}:
        return _always({"mxfp4": "mxfp4", "fbgemm_fp8": "fp8"}[method])
    raise fields.error("quant_method", f"{short(method)} is not supported; known are {', '.join(METHODS)}")


def _method(fields: Fields) -> str:
    """Early exports of ModelOpt leave the method out and name themselves as the producer."""
    producer = fields.under("producer")
    if not fields.has("quant_method") and producer is not None and producer.text("name", "") == "modelopt":
        return "modelopt"
    return fields.text("quant_method").lower()


def _always(form: str) -> Format:
    return lambda _names: form


def _fp8(fields: Fields) -> str:
    block = fields.sizes("weight_block_size")
    if not block:
        return "fp8"
    if block != (128, 128):
        raise fields.error("weight_block_size", f"{list(block)} is not supported; [128, 128] is")
    return "fp8_block"


def _bitsandbytes(fields: Fields) -> str:
    if fields.flag("load_in_8bit") or fields.flag("_load_in_8bit"):
        return "bnb_int8"
    kind = fields.text("bnb_4bit_quant_type", "fp4")
    if kind not in {"nf4", "fp4"}:
        raise fields.error("bnb_4bit_quant_type", f"{short(kind)} is not nf4 or fp4")
    return "bnb4_nested" if fields.flag("bnb_4bit_use_double_quant") else "bnb4"


def _integers(fields: Fields, method: str, layers: int) -> Format:
    """AWQ and GPTQ: one format, but for `dynamic` (GPTQModel) and a list of modules (transformers)."""
    base = _integer_format(fields, method)
    dynamic = _dynamic(fields, method)
    check_cost([pattern for pattern, _ in dynamic], layers, f"{fields.where}: dynamic")
    listed = _names_in_lists(fields, "modules_in_block_to_quantize")

    def format_of(names: Names) -> str:
        if listed and not any(name.endswith(f".{module}") for name in names for module in listed):
            return _SIXTEEN_BITS
        for pattern, form in dynamic:
            if any(pattern.match(name) for name in names):
                return form
        return base

    return format_of


def _integer_format(fields: Fields, method: str) -> str:
    bits = fields.size("bits", 4)
    base = {("awq", 4): "int4", ("gptq", 4): "int4_gptq", ("gptq", 8): "int8_gptq"}.get((method, bits))
    if base is None:
        raise fields.error("bits", f"{bits} is not supported with {method}")
    return _grouped(base, fields)


def _dynamic(fields: Fields, method: str) -> list[tuple[re.Pattern[str], str]]:
    """`-:EXPRESSION` leaves modules alone. `+:EXPRESSION` or `EXPRESSION` changes their bits and groups."""
    rules = fields.under("dynamic")
    formats = []
    for key in list(rules.values)[:_MOST_RULES] if rules is not None else ():
        pattern = expression(key.removeprefix("-:").removeprefix("+:"), f"{fields.where}: dynamic")
        changes = rules.under(key) if rules is not None else None
        own = replace(fields, values={**fields.values, **(changes.values if changes else {})})
        formats.append((pattern, _SIXTEEN_BITS if key.startswith("-:") else _integer_format(own, method)))
    if rules is not None and len(rules.values) > _MOST_RULES:
        raise fields.error("dynamic", f"has {len(rules.values)} rules; at most {_MOST_RULES} are read")
    return formats


def _names_in_lists(fields: Fields, key: str) -> tuple[str, ...]:
    """Return the strings of a list of lists: modules that are quantised together."""
    value = fields.values.get(key) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(part, list | tuple) for part in value):
        raise fields.error(key, f"is {short(value)}, not a list of lists of strings")
    names = tuple(name for part in value for name in part)
    if len(names) > _MOST_RULES or not all(isinstance(name, str) for name in names):
        raise fields.error(key, f"is {short(value)}, not a list of lists of at most {_MOST_RULES} strings")
    return names


def _grouped(base: str, fields: Fields) -> str:
    """`group_size` -1: one scale per output feature."""
    if fields.values.get("group_size") == -1:
        return f"{base}_channel"
    size = fields.size("group_size", 128)
    return base if size == 128 else f"{base}_g{size}"


def _compressed(fields: Fields, layers: int) -> Format:
    """Groups in their order: the first with a target that names the module, or its class, has its format."""
    groups = fields.under("config_groups")
    if groups is None or not groups.values:
        raise fields.error("config_groups", "is missing")
    if len(groups.values) > _MOST_RULES:
        raise fields.error(
            "config_groups", f"has {len(groups.values)} groups; at most {_MOST_RULES} are read"
        )
    rules = [
        _compressed_group(group, layers) for key in groups.values if (group := groups.under(key)) is not None
    ]
    rules_with_weights = [rule for rule in rules if rule is not None]
    if not rules_with_weights:
        raise fields.error("config_groups", "has no group with weights")

    def format_of(names: Names) -> str:
        named = (form for targets, _, form in rules_with_weights if targets.match(names))
        of_class = (form for _, all_linear, form in rules_with_weights if all_linear)
        return next(named, None) or next(of_class, _SIXTEEN_BITS)

    return format_of


def _compressed_group(group: Fields, layers: int) -> tuple[ModulePatterns, bool, str] | None:
    weights = group.under("weights")
    if weights is None:
        return None
    targets = group.names("targets") or ("Linear",)
    named = (target for target in targets if target != "Linear")
    form = _compressed_weights(weights, group.under("input_activations") is not None)
    return module_patterns(named, layers, f"{group.where}: targets"), "Linear" in targets, form


def _compressed_weights(weights: Fields, activations: bool) -> str:
    bits, kind = weights.size("num_bits"), weights.text("type", "int")
    strategy = weights.text("strategy", "channel") if weights.has("strategy") else "channel"
    if (kind, bits) == ("float", 8):
        return "fp8_block" if strategy == "block" else "mxfp8" if strategy == "group" else "fp8"
    if (kind, bits) == ("float", 4):
        return "mxfp4" if weights.size("group_size", 16) == 32 else "nvfp4"
    if (kind, bits) == ("int", 8) and activations:
        return "int8"
    if kind == "int" and bits in {4, 8}:
        base = ("int4" if bits == 4 else "int8") + (
            "_packed" if weights.flag("symmetric", True) else "_packed_zeros"
        )
        return f"{base}_channel" if strategy == "channel" else _grouped(base, weights)
    raise weights.error("num_bits", f"{bits}-bit {kind} weights are not supported")


def _modelopt(fields: Fields) -> Format:
    """One algorithm for all modules, or one for each that `quantized_layers` names."""
    if fields.text("quant_algo").upper() != "MIXED_PRECISION":
        return _always(_algorithm(fields))
    named = fields.under("quantized_layers")
    if named is None or not named.values:
        raise fields.error("quantized_layers", "is missing")
    forms = {key: _algorithm(part) for key in named.values if (part := named.under(key)) is not None}

    def format_of(names: Names) -> str:
        parts = (name.rsplit(".", up)[0] if up else name for name in names for up in range(4))
        return next((forms[part] for part in parts if part in forms), _SIXTEEN_BITS)

    return format_of


def _algorithm(fields: Fields) -> str:
    algorithm = fields.text("quant_algo").upper()
    if algorithm not in _MODELOPT:
        raise fields.error("quant_algo", f"{short(algorithm)} is not one of {', '.join(_MODELOPT)}")
    return _MODELOPT[algorithm]
