"""From pydantic's JSON schema to the structural schema that a CRD accepts."""

from typing import Any

from pydantic import BaseModel

# What a structural schema keeps; everything else pydantic writes (title, $defs, ...) is dropped.
_KEPT = (
    "description",
    "type",
    "format",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minItems",
    "minProperties",
    "maxProperties",
)


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Return the structural schema of `model`: references inlined, `X | None` as optional X."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(document, document.get("$defs", {}))


def _convert(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    schema = _flatten(schema, defs)
    out: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if "exclusiveMinimum" in schema:  # in OpenAPI 3.0 a flag of `minimum`, not a number
        out |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    if "const" in schema:
        out["enum"] = [schema["const"]]
    if out.get("default") in (None, []):
        out.pop("default", None)
    kind = out.get("type")  # none: a whole number or text (x-kubernetes-int-or-string)
    if kind == "object" and "properties" not in schema:  # a map: a rule checks its keys
        out["additionalProperties"] = _convert(schema["additionalProperties"], defs)
    elif kind == "object":
        out["properties"] = {name: _convert(value, defs) for name, value in schema["properties"].items()}
        if schema.get("required"):
            out["required"] = sorted(schema["required"])
    if kind == "array":
        out["items"] = _convert(schema["items"], defs)
    if kind == "integer":
        out["format"] = "int64"
    out.update({key: value for key, value in schema.items() if key.startswith("x-kubernetes-")})
    return out


def _flatten(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Merge `$ref` and `anyOf [X, null]` into one schema; the field wins over its type."""
    own_keys = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    if "$ref" in schema:
        return _flatten(defs[schema["$ref"].rsplit("/", 1)[1]], defs) | own_keys
    if "anyOf" in schema:
        (inner,) = [option for option in schema["anyOf"] if option.get("type") != "null"]
        return _flatten(inner, defs) | own_keys
    return own_keys
