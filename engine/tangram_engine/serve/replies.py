"""The JSON of answers, whole and in chunks, in OpenAI's two dialects."""

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from tangram_engine.serve.answers.answer_parser import AnswerFormat, AnswerParser
from tangram_engine.serve.answers.deltas import Delta, TokenLogprob
from tangram_engine.serve.answers.parts import AnswerParts, CallPart
from tangram_engine.serve.answers.prompt_details import PromptDetails
from tangram_engine.serve.generation import GeneratedSequence
from tangram_engine.serve.http.jsonio import dumps, dumps_in_pieces, string
from tangram_engine.serve.text.token_logprobs import logprob_of_chats
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

    opens_with_usage: ClassVar[bool] = False
    repeats_logprobs: ClassVar[int] = 0
    prefix: ClassVar[str]  # of the answer's id
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self, model: str, tools: TextTools, *, usage_in_chunks: bool, details: PromptDetails | None = None
    ) -> None:
        self._ends_with_usage = usage_in_chunks
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._tools = tools
        self._details = details
        # OpenAI: when the usage is asked for, every chunk before the last has it as null.
        self._chunk_usage: Json = {"usage": None} if usage_in_chunks else {}
        self._around: dict[int, list[bytes]] = {}  # by index: a chunk before and after its text

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The events before an answer's first text."""
        del index, counts
        return []

    def events(self, delta: Delta, counts: Json | None = None) -> list[bytes]:
        """The events of one token."""
        chunk = self.chunk(delta, counts)
        return [chunk] if chunk else []

    def ending(self, counts: Json) -> list[bytes]:
        """The events behind the last text."""
        return [self.last_chunk(counts)] if self._ends_with_usage else []

    def chunk(self, delta: Delta, counts: Json | None = None) -> bytes:
        """One event of a stream, as JSON, or nothing where there is nothing to show yet.

        Chunks of one answer with nothing but text differ only in that.

        `counts` is the usage so far, of streams that have it in each chunk.
        """
        if not (delta.text or delta.logprobs or delta.finish):
            return b""
        if counts or delta.logprobs or delta.finish or not delta.text or self._details:
            return dumps_in_pieces(self._chunk(delta, counts))
        around = self._around.get(delta.index)
        if around is None:
            around = self._around[delta.index] = dumps(self._chunk(Delta(delta.index, _PLACEHOLDER))).split(
                string(_PLACEHOLDER)
            )
        return string(delta.text).join(around)

    def last_chunk(self, counts: Json) -> bytes:
        """The event that carries the usage."""
        return dumps(self._envelope([], {"usage": self._total(counts)}))

    def whole(self, deltas: Sequence[Sequence[Delta]], counts: Json) -> bytes:
        """The answer without streaming, from the deltas of each index, as JSON."""
        choices = b",".join(dumps_in_pieces(self._choice(parts, streamed=False)) for parts in deltas)
        fields = {**self._head, "object": self.kind, "usage": self._total(counts)}
        head = dumps_in_pieces(fields | self._beside_choices())
        return head[:-1] + b',"choices":[' + choices + b"]}"

    def _total(self, counts: Json) -> Json:
        """The usage of all answers, once they are written."""
        return counts

    def _beside_choices(self) -> Json:
        """More fields of a whole answer."""
        return {}

    def _beside_text(self, index: int, *, streamed: bool) -> Json:
        """More fields of a choice."""
        del streamed
        return {} if self._details is None else self._details.of_answer(index)

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
            **self._beside_text(parts[0].index, streamed=streamed),
        }

    def _text(self, text: str, *, streamed: bool) -> Json:
        raise NotImplementedError

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        """For `dumps_in_pieces`: the objects of alternatives are made as they are written."""
        raise NotImplementedError


class Completion(Dialect):
    """/v1/completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The prompt, where the answer begins with it."""
        if self._details is None:
            return []
        chunk = self._chunk(Delta(index, self._details.text(index)), counts)
        if index % self._details.n == 0:  # once for each prompt
            chunk["choices"][0] |= self._details.of_prompt(index)
        return [dumps_in_pieces(chunk)]

    def whole(self, deltas: Sequence[Sequence[Delta]], counts: Json) -> bytes:
        """See Dialect."""
        if self._details is not None and self._details.echo is not None:
            deltas = [self._details.echoed(parts) for parts in deltas]
        return super().whole(deltas, counts)

    def _beside_text(self, index: int, *, streamed: bool) -> Json:
        fields = super()._beside_text(index, streamed=streamed)
        return fields if streamed or self._details is None else fields | self._details.of_prompt(index)

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
                None
                if entry.logprob is None
                else {name(token): value for token, value in (*entry.top, (entry.token, entry.logprob))}
                for entry in entries
            ),
            "text_offset": [entry.offset for entry in entries],
        }


