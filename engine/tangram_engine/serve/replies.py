"""The JSON of answers, whole and in chunks, in OpenAI's two dialects."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from .generation import Answer, Delta, TokenLogprob
from .jsonio import dumps, dumps_in_pieces, string
from .tokenizer import TextTools

Json = dict[str, Any]
_PLACEHOLDER = "\0"  # no name of a model is this


def usage(answers: Sequence[Answer], n: int) -> Json:
    """Token counts; a prompt counts once, however many answers it got."""
    firsts = answers[::n]
    prompt = sum(len(answer.request.prompt) for answer in firsts)
    completion = sum(answer.tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached for answer in firsts)},
    }


class Dialect(Protocol):
    """How completions and chat completions differ on the wire."""

    def chunk(self, delta: Delta) -> bytes:
        """One event of a stream for one delta, as JSON; `opening` and `last_chunk` likewise."""

    def opening(self, index: int) -> list[bytes]:
        """The events before an answer's first text."""

    def last_chunk(self, counts: Json) -> bytes:
        """The event that carries the usage."""

    def whole(self, deltas: Sequence[Sequence[Delta]], counts: Json) -> bytes:
        """The answer without streaming, from the deltas of each index, as JSON."""


class _Base:
    def __init__(
        self, kind: str, prefix: str, model: str, tools: TextTools, *, usage_in_chunks: bool
    ) -> None:
        self._kind = kind
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._tools = tools
        # OpenAI: when the usage is asked for, every chunk before the last has it as null.
        self._chunk_usage: Json = {"usage": None} if usage_in_chunks else {}
        self._around: dict[int, list[bytes]] = {}  # by index: a chunk before and after its text

    def whole(self, deltas: Sequence[Sequence[Delta]], counts: Json) -> bytes:
        """See Dialect. Choice by choice: with logprobs, the objects are many times as large as the text."""
        head = dumps({**self._head, "object": self._kind, "usage": counts})
        choices = b",".join(dumps_in_pieces(self._choice(parts)) for parts in deltas)
        return head[:-1] + b',"choices":[' + choices + b"]}"

    def chunk(self, delta: Delta) -> bytes:
        """See Dialect. Chunks of one answer that hold nothing but text differ only in that."""
        if delta.logprobs or delta.finish or not delta.text:
            return dumps(self._chunk(delta))
        around = self._around.get(delta.index)
        if around is None:
            around = self._around[delta.index] = dumps(self._chunk(Delta(delta.index, _PLACEHOLDER))).split(
                string(_PLACEHOLDER)
            )
        return string(delta.text).join(around)

    def _chunk(self, delta: Delta) -> Json:
        raise NotImplementedError

    def _choice(self, parts: Sequence[Delta]) -> Json:
        raise NotImplementedError

    def _envelope(self, choices: list[Json], kind: str, extra: Json) -> Json:
        return {**self._head, "object": kind, "choices": choices, **extra}


class Completion(_Base):
    """/v1/completions."""

    def __init__(self, model: str, tools: TextTools, *, usage_in_chunks: bool) -> None:
        super().__init__("text_completion", "cmpl", model, tools, usage_in_chunks=usage_in_chunks)

    def opening(self, index: int) -> list[bytes]:
        """Completions start with text at once."""
        del index
        return []

    def last_chunk(self, counts: Json) -> bytes:
        """See Dialect."""
        return dumps(self._envelope([], self._kind, {"usage": counts}))

    def _chunk(self, delta: Delta) -> Json:
        return self._envelope([self._choice([delta])], self._kind, self._chunk_usage)

    def _choice(self, parts: Sequence[Delta]) -> Json:
        logprobs = [entry for part in parts for entry in part.logprobs]
        return {
            "index": parts[0].index,
            "text": "".join(part.text for part in parts),
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": parts[-1].finish,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        name = self._tools.token_name
        return {
            "tokens": [name(entry.token) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            # The chosen token is always there, so there may be one more than asked for: as with OpenAI.
            "top_logprobs": [
                {name(token): value for token, value in (*entry.top, (entry.token, entry.logprob))}
                for entry in entries
            ],
            "text_offset": [entry.offset for entry in entries],
        }


class Chat(_Base):
    """/v1/chat/completions."""

    def __init__(self, model: str, tools: TextTools, *, usage_in_chunks: bool) -> None:
        super().__init__("chat.completion", "chatcmpl", model, tools, usage_in_chunks=usage_in_chunks)

    def opening(self, index: int) -> list[bytes]:
        """The role of the answer."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [dumps(self._envelope([choice], "chat.completion.chunk", self._chunk_usage))]

    def _chunk(self, delta: Delta) -> Json:
        choice = {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": delta.finish,
        }
        return self._envelope([choice], "chat.completion.chunk", self._chunk_usage)

    def last_chunk(self, counts: Json) -> bytes:
        """See Dialect."""
        return dumps(self._envelope([], "chat.completion.chunk", {"usage": counts}))

    def _choice(self, parts: Sequence[Delta]) -> Json:
        logprobs = [entry for part in parts for entry in part.logprobs]
        text = "".join(part.text for part in parts)
        return {
            "index": parts[0].index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": parts[-1].finish,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        return {
            "content": [
                self._token(entry.token, entry.logprob)
                | {"top_logprobs": [self._token(token, value) for token, value in entry.top]}
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, token: int, logprob: float) -> Json:
        return {
            "token": self._tools.token_text(token),
            "logprob": logprob,
            "bytes": list(self._tools.token_bytes(token)),
        }
