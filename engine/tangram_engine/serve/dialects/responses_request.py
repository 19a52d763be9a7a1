"""POST /v1/responses: OpenAI's Responses API without a store, as a chat request.

Source: the reference of the API (responses/create) and the types of the Python SDK 3.52.
"""

from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.bounded_values import (
    Int64,
    MinP,
    RepetitionPenalty,
    Temperature,
    TokenCount,
    TopK,
    TopLogprobs,
    TopP,
)
from tangram_engine.serve.http.fields import FieldError, unsupported
from tangram_engine.serve.http.jsonio import dumps_in_pieces
from tangram_engine.serve.http.params import (
    MAX_CACHE_SALT,
    MAX_MESSAGES,
    ChatRequest,
    ReasoningEffort,
)
from tangram_engine.serve.http.refusals import Refusing, refuses
from tangram_engine.serve.http.tools import MAX_TOOLS, MAX_TOOLS_BYTES

from .translation import (
    NULL,
    CallIds,
    ChatDraft,
    FieldNames,
    TranslatedRequest,
    decoded,
    encoded,
    json_schema_format,
    translated,
)

MAX_PARTS = 256  # of one content
# OpenAI's limits.
_Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
_LOGPROBS = "message.output_text.logprobs"
_Id = Annotated[str, Meta(min_length=1, max_length=1024)]
_REFUSED = {
    # Nothing is kept of a request: what refers to an earlier one has no answer.
    "previous_response_id conversation prompt context_management moderation": (),
    "background": (False,),
    "access_programs image": (),
    "stream_options": ({}, {"include_obfuscation": False}),
    "truncation": ("disabled",),
}
# Fields that a chat has by the same name.
_SAME = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "logprobs",
    "top_logprobs", "ignore_eos", "cache_salt", "chat_template_kwargs", "parallel_tool_calls",
)  # fmt: skip
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


class _ContentPart(msgspec.Struct):
    """One part of a content, or of reasoning, of any type."""

    type: str
    text: str | None = None
    refusal: str | None = None


_Content = str | Annotated[list[_ContentPart], Meta(max_length=MAX_PARTS)]
_Parts = Annotated[list[_ContentPart], Meta(max_length=MAX_PARTS)]
_Reason = Literal["auto", "concise", "detailed"]


