"""One chat answer, parsed as its tokens arrive."""

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .formats import HARMONY, PARSERS
from .parts import AnswerParts, CallParser
from .reasoning import ReasoningSplitter


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the text of an answer is to be read."""

    call_format: str | None = None  # None: no calls are looked for
    tools: Mapping[str, Any] = field(default_factory=dict)  # by name, the schema of the parameters
    parallel: bool = True  # whether there may be more than one call
    thinks: bool = False  # whether the model reasons between tags
    opened: bool = False  # the prompt has opened the reasoning
    shows_reasoning: bool = True

    @property
    def keeps_special_tokens(self) -> bool:
        """Whether tags of calls are tokens that decoding would skip."""
        return self.call_format is not None and PARSERS[self.call_format].keeps_special_tokens

    @property
    def reasons(self) -> bool:
        """Whether tokens of reasoning are counted."""
        return self.thinks or self.call_format == HARMONY

    @property
    def plain(self) -> bool:
        """Whether all text is content."""
        return self.call_format is None and not self.thinks


class AnswerParser:
    """Parts of one answer, with the ids of its calls and the number of tokens of its reasoning."""

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._splitter = ReasoningSplitter(inside=form.opened) if form.thinks else None
        self._calls: CallParser | None = None
        if form.call_format is not None:
            self._calls = PARSERS[form.call_format](dict(form.tools))
        self.reasoning_tokens = 0
        self._ids: list[str] = []

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls is not None and self._calls.calls > 0

    def call_id(self, index: int) -> str:
        """The id of a call, made when it is first asked for."""
        while len(self._ids) <= index:
            self._ids.append(self._new_id())
        return self._ids[index]

    def push(self, text: str, *, last: bool) -> AnswerParts:
        """What one token adds to the answer; `last`: nothing follows."""
        parts = AnswerParts(content=text)
        if self._splitter is not None:
            inside = self._splitter.inside
            parts = self._splitter.push(text, last=last)
            self.reasoning_tokens += inside or self._splitter.inside or bool(parts.reasoning)
            if not self._form.shows_reasoning:
                parts.reasoning = ""
        if self._calls is not None:
            inside = self._calls.inside_reasoning
            rest = self._calls.push(parts.content, last=last)
            parts.content = rest.content
            if rest.reasoning or inside or self._calls.inside_reasoning:
                self.reasoning_tokens += 1
                parts.reasoning = rest.reasoning if self._form.shows_reasoning else ""
            parts.calls = [call for call in rest.calls if self._form.parallel or call.index == 0]
        return parts

    def _new_id(self) -> str:
        letters = self._calls.id_letters if self._calls is not None else ""
        length = self._calls.id_length if self._calls is not None else 24
        prefix = "" if letters else "call_"
        chosen = letters or string.hexdigits[:16]
        return prefix + "".join(secrets.choice(chosen) for _ in range(length))
