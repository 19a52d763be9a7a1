"""Answers of gpt-oss, whose messages stand in channels: OpenAI's Harmony format.

Source: the OpenAI cookbook, "OpenAI harmony response format" (2025).
"""

import re
from collections.abc import Callable

from .parts import NAME, CallParser, HeldBlanks

CHANNEL = "<|channel|>"
_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_LIMIT = 512  # characters
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_NAME_OF_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyAnswer(CallParser):
    """`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`.

    Analysis is reasoning. A message to a function is a call, `commentary to=functions.f`; where no tools are
    offered, it is content, as every other message is. An answer without a header is content.
    """

    keeps_special_tokens = True

    def __init__(self, tools: dict[str, object]) -> None:
        super().__init__(tools)
        self._reasoning = HeldBlanks()
        self._sink: Callable[[str], None] = self._content
        self._written: list[HeldBlanks] = []  # of the kinds that there have been

    @property
    def inside_reasoning(self) -> bool:
        """See CallParser."""
        return self._sink == self._reason

    def _text(self) -> bool:
        """At the beginning of a message."""
        begin = self._buffer.lstrip()
        openings = (CHANNEL, _START, "to=")
        if any(begin.startswith(opening) for opening in openings):
            self._buffer = begin
            self._state = self._header
        elif not self._ended and any(opening.startswith(begin) for opening in openings):
            return False
        else:
            self._state = self._plain
        return True

    def _plain(self) -> bool:
        self._content(self._take(len(self._buffer)))
        return False

    def _header(self) -> bool:
        head, message, _ = self._buffer[:_HEADER_LIMIT].partition(_MESSAGE)
        if not message:
            if len(self._buffer) >= _HEADER_LIMIT:
                self._state = self._plain
            elif self._ended:  # a header that was cut says nothing
                self._take(len(self._buffer))
            return len(self._buffer) >= _HEADER_LIMIT
        self._take(len(head) + len(message))
        recipient, channel = _RECIPIENT.search(head), _NAME_OF_CHANNEL.search(head)
        if recipient is not None and self._tools and NAME.fullmatch(recipient[1]):
            self._open_call(recipient[1])
            self._sink = self._add_arguments
        elif channel is not None and channel[1] == "analysis":
            self._begin(self._reasoning, self._reason)
        else:
            self._begin(self._blanks, self._content)
        self._state = self._body
        return True

    def _begin(self, blanks: HeldBlanks, sink: Callable[[str], None]) -> None:
        """Two messages of a kind are two paragraphs."""
        self._sink = sink
        if blanks in self._written:
            blanks.held = ""
            sink("\n\n")
        self._written.append(blanks)

    def _body(self) -> bool:
        text, tag = self._take_until(*_ENDS, _START, CHANNEL)
        self._sink(text)
        if tag is None:
            return False
        self._sink = self._content
        self._buffer = ("" if tag in _ENDS else tag) + self._buffer
        self._state = self._text
        return True

    def _reason(self, text: str) -> None:
        self._parts.reasoning += self._reasoning.push(text)
