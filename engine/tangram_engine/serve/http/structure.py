"""The structure that a client wants an answer to have: `response_format` and `structured_outputs`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tangram_engine.validation import locate

from .fields import FieldError, unsupported
from .jsonio import decode_value

MAX_GRAMMAR_BYTES = 256 << 10  # of a schema, an expression or all choices
MAX_CHOICES = 1024
ANY_OBJECT = '{"type": "object"}'
_NULL = Raw(b"null")


@dataclass(frozen=True, slots=True)
class AnswerStructure:
    """What `tangram_engine.serve.text.grammar.build` makes a grammar of, and the field that asks for it."""

    field: str
    kind: str
    value: Any


class _NamedSchema(msgspec.Struct):
    name: str | None = None
    schema: Raw = _NULL


class _ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None


class _StructuredOutputs(msgspec.Struct):
    json: Raw = _NULL
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None
    structural_tag: Raw = _NULL


def read_structure(response_format: Raw, structured_outputs: Raw) -> AnswerStructure | None:
    """What both fields ask for; None for any text. Raises FieldError."""
    by_format = _by_format(_decode(response_format, _ResponseFormat | None, "response_format"))
    by_outputs = _by_outputs(_decode(structured_outputs, _StructuredOutputs | None, "structured_outputs"))
    if by_format is not None and by_outputs is not None:
        raise FieldError("structured_outputs", "cannot be given beside response_format")
    return by_format or by_outputs


def _decode(raw: Raw, kind: Any, field: str) -> Any:
    if len(memoryview(raw)) > MAX_GRAMMAR_BYTES:
        raise FieldError(field, f"at most {MAX_GRAMMAR_BYTES} bytes are accepted")
    try:
        return decode_value(raw, kind)
    except msgspec.ValidationError as error:
        where, what = locate(error)
        raise FieldError(f"{field}.{where}".rstrip("."), what) from None


def _by_format(wanted: _ResponseFormat | None) -> AnswerStructure | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return AnswerStructure("response_format", "json", ANY_OBJECT)
    if wanted.json_schema is None:
        raise FieldError("response_format.json_schema", "is missing")
    schema = _text(wanted.json_schema.schema)
    return AnswerStructure("response_format", "json", ANY_OBJECT if schema == "null" else schema)


def _by_outputs(wanted: _StructuredOutputs | None) -> AnswerStructure | None:
    if wanted is None:
        return None
    if _text(wanted.structural_tag) != "null":
        raise unsupported("structured_outputs.structural_tag")
    schema = _text(wanted.json)
    if schema.startswith('"'):  # vLLM takes the schema as a string, too
        schema = decode_value(wanted.json, str)
    kinds = {
        "json": ANY_OBJECT if wanted.json_object else None if schema == "null" else schema,
        "regex": wanted.regex,
        "choice": wanted.choice,
        "grammar": wanted.grammar,
    }
    given = [(kind, value) for kind, value in kinds.items() if value is not None]
    if len(given) != 1 or (wanted.json_object and schema != "null"):
        raise FieldError(
            "structured_outputs", "needs exactly one of json, json_object, regex, choice and grammar"
        )
    return AnswerStructure("structured_outputs", *given[0])


def _text(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace").strip()
