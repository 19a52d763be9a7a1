"""POST /v1/messages: the Messages API of Anthropic, as a chat request.

Source: its reference (messages/create, messages/count_tokens), and the types of its Python SDK 2.14.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw

from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.bounded_values import Int64, MinP, Temperature, TokenCount, TopK, TopP
from tangram_engine.serve.http.errors import bad_request
from tangram_engine.serve.http.fields import FieldError, Neutral, unsupported
from tangram_engine.serve.http.params import (
    MAX_CACHE_SALT,
    MAX_STOPS,
    ChatRequest,
    Messages,
    Stop,
)
from tangram_engine.serve.http.refusals import Refusing, refuses
from tangram_engine.serve.http.tools import MAX_TOOLS

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

MAX_BLOCKS = 4096  # of one message
_Id = Annotated[str, Meta(min_length=1, max_length=1024)]
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}  # what Claude Code sends
_REFUSED: Mapping[str, Neutral] = {
    "container": (),
    "mcp_servers": ([],),
    "context_management": ({}, {"edits": []}, _KEEPS_ALL),
}
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}


class _ContentBlock(msgspec.Struct):
    """One block of a content, of any type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: _Id | None = None
    name: str | None = None
    input: Raw = NULL
    tool_use_id: _Id | None = None
    content: Raw = NULL


_Content = str | Annotated[list[_ContentBlock], Meta(max_length=MAX_BLOCKS)]


class _PastMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: _Content


class _MessagesTool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: Raw = NULL


class _MessagesToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: Literal["summarized", "omitted"] | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: Raw


