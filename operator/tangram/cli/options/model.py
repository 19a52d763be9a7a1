"""`--model` and its alternatives: a directory, a config.json, a well-known name, or sizes alone."""

import difflib
import functools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from tangram.catalog import Architecture, InputError, known_model, known_models
from tangram.catalog.models.sizes import Sizes, architecture_from_size
from tangram.cli.options.model_files import read_architecture

OTHER_RUNTIMES_NOTE = (
    "Other runtimes (vLLM, SGLang) serve this checkpoint. The bundled engine does not: its buffers stand for"
    " theirs."
)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True)
class ModelOption:
    """The options that describe a model."""

    model: str | None = None
    parameters: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    kv_heads: int | None = None
    vocab_size: int | None = None


_OPTIONS = (
    click.option("--model", help="hf://organisation/name, directory, config.json, or a well-known name."),
    click.option("--parameters", help="Instead of --model: number of parameters, such as 70e9 or 70B."),
    click.option("--layers", type=int, help="With --parameters: number of transformer layers."),
    click.option("--hidden-size", type=int, help="With --parameters: width of the hidden state."),
    click.option("--kv-heads", type=int, help="With --parameters: number of KV heads."),
    click.option("--vocab-size", type=int, help="With --parameters: size of the vocabulary."),
)


def model_options(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options; the command gets `model: ModelOption`, None without any option unless `required`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            source = ModelOption(**{field.name: arguments.pop(field.name) for field in fields(ModelOption)})
            if required and source == ModelOption():
                raise InputError(
                    "--model", "is missing: hf://…, a directory, a config.json, a name; or --parameters"
                )
            return command(model=None if source == ModelOption() else source, **arguments)

        decorated: Callable[..., Any] = run
        for option in reversed(_OPTIONS):
            decorated = option(decorated)
        return decorated

    return decorate


def read_model(source: ModelOption) -> Architecture:
    """Return the model of the options. Raises `InputError` naming the option, or the file and its key."""
    if source.model is not None:
        for name in ("parameters", "layers", "hidden_size", "kv_heads", "vocab_size"):
            if getattr(source, name) is not None:
                raise InputError(f"--{name.replace('_', '-')}", "contradicts --model, which sets it")
        return named_model(source.model)
    if source.parameters is None:
        raise InputError("--parameters", "is missing: sizes alone do not describe a model")
    return architecture_from_size(
        Sizes(
            _number(source.parameters), source.layers, source.hidden_size, source.kv_heads, source.vocab_size
        )
    )


def named_model(name: str, field: str = "--model") -> Architecture:
    """Return a model by its hf:// URI, an existing path, else by well-known name. Raises `InputError`."""
    if name.startswith("hf://"):
        from tangram.cli.options.hub_model import hub_architecture  # noqa: PLC0415 - packages of its own

        return hub_architecture(name, field)
    if name.strip() and os.path.exists(name):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return read_architecture(Path(name))
    architecture = known_model(name)
    if architecture is not None:
        return architecture
    near = difflib.get_close_matches(name.lower(), [model.lower() for model in known_models()], n=3)
    similar = [model for model in known_models() if model.lower() in near]
    hint = f"similar: {', '.join(similar)}" if similar else f"for example {', '.join(known_models()[::8])}"
    raise InputError(field, f"{name[:100]!r} is neither a path that exists nor a well-known model; {hint}")


def _number(text: str) -> float:
    written = text.strip().lower().replace("_", "")
    unit = _UNITS.get(written[-1:], 1.0)
    digits = written[:-1] if unit != 1.0 else written
    try:
        value = float(digits) * unit
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("--parameters", f"{text!r} is not a number such as 70e9 or 70B")
    return value
