"""What a client may ask to see of its prompt, and of the ids of tokens, beside the text of an answer."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

from tangram_engine.sample.prompt_logprobs import PromptLogprobs, PromptToken
from tangram_engine.schedule.request import Request
from tangram_engine.serve.http.admission import DECODED_BYTES, LOGPROB_BYTES, TOKEN_BYTES, HeldBytes
from tangram_engine.serve.http.errors import bad_request
from tangram_engine.serve.http.params import ChatRequest, CompletionRequest

from .deltas import Delta, TokenLogprob

_FIRST = PromptToken(math.nan, 0, ())  # nothing predicts it


class _TokenTexts(Protocol):
    """Of `TextTools`."""

    def token_bytes(self, token: int) -> bytes:
        """See there."""

    def token_text(self, token: int) -> str:
        """See there."""


class _Answer(Protocol):
    """Of a `GeneratedSequence`."""

    request: Request
    prompt_logprobs: PromptLogprobs | None
    token_ids: list[int] | None


@dataclass(frozen=True, slots=True)
class PromptDetails:
    """Of the answers of one request, by their index."""

    answers: Sequence[_Answer]
    tools: _TokenTexts
    n: int  # answers of each prompt
    echo: Sequence[str] | None = None  # texts of the prompts, which the answers begin with
    echoed_logprobs: int | None = None  # alternatives of each token of these
    prompt_logprobs: int | None = None  # likewise, in a field of their own
    token_ids: bool = False

    @property
    def entries(self) -> int:
        """How many tokens and alternatives are written of prompts."""
        most = [count for count in (self.echoed_logprobs, self.prompt_logprobs) if count is not None]
        return sum(1 + count for count in most) * sum(len(answer.request.prompt) for answer in self.answers)

    def book(self, held: HeldBytes) -> None:
        """Book what is kept of prompts until the answer is whole. Raises APIError."""
        tokens = sum(len(answer.request.prompt) for answer in self.answers)
        size = TOKEN_BYTES * tokens + LOGPROB_BYTES * self.entries
        size += DECODED_BYTES * sum(map(len, self.echo or ()))
        if size > held.most:
            raise bad_request(
                f"prompt_logprobs: those of {tokens} tokens take {size} bytes; at most {held.most} can be",
                param="prompt_logprobs",
            )
        held.add(size)

    def text(self, index: int) -> str:
        """What the answer begins with."""
        return "" if self.echo is None else self.echo[index // self.n]

    def echoed(self, parts: Sequence[Delta]) -> list[Delta]:
        """One answer behind its prompt."""
        index, text = parts[0].index, self.text(parts[0].index)
        moved = [
            replace(
                part,
                logprobs=tuple(replace(entry, offset=len(text) + entry.offset) for entry in part.logprobs),
            )
            for part in parts
        ]
        return [Delta(index, text, tuple(self._echoed_tokens(index))), *moved]

    def of_prompt(self, index: int) -> dict[str, Any]:
        """Fields about the prompt of an answer."""
        fields: dict[str, Any] = {}
        if self.token_ids:
            fields["prompt_token_ids"] = list(self.answers[index].request.prompt)
        if self.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self._prompt_logprobs(index, self.prompt_logprobs)
        return fields

    def of_answer(self, index: int) -> dict[str, Any]:
        """The ids of its tokens, of a stream those that have not been in a chunk yet."""
        if not self.token_ids:
            return {}
        kept = self.answers[index].token_ids or []
        ids = kept.copy()
        kept.clear()
        return {"token_ids": ids}

    def _tokens(self, index: int) -> Iterator[tuple[int, PromptToken]]:
        answer = self.answers[index]
        behind = answer.prompt_logprobs.tokens() if answer.prompt_logprobs is not None else ()
        return zip(answer.request.prompt, chain((_FIRST,), behind), strict=True)

    def _echoed_tokens(self, index: int) -> Iterator[TokenLogprob]:
        if self.echoed_logprobs is None:
            return
        offset = 0
        for token, scored in self._tokens(index):
            yield TokenLogprob(token, _number(scored.logprob), scored.top[: self.echoed_logprobs], offset)
            offset += _characters(self.tools.token_bytes(token))

    def _prompt_logprobs(self, index: int, most: int) -> Iterator[dict[str, Any] | None]:
        """As vLLM writes them: by id, the token itself and the most likely ones; null for the first token.

        One after the other: all together would take a gigabyte.
        """
        for token, scored in self._tokens(index):
            likely = ((name, value, at) for at, (name, value) in enumerate(scored.top[:most], 1))
            every = {name: (value, rank) for name, value, rank in [*likely, (token, *scored[:2])]}
            yield (
                None
                if scored is _FIRST
                else {
                    str(name): {
                        "logprob": _number(value),
                        "rank": rank,
                        "decoded_token": self.tools.token_text(name),
                    }
                    for name, (value, rank) in every.items()
                }
            )


def details_asked_for(
    body: CompletionRequest | ChatRequest,
    answers: Sequence[_Answer],
    tools: _TokenTexts,
    echo: list[str] | None,
) -> PromptDetails | None:
    """What a request wants to see of its prompt and of token ids; None: nothing."""
    if echo is None and body.prompt_logprobs is None and not body.return_token_ids:
        return None
    return PromptDetails(
        answers,
        tools,
        body.choices,
        echo,
        body.wanted_logprobs() if echo is not None else None,
        body.prompt_logprobs,
        bool(body.return_token_ids),
    )


def _number(logprob: float) -> float | None:
    """JSON has no other numbers."""
    return logprob if math.isfinite(logprob) else None


def _characters(raw: bytes) -> int:
    """That begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
