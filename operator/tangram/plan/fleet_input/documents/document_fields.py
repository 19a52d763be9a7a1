"""Read and check the fields of a document; every error names the path of its field."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from tangram.api.common.labels import LONGEST_NAME
from tangram.api.common.values import decimal_number
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.prices import HIGHEST_USD_PER_HOUR
from tangram.catalog.reading.fields import Fields, short

MOST_USD_OF_A_MOVE = 1e6  # sums of them stay whole numbers of micro-dollars
HORIZON_RANGE_H = (1e-6, 8760.0)  # with less, prices round to zero


def closed(fields: Fields, keys: Iterable[str]) -> None:
    """Raise `InputError` for a key that is not among `keys`, so that no typo is ignored."""
    names = tuple(keys)
    for key in fields.values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise fields.error(str(key), f"is unknown; {hint}")


def refuse_unknown_keys(spec: Fields, model: type[BaseModel]) -> None:
    """Raise `InputError` for the first key, at any depth, that `model` does not have."""
    names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    closed(spec, names)
    for name, annotation in names.items():
        inner = _model(annotation)
        if inner is not None and isinstance(spec.values.get(name), Mapping):
            refuse_unknown_keys(Fields(spec.values[name], f"{spec.where}: {name}"), inner)


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field's annotation, also of `Model | None`."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def duplicate(names: Iterable[str]) -> str | None:
    """Return the first name, in alphabetical order, that occurs more than once; None: no name does."""
    return min((name for name, count in Counter(names).items() if count > 1), default=None)


def number(fields: Fields, key: str, most: float) -> float | None:
    """Return a number from 0 to `most`, None where the key is absent."""
    value = fields.values.get(key)
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= most:  # no float() before: it raises where an integer is too long
        raise fields.error(key, f"is {short(value)}, not a number of zero or more and at most {most:g}")
    return float(value)


def move_cost(fields: Fields) -> float | None:
    """Return USD of moving one instance, None where the key is absent."""
    return number(fields, "moveCost", MOST_USD_OF_A_MOVE)


def objects(fields: Fields, key: str) -> tuple[Fields, ...]:
    """Return a list of objects; empty where the key is absent."""
    value = fields.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise fields.error(key, "must be a list")
    for i, entry in enumerate(value):
        if not isinstance(entry, Mapping):
            raise fields.error(f"{key}[{i}]", "must be an object")
    return tuple(Fields(entry, f"{fields.where}: {key}[{i}]") for i, entry in enumerate(value))


def word(fields: Fields, key: str) -> str:
    """Return a printable string that is not empty. A number counts as one: YAML reads bare ids as numbers."""
    value = fields.values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > LONGEST_NAME:
        raise fields.error(key, "is missing" if value is None else "must be a printable, not empty string")
    return value


def required(fields: Fields, key: str) -> Fields:
    """Return the object under a key that has to be there."""
    inner = fields.under(key)
    if inner is None:
        raise fields.error(key, "is missing")
    return inner


def optional_word(fields: Fields, key: str) -> str | None:
    """Return `word`, None where the key is absent or null."""
    return word(fields, key) if fields.has(key) else None


def sku(fields: Fields) -> str:
    """Return the catalog's name of the GPU under the key `sku`."""
    return gpu_of_name(word(fields, "sku"), f"{fields.where}: sku").sku


def price(fields: Fields, key: str) -> float | None:
    """Return USD per GPU and hour, None where the key is absent: a number, or a decimal in quotes."""
    value = fields.values.get(key)
    if isinstance(value, str):
        try:
            value = decimal_number(value)
        except ValueError as error:
            raise fields.error(key, str(error)) from error
        fields = Fields({key: value}, fields.where)
    return number(fields, key, most=HIGHEST_USD_PER_HOUR)


def prices(fields: Fields) -> tuple[tuple[str, float], ...]:
    """Return (SKU, USD per GPU-hour), sorted."""
    listed = fields.under("prices")
    if listed is None:
        return ()
    by_sku: dict[str, float] = {}
    for name in listed.values:
        value = price(listed, name)
        sku_name = gpu_of_name(str(name), listed.error(str(name), "").field).sku
        if value is None or sku_name in by_sku:
            problem = "has no price" if value is None else f"{sku_name} has a price already"
            raise listed.error(str(name), problem)
        by_sku[sku_name] = value
    return tuple(sorted(by_sku.items()))


def body(document: Mapping[str, Any], where: str) -> Fields:
    """Return the `spec` of a document, or the document itself where its fields stand at the top."""
    outer = Fields(document, where)
    inner = outer.under("spec")
    if inner is not None:
        closed(outer, ("apiVersion", "kind", "metadata", "spec", "status"))
        return inner
    rest = {k: v for k, v in document.items() if k not in {"apiVersion", "kind", "metadata", "status"}}
    return Fields(rest, where)


def name_of(document: Mapping[str, Any], where: str) -> str | None:
    """Return `metadata.name`, None where there is none."""
    meta = Fields(document, where).under("metadata")
    return None if meta is None else optional_word(meta, "name")