class _OutputConfig(msgspec.Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _Format | None = None


@refuses(_REFUSED)
class MessagesRequest(Refusing, kw_only=True):
    """The fields that change the answer; the last ones are vLLM's."""

    model: str
    messages: Messages
    max_tokens: TokenCount | None = None  # missing where tokens are counted
    system: _Content | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    tools: Annotated[list[Raw], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: _MessagesToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None  # the older place of output_config.format
    min_p: MinP | None = None
    seed: Int64 | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tool_choice is not None and self.tool_choice.type == "tool" and not self.tool_choice.name:
            raise FieldError("tool_choice.name", "is missing")


class CutChatRequest(ChatRequest, kw_only=True):
    """A chat whose answer ends with the context where `max_tokens` reaches beyond it, as in this API."""

    cut_at_context: ClassVar[bool] = True


def read_messages(raw: bytes) -> TranslatedRequest[ChatRequest]:
    """A body of /v1/messages. Raises APIError."""
    body = parse(raw, MessagesRequest)
    if body.max_tokens is None:
        raise bad_request("max_tokens: is missing", param="max_tokens", code="invalid_value")
    return translated(lambda: _draft(body))


def read_counted_messages(raw: bytes) -> TranslatedRequest[ChatRequest]:
    """A body of /v1/messages/count_tokens. Raises APIError."""
    body = parse(raw, MessagesRequest)
    return translated(lambda: _draft(body))


def _draft(body: MessagesRequest) -> ChatDraft:
    history = _MessagesHistory(body)
    choice = body.tool_choice
    thinking = body.thinking
    config = body.output_config or _OutputConfig()
    form = config.format or body.output_format
    off = thinking is not None and thinking.type == "disabled"
    options = None if thinking is None or off else encoded({"enable_thinking": True})
    return ChatDraft(
        {
            "model": body.model,
            "messages": history.messages,
            "max_tokens": body.max_tokens,
            "continue_final_message": history.continues or None,
            "stream": body.stream,
            "stop": body.stop_sequences,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "min_p": body.min_p,
            "seed": body.seed,
            "cache_salt": body.cache_salt,
            "tools": _tools(body.tools),
            "tool_choice": None if choice is None else _tool_choice(choice),
            "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
            "response_format": None if form is None else json_schema_format(form.schema),
            "reasoning_effort": "none" if off else config.effort,
            "include_reasoning": None if thinking is None else thinking.display != "omitted",
            "chat_template_kwargs": options,
        },
        FieldNames(_NAMES, history.paths),
        kind=CutChatRequest,
    )


@dataclass(slots=True)
class _MessagesHistory:
    """The messages of a chat: one for the text of each message, and one for each result of a call."""

    body: InitVar[MessagesRequest]
    messages: list[Raw] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of each: what it was made of
    continues: bool = False  # whether the answer goes on with the last message
    _calls: CallIds = field(default_factory=CallIds)

    def __post_init__(self, body: MessagesRequest) -> None:
        if body.system is not None:
            self._add("system", {"role": "system", "content": _texts(body.system, "system")})
        for index, raw in enumerate(body.messages):
            path = f"messages.{index}"
            message: _PastMessage = decoded(raw, _PastMessage, path)
            match message.role:
                case "user":
                    self._add_user(message.content, path)
                case "assistant":
                    self._add_assistant(message.content, path)
                case "system":
                    content = _texts(message.content, f"{path}.content")
                    self._add(path, {"role": "system", "content": content})
        self.continues = message.role == "assistant"
        if self.continues and not _is_text(message.content):
            raise FieldError(f"{path}.content", "must be text: the answer goes on with it")

    def _add(self, path: str, message: dict[str, Any]) -> None:
        self.messages.append(encoded(message))
        self.paths.append(path)

    def _add_user(self, content: str | list[_ContentBlock], path: str) -> None:
        """The results of calls stand before the text: they answer the message before."""
        if isinstance(content, str):
            self._add(path, {"role": "user", "content": content})
            return
        texts = []
        for index, block in enumerate(content):
            at = f"{path}.content.{index}"
            if block.type != "tool_result":
                texts.append(_text(block, at))
                continue
            call_id = _required(block.tool_use_id, f"{at}.tool_use_id")
            self._calls.check(call_id, f"{at}.tool_use_id")
            result = decoded(block.content, _Content | None, f"{at}.content")
            text = "" if result is None else _texts(result, f"{at}.content")
            self._add(at, {"role": "tool", "tool_call_id": call_id, "content": text})
        if texts or not content:
            self._add(path, {"role": "user", "content": texts})

    def _add_assistant(self, content: str | list[_ContentBlock], path: str) -> None:
        if isinstance(content, str):
            self._add(path, {"role": "assistant", "content": content})
            return
        texts, calls, thoughts = [], [], []
        for index, block in enumerate(content):
            at = f"{path}.content.{index}"
            match block.type:
                case "tool_use":
                    calls.append(self._call(block, at))
                case "thinking":
                    thoughts.append(_required(block.thinking, f"{at}.thinking"))
                case _:
                    texts.append(_text(block, at))
        message = {
            "role": "assistant",
            "content": texts or None,
            "reasoning_content": "".join(thoughts) or None,
            "tool_calls": calls or None,
        }
        self._add(path, {name: value for name, value in message.items() if value is not None})

    def _call(self, block: _ContentBlock, path: str) -> dict[str, Any]:
        call_id = _required(block.id, f"{path}.id")
        self._calls.add(call_id)
        decoded(block.input, dict[str, Raw], f"{path}.input")
        function = {
            "name": _required(block.name, f"{path}.name"),
            "arguments": bytes(block.input).decode("utf-8"),
        }
        return {"id": call_id, "type": "function", "function": function}


def _is_text(content: str | list[_ContentBlock]) -> bool:
    return isinstance(content, str) or {block.type for block in content} == {"text"}


def _texts(content: str | list[_ContentBlock], path: str) -> Any:
    if isinstance(content, str):
        return content
    return [_text(block, f"{path}.{index}") for index, block in enumerate(content)]


def _text(block: _ContentBlock, path: str) -> dict[str, str]:
    if block.type != "text":
        raise unsupported(f"{path}.type", f'"{block.type[:64]}" at this place')
    return {"type": "text", "text": _required(block.text, f"{path}.text")}


def _required(value: str | None, path: str) -> str:
    if value is None:
        raise FieldError(path, "is missing")
    return value


def _tools(raws: list[Raw] | None) -> Raw | None:
    """Tools of the client. Those that the service of Anthropic knows by name are refused."""
    if not raws:
        return None
    tools = []
    for index, raw in enumerate(raws):
        tool: _MessagesTool = decoded(raw, _MessagesTool, f"tools.{index}")
        if tool.type not in (None, "custom"):
            raise unsupported(f"tools.{index}.type", f'"{tool.type[:64]}"')
        if tool.input_schema == NULL:
            raise FieldError(f"tools.{index}.input_schema", "is missing")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        written = {name: value for name, value in function.items() if value is not None}
        tools.append({"type": "function", "function": written})
    return encoded(tools)


def _tool_choice(choice: _MessagesToolChoice) -> Raw:
    if choice.type == "tool":
        return encoded({"type": "function", "function": {"name": choice.name}})
    return encoded("required" if choice.type == "any" else choice.type)
