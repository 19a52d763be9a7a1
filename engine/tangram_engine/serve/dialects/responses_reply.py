"""The JSON of answers in OpenAI's Responses API, whole and as events."""

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.jsonio import dumps, dumps_in_pieces, string
from tangram_engine.serve.text.token_logprobs import logprob_of_chats

from .reply import AnswerBlock, AnswerBlocks, BlockChange, Json, ReplyContext, TokenText, frame

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
# Of each kind of block: the beginning of the names of its events.
_EVENTS = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}


def failure(error: APIError, events: int) -> bytes:
    """The event that ends a stream."""
    body = error.body()["error"]
    values = {name: body[name] for name in ("code", "message", "param")}
    return frame("error", dumps({"type": "error", **values, "sequence_number": events}))


class ResponsesReply:
    """/v1/responses."""

    opens_with_usage: ClassVar[bool] = False
    repeats_logprobs: ClassVar[int] = 4  # ends of the text, of its part, of its item, and of the response

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._answer = AnswerBlocks(context.form)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._item_ids: list[str] = []  # of each block
        self._before_delta: list[bytes] = []  # of each block: the event of a delta up to its text
        self._sequence = 0
        self._logprobs: defaultdict[int, list[bytes]] = defaultdict(list)  # of each block: JSON of its tokens

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """See Reply."""
        del index, counts
        response = self._response("in_progress", [], None)
        return [self._event(f"response.{what}", response=response) for what in ("created", "in_progress")]

    def events(self, delta: TokenText, counts: Json | None = None) -> list[bytes]:
        """See Reply."""
        del counts
        return [event for change in self._answer.push(delta) for event in self._change(change)]

    def ending(self, counts: Json) -> list[bytes]:
        """See Reply."""
        status = self._status()
        return [self._event(f"response.{status}", response=self._response(status, self._items(), counts))]

    def whole(self, deltas: Sequence[Sequence[TokenText]], counts: Json) -> bytes:
        """See Reply."""
        for delta in deltas[0]:
            for change in self._answer.push(delta):
                self._keep_logprobs(change)
        self._item_ids = [_item_id(block) for block in self._answer.blocks]
        return self._response(self._status(), self._items(), counts)

    def _status(self) -> str:
        return "incomplete" if self._answer.finish == "length" else "completed"

    def _items(self) -> list[Json]:
        """The items of the output; max_output_tokens cuts the last one."""
        last = len(self._answer.blocks) - 1
        return [
            self._item(block, self._status() if block.index == last else "completed")
            for block in self._answer.blocks
        ]

    def _response(self, status: str, items: list[Json], counts: Json | None) -> bytes:
        ended = counts is not None
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        values = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if ended and cut is None else None,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self._context.served_name,
            "output": items,
            "usage": None if counts is None else self._usage(counts),
        }
        return dumps_in_pieces(values)[:-1] + b"," + self._context.request.echo[1:]

    def _usage(self, counts: Json) -> Json:
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._answer.reasoning_tokens},
            "total_tokens": counts["total_tokens"],
        }

    def _change(self, change: BlockChange) -> list[bytes]:
        match change.what:
            case "begin":
                return self._begin(change.block)
            case "grow":
                return [self._delta(change)]
            case "end":
                return self._end(change.block)

    def _delta(self, change: BlockChange) -> bytes:
        event = self._before_delta[change.block.index] + string(change.text)
        if change.logprobs:
            event += b',"logprobs":[%b]' % b",".join(self._keep_logprobs(change))
        elif change.block.kind == "text":
            event += b',"logprobs":[]'
        return self._numbered(event)

    def _keep_logprobs(self, change: BlockChange) -> list[bytes]:
        """The JSON of each token that a text came from; it is made once, whatever repeats it."""
        tools = self._context.tools
        made = [dumps(logprob_of_chats(tools, entry)) for entry in change.logprobs]
        self._logprobs[change.block.index] += made
        return made

    def _begin(self, block: AnswerBlock) -> list[bytes]:
        self._item_ids.append(_item_id(block))
        place = self._place(block)
        kind = f"{_EVENTS[block.kind]}.delta"
        delta = frame(kind, dumps({"type": kind, **place, "delta": ""}))
        self._before_delta.append(delta.removesuffix(b'""}\n\n'))
        events = [self._item_event("added", block, "in_progress")]
        if block.kind != "call":
            events.append(self._event("response.content_part.added", **place, part=self._part(block, "")))
        return events

    def _end(self, block: AnswerBlock) -> list[bytes]:
        place, text, kind = self._place(block), block.text, f"{_EVENTS[block.kind]}.done"
        status = "completed" if self._answer.finish is None else self._status()
        if block.kind == "call":
            events = [self._event(kind, **place, name=block.name, arguments=text)]
        else:
            events = [
                self._event(kind, **place, text=text, **self._logprobs_of(block)),
                self._event("response.content_part.done", **place, part=self._part(block, text)),
            ]
        return [*events, self._item_event("done", block, status)]

    def _place(self, block: AnswerBlock) -> Json:
        place: Json = {"item_id": self._item_ids[block.index], "output_index": block.index}
        return place if block.kind == "call" else place | {"content_index": 0}

    def _item_event(self, what: str, block: AnswerBlock, status: str) -> bytes:
        item = self._item(block, status)
        return self._event(f"response.output_item.{what}", output_index=block.index, item=item)

    def _item(self, block: AnswerBlock, status: str) -> Json:
        item: Json = {"id": self._item_ids[block.index], "status": status}
        parts = [] if status == "in_progress" else [self._part(block, block.text)]
        match block.kind:
            case "text":
                return item | {"type": "message", "role": "assistant", "content": parts}
            case "reasoning":
                return item | {"type": "reasoning", "summary": [], "content": parts}
            case "call":
                called = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
                return item | {"type": "function_call", **called}

    def _part(self, block: AnswerBlock, text: str) -> Json:
        if block.kind == "text":
            return {"type": "output_text", "text": text, "annotations": [], **self._logprobs_of(block)}
        return {"type": "reasoning_text", "text": text}

    def _logprobs_of(self, block: AnswerBlock) -> Json:
        """All so far of a text, which has to have them."""
        if block.kind != "text":
            return {}
        return {"logprobs": b"[%b]" % b",".join(self._logprobs[block.index])}

    def _event(self, kind: str, **values: Any) -> bytes:
        """One event; a response object is JSON already."""
        response = values.pop("response", None)
        data = dumps_in_pieces({"type": kind, **values})
        if response is not None:
            data = data[:-1] + b',"response":' + response + b"}"
        return self._numbered(frame(kind, data).removesuffix(b"}\n\n"))

    def _numbered(self, event: bytes) -> bytes:
        """An event that is written up to the end of its object, with its number."""
        number, self._sequence = self._sequence, self._sequence + 1
        return b'%b,"sequence_number":%d}\n\n' % (event, number)


def _item_id(block: AnswerBlock) -> str:
    return f"{_PREFIXES[block.kind]}_{uuid.uuid4().hex}"
