"""An answer as a sequence of blocks: reasoning, text and calls, each of which begins, grows and ends."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from tangram_engine.serve.answers.answer_parser import AnswerFormat, AnswerParser
from tangram_engine.serve.answers.deltas import TokenLogprob
from tangram_engine.serve.answers.prompt_details import PromptDetails
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.params import ChatRequest, CompletionRequest
from tangram_engine.serve.text.tokenizer import TextTools

from .translation import TranslatedRequest

Json = dict[str, Any]
AnyRequest = TranslatedRequest[CompletionRequest | ChatRequest]
BlockKind = Literal["reasoning", "text", "call"]


class TokenText(Protocol):
    """What a token adds to an answer."""

    text: str
    logprobs: tuple[TokenLogprob, ...]  # of the tokens whose text is out with this one
    finish: str | None  # of the last token: "stop" or "length"
    stop: str | None  # of the last token: the stop string that ended the answer


class Reply(Protocol):
    """How the answer to one request is written."""

    opens_with_usage: ClassVar[bool]  # whether `opening` needs the usage
    repeats_logprobs: ClassVar[int]  # how often the events behind the last text have all logprobs again

    def opening(self, index: int, counts: Json | None = None) -> list[bytes]:
        """The events before the first text of an answer."""

    def events(self, delta: Any, counts: Json | None = None) -> list[bytes]:
        """The events of one token. `counts`: the usage so far, of streams that have it in each chunk."""

    def ending(self, counts: Json) -> list[bytes]:
        """The events behind the last text."""

    def whole(self, deltas: Sequence[Sequence[Any]], counts: Json) -> bytes:
        """The answer without streaming, from what the tokens of each index add."""


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What a reply is made of, beside the tokens."""

    served_name: str
    request: AnyRequest
    form: AnswerFormat
    tools: TextTools
    max_model_len: int
    details: PromptDetails | None = None  # of the prompt, where some are shown


@dataclass(frozen=True, slots=True)
class GenerationRoute:
    """An endpoint that generates tokens: how its bodies are read and its answers written."""

    path: str
    read: Callable[[bytes], AnyRequest]
    reply: Callable[[ReplyContext], Reply]
    failure: Callable[[APIError, int], bytes]  # the event behind so many others that ends a stream
    names_events: bool = False  # whether the events are whole frames, with the name of each


def frame(kind: str, data: bytes) -> bytes:
    """One server-sent event with its name."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


@dataclass(slots=True)
class AnswerBlock:
    """A part of the answer of one kind; `name` and `call_id` are those of a call."""

    kind: BlockKind
    index: int
    name: str = ""
    call_id: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that it has so far; of a call, the arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockChange:
    """What happened to a block: it begins, grows by a text, or ends."""

    block: AnswerBlock
    what: Literal["begin", "grow", "end"]
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()  # of the tokens that a text came from


class AnswerBlocks:
    """The blocks of one answer, as its tokens arrive."""

    def __init__(self, form: AnswerFormat) -> None:
        self._parser = AnswerParser(form)
        self._open: AnswerBlock | None = None
        self._unplaced: tuple[TokenLogprob, ...] = ()  # of tokens whose text belongs to no block yet
        self.blocks: list[AnswerBlock] = []
        self.finish: str | None = None
        self.stop: str | None = None

    @property
    def has_calls(self) -> bool:
        """Whether there is a call."""
        return self._parser.has_calls

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return self._parser.reasoning_tokens

    def push(self, delta: TokenText) -> list[BlockChange]:
        """What one token changes."""
        reasoned = self._parser.reasoning_tokens
        parts = self._parser.push(delta.text, last=delta.finish is not None)
        changes: list[BlockChange] = []
        if self._parser.reasoning_tokens == reasoned or parts.content:
            self._unplaced += delta.logprobs
        if parts.reasoning:
            changes += self._grow("reasoning", parts.reasoning)
        if parts.content:
            changes += self._grow("text", parts.content, self._unplaced)
        if parts:  # what has not become text is part of something else
            self._unplaced = ()
        for call in parts.calls:
            if call.name is not None:
                changes += self._begin("call", call.name, self._parser.call_id(call.index))
            if call.arguments:
                changes += self._grow("call", call.arguments)
        if delta.finish is not None:
            self.finish, self.stop = delta.finish, delta.stop
            changes += self._end()
        return changes

    def push_all(self, deltas: Iterable[TokenText]) -> None:
        """Take a whole answer."""
        for delta in deltas:
            self.push(delta)

    def _grow(self, kind: BlockKind, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[BlockChange]:
        changes = [] if self._open is not None and self._open.kind == kind else self._begin(kind)
        block = self.blocks[-1]
        block.pieces.append(text)
        return [*changes, BlockChange(block, "grow", text, logprobs)]

    def _begin(self, kind: BlockKind, name: str = "", call_id: str = "") -> list[BlockChange]:
        changes = self._end()
        self._open = AnswerBlock(kind, len(self.blocks), name, call_id)
        self.blocks.append(self._open)
        return [*changes, BlockChange(self._open, "begin")]

    def _end(self) -> list[BlockChange]:
        block, self._open = self._open, None
        return [] if block is None else [BlockChange(block, "end")]
