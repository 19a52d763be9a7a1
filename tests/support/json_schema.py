"""A strict reader of the JSON Schema subset that this project writes: an unknown keyword is an error."""

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_NOTES = {"$schema", "$defs", "title", "description"}


def violations(value, schema, root=None, where="$"):
    """Every way in which `value` breaks `schema`, as text."""
    root = root or schema
    unknown = set(schema) - _NOTES - set(_RULES) - {"$ref", "additionalProperties"}
    assert not unknown, f"{where}: this validator does not know {unknown}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return violations(value, root["$defs"][name], root, where)
    found = []
    if "additionalProperties" in schema and isinstance(value, dict):
        assert schema["additionalProperties"] is False
        found += [f"{where}: has {key}" for key in value.keys() - schema["properties"].keys()]
    for keyword, rule in schema.items():
        if keyword in _RULES:
            found += _RULES[keyword](value, rule, root, where)
    return found


def _type(value, name, _root, where):
    good = isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
    return [] if good else [f"{where}: {value!r} is no {name}"]


def _properties(value, known, root, where):
    there = value if isinstance(value, dict) else {}
    return [
        v
        for key, rule in known.items()
        if key in there
        for v in violations(there[key], rule, root, f"{where}.{key}")
    ]


def _items(value, rule, root, where):
    there = value if isinstance(value, list) else []
    return [v for i, item in enumerate(there) for v in violations(item, rule, root, f"{where}[{i}]")]


def _check(test, words):
    def rule(value, limit, _root, where):
        return [] if test(value, limit) else [f"{where}: {value!r} {words} {limit!r}"]

    return rule


_RULES = {
    "type": _type,
    "properties": _properties,
    "items": _items,
    "required": lambda v, keys, _r, where: [f"{where}: has no {k}" for k in keys if k not in v],
    "allOf": lambda v, rules, root, where: [x for rule in rules for x in violations(v, rule, root, where)],
    "enum": _check(lambda v, allowed: v in allowed, "is none of"),
    "minimum": _check(lambda v, limit: v >= limit, "is below"),
    "maximum": _check(lambda v, limit: v <= limit, "is above"),
    "exclusiveMinimum": _check(lambda v, limit: v > limit, "is not above"),
    "minLength": _check(lambda v, limit: len(v) >= limit, "is shorter than"),
    "maxItems": _check(lambda v, limit: len(v) <= limit, "is longer than"),
}
