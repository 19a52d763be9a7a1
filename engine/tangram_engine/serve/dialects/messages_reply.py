"""The JSON of answers in Anthropic's Messages API, whole and as events, and that of errors."""

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.jsonio import Malformed, check, decode_value, dumps, dumps_in_pieces, string

from .reply import AnswerBlock, AnswerBlocks, BlockChange, Json, ReplyContext, TokenText, frame

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_DELTAS = {  # of each kind of block: the type of its deltas, and the field that has the text
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def error_body(error: APIError, request_id: str | None = None) -> Json:
    """Anthropic's error object."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.body()["error"]["message"]
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def failure(error: APIError, events: int) -> bytes:
    """The event that ends a stream."""
    del events
    return frame("error", dumps(error_body(error)))


class MessagesReply:
    """/v1/messages."""

    opens_with_usage: ClassVar[bool] = True
    repeats_logprobs: ClassVar[int] = 0

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._answer = AnswerBlocks(context.form)
        self._id = f"msg_{uuid.uuid4().hex}"
        self._around: dict[int, bytes] = {}  # by block: its deltas up to their text

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """See Reply."""
        del index
        message = self._message([], None, self._usage(counts or {}))
        return [_event("message_start", message=message)]

    def events(self, delta: TokenText, counts: Json | None = None) -> list[bytes]:
        """See Reply."""
        del counts
        return [self._frame(change) for change in self._answer.push(delta)]

    def ending(self, counts: Json) -> list[bytes]:
        """See Reply."""
        delta = {"stop_reason": self._stop_reason(counts), "stop_sequence": self._answer.stop}
        last = _event("message_delta", delta=delta, usage=self._usage(counts))
        return [last, _event("message_stop")]

    def whole(self, deltas: Sequence[Sequence[TokenText]], counts: Json) -> bytes:
        """See Reply."""
        self._answer.push_all(deltas[0])
        content = [_block(block, _input(block.text)) for block in self._answer.blocks]
        return dumps_in_pieces(self._message(content, self._stop_reason(counts), self._usage(counts)))

    def _message(self, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._context.served_name,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": self._answer.stop,
            "usage": usage,
        }

    def _frame(self, change: BlockChange) -> bytes:
        index = change.block.index
        match change.what:
            case "begin":
                kind, name = _DELTAS[change.block.kind]
                head = {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: ""}}
                self._around[index] = frame("content_block_delta", dumps(head)).removesuffix(b'""}}\n\n')
                empty = AnswerBlock(change.block.kind, index, change.block.name, change.block.call_id)
                return _event("content_block_start", index=index, content_block=_block(empty, {}))
            case "grow":
                return self._around[index] + string(change.text) + b"}}\n\n"
            case "end":
                return _event("content_block_stop", index=index)

    def _stop_reason(self, counts: Json) -> str:
        answer = self._answer
        if answer.finish == "length":
            full = counts["total_tokens"] >= self._context.max_model_len
            body = self._context.request.body
            reached = counts["completion_tokens"] >= (body.max_tokens or 0)
            return "model_context_window_exceeded" if full and not reached else "max_tokens"
        if answer.stop is not None:
            return "stop_sequence"
        return "tool_use" if answer.has_calls else "end_turn"

    def _usage(self, counts: Json) -> Json:
        """Anthropic counts tokens of the prompt that were cached beside the others."""
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        usage = {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
        }
        if self._context.form.thinks:
            usage["output_tokens_details"] = {"thinking_tokens": self._answer.reasoning_tokens}
        return usage


def _block(block: AnswerBlock, arguments: Any) -> Json:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text, "citations": None}
        case "reasoning":  # there is nothing that a signature would prove
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}


def _input(arguments: str) -> Json:
    """The arguments of a call as the object that this API has; a model may write anything."""
    raw = arguments.encode("utf-8", "replace")
    try:
        check(raw)
        return decode_value(raw, dict[str, Any])
    except (Malformed, msgspec.ValidationError):
        return {"arguments": arguments}


def _event(kind: str, **values: Any) -> bytes:
    return frame(kind, dumps({"type": kind, **values}))
