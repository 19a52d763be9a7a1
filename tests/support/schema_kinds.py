"""Random JSON schemas by kind, of what `response_format` is used for; each accepts finitely long answers."""

import ipaddress
from collections.abc import Callable
from datetime import date, datetime
from random import Random
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Schema = dict[str, Any]
_WORDS = ("city", "days", "näme", 'quo"te', "a b", "id", "list", "when", "\U0001f389", "back\\slash")
_PATTERNS = ("^[A-Z]{2,4}-[0-9]{1,3}$", "^(ja|nein)$", "^#[0-9a-f]{6}$", "^[äöü]{1,3}$", "^\\d{3}\\.\\d{2}$")
_FORMATS = ("date", "date-time", "ipv4", "ipv6", "uuid", "time")


def _leaf(random: Random) -> Schema:
    return random.choice((_boolean, _integer, _text, _enum, _null))(random)


def _boolean(random: Random) -> Schema:
    return {"type": "boolean"}


def _null(random: Random) -> Schema:
    return {"type": "null"}


def _integer(random: Random) -> Schema:
    low = random.randint(-2000, 2000)
    return {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 5000)}


def _text(random: Random) -> Schema:
    shortest = random.randint(0, 3)
    return {"type": "string", "minLength": shortest, "maxLength": shortest + random.randint(0, 12)}


def _enum(random: Random) -> Schema:
    values = ["Bern", "ä\n", '"', -1, 2.5, True, None, "\U0001f389"]
    return {"enum": random.sample(values, random.randint(1, 5))}


def _object(
    random: Random, value: Callable[[Random], Schema], *, most: int = 4, optional: bool = False
) -> Schema:
    names = random.sample(_WORDS, random.randint(1, most))
    required = [name for name in names if not optional or random.random() < 0.4]
    return {
        "type": "object",
        "properties": {name: value(random) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _flat(random: Random) -> Schema:
    return _object(random, _leaf)


def _nested(random: Random) -> Schema:
    return _object(random, lambda one: _object(one, lambda two: _object(two, _leaf, most=2), most=2))


def _arrays(random: Random) -> Schema:
    fewest = random.randint(0, 2)
    sizes = {"minItems": fewest, "maxItems": fewest + random.randint(0, 3)}
    items = random.choice((_leaf, _flat, lambda one: {"type": "array", "items": _leaf(one), "maxItems": 2}))
    array: Schema = {"type": "array", "items": items(random), **sizes}
    if random.random() < 0.3:
        array |= {"prefixItems": [_leaf(random), _leaf(random)], "minItems": 2, "maxItems": 4}
    return _object(random, lambda one: array, most=2)


def _enums(random: Random) -> Schema:
    return _object(random, lambda one: _enum(one) if one.random() < 0.7 else {"const": one.choice(_WORDS)})


def _any_of(random: Random) -> Schema:
    choices = [_flat(random), _leaf(random), {"type": "array", "items": _leaf(random), "maxItems": 2}]
    return {"anyOf": random.sample(choices, random.randint(1, 3))}


def _references(random: Random) -> Schema:
    node = _object(random, _leaf)
    node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}
    node["properties"]["again"] = {"$ref": "#/$defs/leaf"}
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"$ref": "#/$defs/leaf"}},
        "required": ["value"],
        "additionalProperties": False,
    }
    return {"$ref": f"#/$defs/{random.choice(('node', 'tree'))}"} | {
        "$defs": {"node": node, "leaf": _leaf(random), "tree": tree}
    }


def _numbers(random: Random) -> Schema:
    def number(one: Random) -> Schema:
        low = one.uniform(-50, 50)
        bounds = {one.choice(("minimum", "exclusiveMinimum")): round(low, 2)}
        bounds[one.choice(("maximum", "exclusiveMaximum"))] = round(low + one.uniform(0.5, 40), 2)
        whole = {"type": "integer", "minimum": -30, "maximum": 90, "multipleOf": one.choice((2, 5, 10))}
        return one.choice(({"type": "number", **bounds}, whole, _integer(one)))

    return _object(random, number)


def _strings(random: Random) -> Schema:
    def text(one: Random) -> Schema:
        pattern, form = one.choice(_PATTERNS), one.choice(_FORMATS)
        return {"type": "string"} | one.choice(({"pattern": pattern}, {"format": form}, _text(one)))

    return _object(random, text)


def _optional(random: Random) -> Schema:
    return _object(random, lambda one: _object(one, _leaf, optional=True), optional=True)


KINDS: dict[str, Callable[[Random], Schema]] = {
    "flat": _flat,
    "nested": _nested,
    "arrays": _arrays,
    "enums": _enums,
    "anyOf": _any_of,
    "$ref": _references,
    "numbers": _numbers,
    "strings": _strings,
    "optional": _optional,
}

_checker = FormatChecker(formats=("uuid",))
_checker.checks("date", ValueError)(lambda text: bool(date.fromisoformat(text)))
_checker.checks("date-time", ValueError)(lambda text: bool(datetime.fromisoformat(_no_leap(text))))
_checker.checks("time", ValueError)(lambda text: bool(datetime.fromisoformat(f"2000-01-01T{_no_leap(text)}")))
_checker.checks("ipv4", ValueError)(lambda text: bool(ipaddress.IPv4Address(text)) or True)
_checker.checks("ipv6", ValueError)(lambda text: bool(ipaddress.IPv6Address(text)) or True)


def _no_leap(text: str) -> str:
    """RFC 3339 has second 60, and small letters."""
    return text.replace(":60", ":59").upper()


def validator(schema: Schema) -> Draft202012Validator:
    """A validator that is independent of what constrains the answers; it checks formats, too."""
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=_checker)