class Chat(Dialect):
    """/v1/chat/completions."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        tools: TextTools,
        *,
        usage_in_chunks: bool,
        details: PromptDetails | None = None,
        form: AnswerFormat | None = None,
    ) -> None:
        super().__init__(model, tools, usage_in_chunks=usage_in_chunks, details=details)
        self._form = form or AnswerFormat()
        self._parsers: dict[int, AnswerParser] = {}  # by index; none where all text is content

    def _total(self, counts: Json) -> Json:
        if not self._form.reasons:
            return counts
        reasoning = sum(parser.reasoning_tokens for parser in self._parsers.values())
        return counts | {"completion_tokens_details": {"reasoning_tokens": reasoning}}

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The role of the answer."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt = self._details.of_prompt(index) if self._details is not None and index == 0 else {}
        return [dumps_in_pieces(self._envelope([choice], self._usage(counts) | prompt))]

    def _beside_choices(self) -> Json:
        return {} if self._details is None else self._details.of_prompt(0)

    def chunk(self, delta: Delta, counts: Json | None = None) -> bytes:
        """See Dialect."""
        if self._form.plain:
            return super().chunk(delta, counts)
        parser = self._parser(delta.index)
        parts = parser.push(delta.text, last=delta.finish is not None)
        if not (parts or delta.logprobs or delta.finish):
            return b""
        if not (parts.calls or parts.reasoning or delta.finish):
            return super().chunk(Delta(delta.index, parts.content, delta.logprobs), counts)
        changes = {
            "content": parts.content,
            "reasoning_content": parts.reasoning,
            "tool_calls": self._calls(parser, parts.calls, streamed=True),
        }
        choice = {
            "index": delta.index,
            "delta": {name: value for name, value in changes.items() if value},
            "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": self._finish(parser, delta.finish),
            **self._beside_text(delta.index, streamed=True),
        }
        return dumps_in_pieces(self._envelope([choice], self._usage(counts)))

    def _choice(self, parts: Sequence[Delta], *, streamed: bool) -> Json:
        choice = super()._choice(parts, streamed=streamed)
        if self._form.plain:
            return choice
        parser = self._parser(parts[0].index)
        whole = _joined(parser.push(part.text, last=part.finish is not None) for part in parts)
        message: Json = {"role": "assistant", "content": whole.content, "refusal": None}
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        if calls := self._calls(parser, whole.calls, streamed=False):
            message |= {"content": whole.content or None, "tool_calls": calls}
        return choice | {"message": message, "finish_reason": self._finish(parser, parts[-1].finish)}

    def _parser(self, index: int) -> AnswerParser:
        if index not in self._parsers:
            self._parsers[index] = AnswerParser(self._form)
        return self._parsers[index]

    def _calls(self, parser: AnswerParser, parts: list[CallPart], *, streamed: bool) -> list[Json]:
        """The parts of each call together; a call has its id and name where it begins."""
        calls: dict[int, Json] = {}
        for part in parts:
            call = calls.setdefault(part.index, {"function": {"arguments": ""}})
            if part.name is not None:
                call |= {"id": parser.call_id(part.index), "type": "function"}
                call["function"] = {"name": part.name} | call["function"]
            call["function"]["arguments"] += part.arguments
        return [{"index": index, **call} if streamed else call for index, call in calls.items()]

    def _finish(self, parser: AnswerParser, finish: str | None) -> str | None:
        return "tool_calls" if finish == "stop" and parser.has_calls else finish

    def _text(self, text: str, *, streamed: bool) -> Json:
        if streamed:
            return {"delta": {"content": text} if text else {}}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> Json:
        return {"content": (logprob_of_chats(self._tools, entry) for entry in entries), "refusal": None}


def _joined(parts: Iterable[AnswerParts]) -> AnswerParts:
    every = list(parts)
    return AnswerParts(
        "".join(part.content for part in every),
        "".join(part.reasoning for part in every),
        [call for part in every for call in part.calls],
    )
