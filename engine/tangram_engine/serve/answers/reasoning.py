"""The reasoning before an answer, between `<think>` and `</think>`."""

from .parts import AnswerParts, HeldBlanks

OPEN, CLOSE = "<think>", "</think>"


class ReasoningSplitter:
    """Splits the text of an answer into reasoning and the rest, however it is cut.

    With `inside`, the prompt has opened the reasoning. Blanks around the tags belong to neither.
    """

    def __init__(self, *, inside: bool) -> None:
        self._begun = inside  # the opening tag has been read, or there is none
        self._inside = inside
        self._buffer = ""
        self._blanks = HeldBlanks()
        if inside:
            self._blanks.begin()

    @property
    def inside(self) -> bool:
        """Whether the next text is reasoning."""
        return self._inside

    def push(self, text: str, *, last: bool = False) -> AnswerParts:
        """What is certain with this text; its content is yet to be searched for calls."""
        self._buffer += text
        parts = AnswerParts()
        if not self._begun:
            self._begin(last=last)
        if self._inside:
            parts.reasoning = self._reasoning(last=last)
        if self._begun and not self._inside:
            content, self._buffer = self._buffer, ""
            # Only blanks before the content are dropped here.
            parts.content = content if self._blanks.begun else self._blanks.push(content) + self._blanks.held
            self._blanks.held = ""
        return parts

    def _begin(self, *, last: bool) -> None:
        begin = self._buffer.lstrip()
        if begin.startswith(OPEN):
            self._begun = self._inside = True
            self._buffer = begin.removeprefix(OPEN)
            self._blanks.begin()
        elif last or not OPEN.startswith(begin):
            self._begun = True

    def _reasoning(self, *, last: bool) -> str:
        at = self._buffer.find(CLOSE)
        end = at if at >= 0 else len(self._buffer) - (0 if last else self._held())
        text, self._buffer = self._blanks.push(self._buffer[:end]), self._buffer[end:]
        if at >= 0:
            self._buffer = self._buffer.removeprefix(CLOSE)
            self._inside = False
            self._blanks.begin()
        return text

    def _held(self) -> int:
        """Characters at the end that the closing tag may begin with."""
        most = min(len(CLOSE) - 1, len(self._buffer))
        return next((n for n in range(most, 0, -1) if self._buffer.endswith(CLOSE[:n])), 0)
