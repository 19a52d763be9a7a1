"""A request of a dialect as the request that is computed, and errors by the paths that the client wrote."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from tangram_engine.serve.http.body import explain, refusal
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.fields import FieldError
from tangram_engine.serve.http.jsonio import decode_value
from tangram_engine.serve.http.params import ChatRequest, CompletionRequest, MessageError
from tangram_engine.validation import locate

T = TypeVar("T")
B_co = TypeVar("B_co", bound=CompletionRequest | ChatRequest, covariant=True)
NULL = Raw(b"null")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The paths of a chat request as the client of a dialect wrote them."""

    names: Mapping[str, str] = field(default_factory=dict)  # by field of the chat request
    messages: Sequence[str] = ()  # of each message, what it was made of

    def of(self, path: str) -> str:
        """The client's path of a field of the chat request."""
        first, _, rest = path.partition(".")
        if first == "messages" and rest:
            index, _, inside = rest.partition(".")
            return self.messages[int(index)] + (".content" if inside.startswith("content") else "")
        rest = rest.removeprefix("function").lstrip(".") if first == "tool_choice" else rest
        rest = rest.replace(".function", "", 1) if first == "tools" else rest
        return f"{self.names.get(first, first)}.{rest}".rstrip(".")

    def renamed(self, error: APIError) -> APIError:
        """The error with the client's path, also where the message begins with the path."""
        if error.param is None:
            return error
        param = self.of(error.param)
        return replace(error, param=param, message=_begun_with(error.message, error.param, param))


def _begun_with(message: str, old: str, new: str) -> str:
    return new + message.removeprefix(old) if message.startswith((f"{old}:", f"{old} ")) else message


@dataclass(frozen=True, slots=True)
class TranslatedRequest(Generic[B_co]):
    """What is computed, and what a reply needs beside it."""

    body: B_co
    names: FieldNames = FieldNames()
    echo: bytes = b"{}"  # what the reply repeats of the request, as JSON


@dataclass(frozen=True, slots=True)
class ChatDraft:
    """The fields of a chat request that asks for the same as a body of a dialect."""

    fields: Mapping[str, Any]
    names: FieldNames
    echo: bytes = b"{}"
    kind: type[ChatRequest] = ChatRequest


def translated(draft: Callable[[], ChatDraft]) -> TranslatedRequest[ChatRequest]:
    """The chat request, checked by its own rules. Raises APIError with the client's path."""
    try:
        made = draft()
    except FieldError as error:
        raise refusal(error.field, str(error), error.code) from None
    try:
        body = made.kind(**{name: value for name, value in made.fields.items() if value is not None})
    except MessageError as error:
        raise made.names.renamed(explain(error.error, f"messages.{error.index}")) from None
    except FieldError as error:
        raise made.names.renamed(refusal(error.field, str(error), error.code)) from None
    return TranslatedRequest(body, made.names, made.echo)


def decoded(raw: Raw, kind: type[T] | Any, path: str) -> Any:
    """A part of a body of this type. Raises FieldError with the path of what is wrong in it."""
    try:
        return decode_value(raw, kind)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, FieldError):
            raise FieldError(f"{path}.{cause.field}", str(cause), cause.code) from None
        where, what = locate(error)
        raise FieldError(f"{path}.{where}".rstrip("."), what) from None


def encoded(value: Any) -> Raw:
    """A part of a chat request, as if a client had written it."""
    return Raw(msgspec.json.encode(value))


def json_schema_format(schema: Raw) -> Raw:
    """The `response_format` of a chat request for an answer that is valid by this schema."""
    return encoded({"type": "json_schema", "json_schema": {"schema": schema}})


class CallIds:
    """The ids of the calls of a conversation: a result names a call before it."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def add(self, call_id: str) -> None:
        """A call was made."""
        self._known.add(call_id)

    def check(self, call_id: str, path: str) -> None:
        """Raise FieldError for the result of a call that was not made."""
        if call_id not in self._known:
            raise FieldError(path, "names no call that comes before it", "unknown_call")