class _InputItem(msgspec.Struct):
    """One item of the input, of any type."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: _Content | None = None
    call_id: _Id | None = None
    name: str | None = None
    arguments: str | None = None
    output: _Content | None = None
    summary: _Parts | None = None


class _ResponsesTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None


class _NamedTool(msgspec.Struct):
    type: str
    name: str | None = None


class _TextFormat(msgspec.Struct, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(max_length=256)] | None = None
    description: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class _TextOptions(msgspec.Struct):
    format: _TextFormat | None = None


class _Reasoning(msgspec.Struct):
    effort: ReasoningEffort | None = None
    summary: _Reason | None = None  # there are none: the reasoning itself is given out


@refuses({name: neutral for names, neutral in _REFUSED.items() for name in names.split()})
class ResponsesRequest(Refusing, kw_only=True):
    """The fields that change the answer, and those that the reply repeats; the last ones are vLLM's."""

    model: str
    input: str | Annotated[list[Raw], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: Annotated[list[Raw], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: _TextOptions | None = None
    reasoning: _Reasoning | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    top_logprobs: TopLogprobs | None = None
    metadata: Raw = NULL
    user: Annotated[str, Meta(max_length=1024)] | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Int64 | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    chat_template_kwargs: Raw = NULL

    @property
    def logprobs(self) -> bool:
        """Whether they are asked for; other values of `include` are about what only OpenAI's service has."""
        return _LOGPROBS in (self.include or ())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", f'needs "{_LOGPROBS}" in include')


def read_responses(raw: bytes) -> TranslatedRequest[ChatRequest]:
    """A body of /v1/responses. Raises APIError."""
    body = parse(raw, ResponsesRequest)
    return translated(lambda: _draft(body))


def _draft(body: ResponsesRequest) -> ChatDraft:
    history = _InputHistory(body)
    form = body.text.format if body.text is not None else None
    if sum(len(memoryview(raw)) for raw in body.tools or ()) > MAX_TOOLS_BYTES:
        raise FieldError("tools", f"at most {MAX_TOOLS_BYTES} bytes are accepted")
    tools = [decoded(raw, _ResponsesTool, f"tools.{index}") for index, raw in enumerate(body.tools or ())]
    return ChatDraft(
        {
            **{name: getattr(body, name) for name in _SAME},
            "messages": history.written(),
            "max_completion_tokens": body.max_output_tokens,
            "tools": _tools(tools),
            "tool_choice": _tool_choice(body.tool_choice),
            "response_format": None if form is None else _response_format(form),
            "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        },
        FieldNames(_NAMES, history.paths),
        echo=_echo(body, tools),
    )


@dataclass(slots=True)
class _InputHistory:
    """The messages of a chat; the items that stand together of an assistant's turn are one."""

    body: InitVar[ResponsesRequest]
    paths: list[str] = field(default_factory=list)  # of each message: the first item that it was made of
    _messages: list[dict[str, Any]] = field(default_factory=list)
    _calls: CallIds = field(default_factory=CallIds)

    def __post_init__(self, body: ResponsesRequest) -> None:
        if body.instructions is not None:
            self._add("instructions", {"role": "system", "content": body.instructions})
        if isinstance(body.input, str):
            self._add("input", {"role": "user", "content": body.input})
            return
        for index, raw in enumerate(body.input):
            path = f"input.{index}"
            self._add_item(decoded(raw, _InputItem, path), path)

    def written(self) -> list[Raw]:
        """The messages, as a client of chats writes them."""
        return [encoded(message) for message in self._messages]

    def _add(self, path: str, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self.paths.append(path)

    def _add_item(self, item: _InputItem, path: str) -> None:
        match item.type:
            case "message":
                self._add_message(item, path)
            case "function_call":
                call_id = _required(item.call_id, f"{path}.call_id")
                self._calls.add(call_id)
                name, arguments = _required(item.name, f"{path}.name"), item.arguments or "{}"
                function = {"name": name, "arguments": arguments}
                call = {"id": call_id, "type": "function", "function": function}
                self._turn(path).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                call_id = _required(item.call_id, f"{path}.call_id")
                self._calls.check(call_id, f"{path}.call_id")
                text = _content(_required(item.output, f"{path}.output"), f"{path}.output")
                self._add(path, {"role": "tool", "tool_call_id": call_id, "content": text})
            case "reasoning":
                parts = item.content if isinstance(item.content, list) and item.content else item.summary
                thought = "".join(part.text or "" for part in parts or ())
                if thought:  # else it is of another server, which has encrypted it
                    turn = self._turn(path, new="content" in self._last() or "tool_calls" in self._last())
                    turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
            case _:
                raise unsupported(f"{path}.type", f'"{item.type[:64]}"')

    def _add_message(self, item: _InputItem, path: str) -> None:
        role = _required(item.role, f"{path}.role")
        content = _content(_required(item.content, f"{path}.content"), f"{path}.content")
        if role == "assistant":
            self._turn(path, new="content" in self._last() or "tool_calls" in self._last())["content"] = (
                content
            )
        else:
            self._add(path, {"role": role, "content": content})

    def _last(self) -> dict[str, Any]:
        return self._messages[-1] if self._messages else {}

    def _turn(self, path: str, *, new: bool = False) -> dict[str, Any]:
        """The assistant's message at the end, or a new one."""
        if new or self._last().get("role") != "assistant":
            self._add(path, {"role": "assistant"})
        return self._messages[-1]


def _content(content: str | list[_ContentPart], path: str) -> Any:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type not in ("input_text", "output_text", "text", "refusal"):
            raise unsupported(f"{path}.{index}.type", f'"{part.type[:64]}"')
        text = part.refusal if part.type == "refusal" else part.text
        texts.append({"type": "text", "text": _required(text, f"{path}.{index}.text")})
    return texts


def _required(value: Any, path: str) -> Any:
    if value is None:
        raise FieldError(path, "is missing")
    return value


def _tools(tools: list[_ResponsesTool]) -> Raw | None:
    written = []
    for index, tool in enumerate(tools):
        if tool.type != "function":
            raise unsupported(f"tools.{index}.type", f'"{tool.type[:64]}"')
        function = {"name": _required(tool.name, f"tools.{index}.name"), "description": tool.description}
        function["parameters"] = None if tool.parameters == NULL else tool.parameters
        present = {name: value for name, value in function.items() if value is not None}
        written.append({"type": "function", "function": present})
    return encoded(written) if written else None


def _tool_choice(choice: str | _NamedTool | None) -> Raw | None:
    if not isinstance(choice, _NamedTool):
        return None if choice is None else encoded(choice)
    if choice.type != "function":
        raise unsupported("tool_choice.type", f'"{choice.type[:64]}"')
    name = _required(choice.name, "tool_choice.name")
    return encoded({"type": "function", "function": {"name": name}})


def _response_format(form: _TextFormat) -> Raw:
    if form.type != "json_schema":
        return encoded({"type": form.type})
    if form.schema == NULL:
        raise FieldError("text.format.schema", "is missing")
    return json_schema_format(form.schema)


def _echo(body: ResponsesRequest, tools: list[_ResponsesTool]) -> bytes:
    """What every response object repeats. It is written here, in the thread of a large body, once."""
    choice = body.tool_choice
    form = body.text.format if body.text is not None else None
    reasoning = body.reasoning or _Reasoning()
    return dumps_in_pieces(
        {
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": decoded(body.metadata, _Metadata | None, "metadata") or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"} if form is None else _plain(form)},
            "tool_choice": "auto" if choice is None else _plain(choice),
            "tools": [_plain(tool) for tool in tools],
            "top_p": body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }
        | ({"top_logprobs": body.top_logprobs or 0} if body.logprobs else {})
    )


def _plain(value: Any) -> Any:
    """As the client wrote it."""
    return msgspec.json.decode(msgspec.json.encode(value))
