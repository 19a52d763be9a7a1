"""What a chat template gets beside the messages: tools, documents and options; calls in the history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tangram_engine.validation import locate

from .bounded_values import Int64
from .fields import FieldError
from .jsonio import decode_value
from .refusals import SMALL_VALUE

MAX_TOOLS = 512
MAX_TOOLS_BYTES = 1 << 20  # decoding them holds the interpreter's lock
MAX_CALLS = 256  # of one message
_NULL = Raw(b"null")
_TemplateOption = bool | Int64 | str | None
_TemplateOptions: Any = Annotated[dict[str, Any], Meta(max_length=16)] | None
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class _Function(msgspec.Struct):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


class _FunctionName(msgspec.Struct):
    name: str


class _NamedChoice(msgspec.Struct):
    type: Literal["function"]
    function: _FunctionName


class _CalledFunction(msgspec.Struct):
    name: Annotated[str, Meta(max_length=1024)]
    arguments: str | dict[str, Any] = "{}"


class _PastCall(msgspec.Struct):
    function: _CalledFunction
    id: Annotated[str, Meta(max_length=1024)] | None = None
    type: Literal["function"] = "function"


_Tools = Annotated[list[_Tool], Meta(max_length=MAX_TOOLS)]
_PastCalls = Annotated[list[_PastCall], Meta(max_length=MAX_CALLS)]


def _decode(raw: Raw, kind: Any, field: str) -> Any:
    """A value of this type. Raises FieldError with the path of what is wrong in it."""
    if len(memoryview(raw)) > MAX_TOOLS_BYTES:
        raise FieldError(field, f"at most {MAX_TOOLS_BYTES} bytes are accepted")
    try:
        return decode_value(raw, kind)
    except msgspec.ValidationError as error:
        where, what = locate(error)
        raise FieldError(f"{field}.{where}".rstrip("."), what) from None


def read_tools(raw: Raw) -> Mapping[str, Any]:
    """The schema of the parameters of each tool, by name. Raises FieldError."""
    tools: list[_Tool] = _decode(raw, _Tools | None, "tools") or []
    schemas = {tool.function.name: tool.function.parameters for tool in tools}
    if len(schemas) < len(tools):
        raise FieldError("tools", "two tools have the same name")
    return schemas


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that an answer may call, and whether it has to call one."""

    tools: Mapping[str, Any]  # the schema of the parameters of each, by name
    forced: bool = False
    named: bool = False  # by the client: then it calls that one once, as with OpenAI

    @property
    def may_call(self) -> bool:
        """Whether calls are looked for."""
        return bool(self.tools)


def read_tool_choice(raw: Raw, tools: Raw) -> ToolChoice:
    """What a request says of both. Raises FieldError."""
    offered = read_tools(tools)
    choice = _decode(raw, Literal["none", "auto", "required"] | _NamedChoice | None, "tool_choice")
    if isinstance(choice, _NamedChoice):
        if choice.function.name not in offered:
            raise FieldError("tool_choice.function.name", "is not the name of one of the tools")
        return ToolChoice({choice.function.name: offered[choice.function.name]}, forced=True, named=True)
    if not offered and choice == "required":
        raise FieldError("tool_choice", "needs tools")
    return ToolChoice({} if choice == "none" else offered, forced=choice == "required")


def read_calls(raw: Raw) -> Any:
    """The `tool_calls` of a message, as they were written. Raises FieldError."""
    return decode_value(raw, object) if _decode(raw, _PastCalls | None, "tool_calls") else None


def template_inputs(tools: Raw, documents: Raw) -> dict[str, Any]:
    """What a chat template gets beside the messages, as it was written. Raises FieldError."""
    read_tools(tools)
    inputs = {
        "tools": _as_written(tools, list[Any] | None, "tools"),
        "documents": _as_written(documents, list[dict[str, Any]] | None, "documents"),
    }
    return {name: value for name, value in inputs.items() if value}


def template_options(raw: Raw) -> dict[str, bool | int | str | None]:
    """The value of chat_template_kwargs. Raises FieldError for what the text process cannot be sent."""
    path = "chat_template_kwargs"
    if len(memoryview(raw)) > SMALL_VALUE:
        raise FieldError(path, f"at most {SMALL_VALUE} bytes are accepted")
    try:
        options: dict[str, Any] = decode_value(raw, _TemplateOptions) or {}
        for name, value in options.items():
            path = f"chat_template_kwargs.{name}"
            msgspec.convert(value, _TemplateOption)
    except msgspec.ValidationError as error:
        raise FieldError(path, str(error)) from None
    return options


def _as_written(raw: Raw, kind: Any, field: str) -> Any:
    """A value for a template, once it has been checked against a type. Raises FieldError."""
    return decode_value(raw, object) if _decode(raw, kind, field) else None
