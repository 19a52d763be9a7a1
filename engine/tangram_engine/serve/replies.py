"""The JSON of answers, whole and in chunks, in OpenAI's two dialects."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from tangram_engine.serve.generation import Delta, GeneratedSequence, TokenLogprob
from tangram_engine.serve.http.jsonio import dumps, dumps_in_pieces, string
from tangram_engine.serve.text.tokenizer import TextTools

Json = dict[str, Any]
_PLACEHOLDER = "\0"  # no name of a model is this


def usage(answers: Sequence[GeneratedSequence], n: int) -> Json:
    """Token counts; a prompt counts once, however many answers it got."""
    firsts = answers[::n]
    prompt = sum(len(answer.request.prompt) for answer in firsts)
    completion = sum(answer.tokens for answer in answers)
    return _counts(prompt, completion, sum(answer.cached for answer in firsts))


def usage_so_far(answer: GeneratedSequence, completion: int) -> Json:
    """Token counts of one answer after so many of its tokens, as vLLM has them in each chunk."""
    return _counts(len(answer.request.prompt), completion, answer.cached)


def _counts(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Dialect:
    """How an answer is written; completions and chat completions differ in what is declared here."""

    prefix: ClassVar[str]  # of the answer's id
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, model: str, tools: TextTools, *, usage_in_chunks: bool) -> None:
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._tools = tools
        # OpenAI: when the usage is asked for, every chunk before the last has it as null.
        self._chunk_usage: Json = {"usage": None} if usage_in_chunks else {}
        self._around: dict[int, list[bytes]] = {}  # by index: a chunk before and after its text

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The events before an answer's first text."""
        del index, counts
        return []

    def chunk(self, delta: Delta, counts: Json | None = None) -> bytes:
        """One event of a stream, as JSON. Chunks of one answer with nothing but text differ only in that.

        `counts` is the usage so far, of streams that have it in each chunk.
        """
        if counts or delta.logprobs or delta.finish or not delta.text:
            return dumps_in_pieces(self._chunk(delta, counts))
        around = self._around.get(delta.index)
        if around is None:
            around = self._around[delta.index] = dumps(self._chunk(Delta(delta.index, _PLACEHOLDER))).split(
                string(_PLACEHOLDER)
            )
        return string(delta.text).join(around)

    def last_chunk(self, counts: Json) -> bytes:
        """The event that carries the usage."""
        return dumps(self._envelope([], {"usage": counts}))

    def whole(self, deltas: Sequence[Sequence[Delta]], counts: Json) -> bytes:
        """The answer without streaming, from the deltas of each index, as JSON."""
        head = dumps({**self._head, "object": self.kind, "usage": counts})
        choices = b",".join(dumps_in_pieces(self._choice(parts, streamed=False)) for parts in deltas)
        return head[:-1] + b',"choices":[' + choices + b"]}"

    def _chunk(self, delta: Delta, counts: Json | None = None) -> Json:
        return self._envelope([self._choice([delta], streamed=True)], self._usage(counts))

    def _usage(self, counts: Json | None) -> Json:
        return {"usage": counts} if counts else self._chunk_usage

    def _envelope(self, choices: list[Json], extra: Json) -> Json:
        return {**self._head, "object": self.chunk_kind, "choices": choices, **extra}

    def _choice(self, parts: Sequence[Delta], *, streamed: bool) -> Json:
        logprobs = [entry for part in parts for entry in part.logprobs]
        return {
            "index": parts[0].index,
            **self._text("".join(part.text for part in parts), streamed=streamed),
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": parts[-1].finish,
        }

    def _text(self, text: str, *, streamed: bool) -> Json:
        raise NotImplementedError

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        """For `dumps_in_pieces`: the objects of alternatives are made as they are written."""
        raise NotImplementedError


class Completion(Dialect):
    """/v1/completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _text(self, text: str, *, streamed: bool) -> Json:
        del streamed
        return {"text": text}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        name = self._tools.token_name
        return {
            "tokens": (name(entry.token) for entry in entries),
            "token_logprobs": [entry.logprob for entry in entries],
            # The chosen token is always there, so there may be one more than asked for: as with OpenAI.
            "top_logprobs": (
                {name(token): value for token, value in (*entry.top, (entry.token, entry.logprob))}
                for entry in entries
            ),
            "text_offset": [entry.offset for entry in entries],
        }


class Chat(Dialect):
    """/v1/chat/completions."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The role of the answer."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return [dumps(self._envelope([choice], self._usage(counts)))]

    def _text(self, text: str, *, streamed: bool) -> Json:
        if streamed:
            return {"delta": {"content": text} if text else {}}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        return {
            "content": (
                self._token(entry.token, entry.logprob)
                | {"top_logprobs": [self._token(token, value) for token, value in entry.top]}
                for entry in entries
            ),
            "refusal": None,
        }

    def _token(self, token: int, logprob: float) -> Json:
        return {
            "token": self._tools.token_text(token),
            "logprob": logprob,
            "bytes": list(self._tools.token_bytes(token)),
        }
