"""Well-known models by name: `models.yaml`, parsed by the same code as any config.json."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tangram.catalog.configs.model_config import architecture_from_config
from tangram.catalog.configs.model_names import SIXTEEN_BITS, meanings
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.reading.packaged_yaml import packaged_yaml

UNVERIFIED = "architecture facts"  # in `Architecture.unverified` of a recalled entry
NAMED_FORMAT = "weight format, told by the name"  # likewise, of `Qwen3-32B-AWQ`


def known_model(name: str) -> Architecture | None:
    """Return a model by catalog name, hub id or alias, in any case; None for an unknown name.

    Usual beginnings and ends are understood (`unsloth/…`, `…-Instruct`, `…-FP8`, `…-AWQ`): a name of
    quantised weights gives the model in that format, as far as names are precise.
    """
    for candidate, form in meanings(name):
        if entry := _names().get(_key(candidate)):
            return _parsed(entry) if form is None else _quantised(_parsed(entry), form)
    return None


def _quantised(model: Architecture, form: str) -> Architecture:
    if form == SIXTEEN_BITS:
        return replace(model, quantization=None, module_formats=())
    unverified = (*model.unverified, NAMED_FORMAT)
    return replace(model, quantization=form, module_formats=(), unverified=unverified)


def known_models() -> tuple[str, ...]:
    """Every catalog name, in the file's order."""
    return tuple(_entries())


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    models: Mapping[str, Mapping[str, Any]] = packaged_yaml("tangram.catalog", "models.yaml")["models"]
    return models


@cache
def _names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name, entry in _entries().items():
        for alias in (name, entry["repo"], entry["repo"].split("/")[-1], *entry.get("aliases", ())):
            names.setdefault(_key(alias), name)
    return names


def _key(name: str) -> str:
    """`QWEN3_32B`, `Qwen3 32B` and `qwen3-32b` mean the same; with dots 3.1 is not 31."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


@cache
def _parsed(name: str) -> Architecture:
    entry = _entries()[name]
    unverified = (UNVERIFIED,) if entry["check"] != "stored" else ()
    architecture = architecture_from_config(entry["config"], name, where=f"models.yaml: {name}")
    return replace(
        architecture,
        source=f"{entry['repo']}, config.json",
        unverified=unverified,
        other_parameters=entry.get("other_parameters", 0),
    )
