"""What an answer consists of, and the buffer on which the parsers of its text stand."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Characters of what is kept until it is whole: an object that is no call, a value that is no string.
ELEMENT_LIMIT = 64 << 10
BLANKS_LIMIT = 1024  # characters that are held
HEAD_LIMIT = 512  # characters before the arguments of a call
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # of a tool
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_.:/-]{1,128})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_IN_STRING = re.compile(r'["\\]')
_IN_VALUE = re.compile(r'["{}\[\]]')


@dataclass(slots=True)
class CallPart:
    """A part of a tool call: its name in the first one, text of its arguments in the others."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class AnswerParts:
    """What some text of an answer adds to it."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class JsonEnd:
    """Finds where a JSON object or array ends that arrives in pieces. The text is read once."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str, start: int = 0) -> int | None:
        """The index behind the end, or None if the text ends before."""
        at = start
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while match := (_IN_STRING if self._in_string else _IN_VALUE).search(text, at):
            at = match.end()
            match match[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = at == len(text)
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return at
        return None


class HeldBlanks:
    """Text whose blanks at the end are held until more text shows that they stand inside.

    `begin` drops those that are held, and all before the next text.
    """

    def __init__(self) -> None:
        self.held = ""
        self._begun = True

    def begin(self) -> None:
        """Nothing has been shown of what comes now."""
        self.held, self._begun = "", False

    @property
    def begun(self) -> bool:
        """Whether anything has been shown since `begin`."""
        return self._begun

    def push(self, text: str) -> str:
        """What may be shown now."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        text = self.held + text
        shown = max(len(text.rstrip()), len(text) - BLANKS_LIMIT)
        self.held = text[shown:]
        return text[:shown]


class CallParser:
    """Takes the text of an answer in any pieces, and gives out what is certain of its parts.

    A subclass is a state machine. A state takes from `_buffer` what it knows the meaning of, and returns
    whether the next state may go on. What it gives out does not depend on how the text was cut: a state
    decides by the text from its beginning, and never by what has arrived behind it.

    Blanks beside calls are no content.
    """

    id_letters = ""  # of ids of calls, where the template asks for a form of its own
    id_length = 24
    keeps_special_tokens = False  # whether tags are special tokens, which decoding would skip

    def __init__(self, tools: dict[str, Any]) -> None:
        self._tools = tools  # by name, the schema of the parameters
        self._buffer = ""
        self._ended = False
        self._state: Callable[[], bool] = self._text
        self._parts = AnswerParts()
        self._blanks = HeldBlanks()
        self._calls = 0
        self._arguments_end = JsonEnd()
        self._behind_arguments: Callable[[], bool] = self._text
        self._element_end = JsonEnd()
        self._read = 0  # characters of the buffer that `_element_end` has seen

    @property
    def calls(self) -> int:
        """How many there were so far."""
        return self._calls

    @property
    def inside_reasoning(self) -> bool:
        """Whether the next text is reasoning, in a format that has it beside calls."""
        return False

    def push(self, text: str, *, last: bool = False) -> AnswerParts:
        """What is certain with this text. With `last` nothing follows it."""
        self._buffer += text
        self._ended = last
        while self._state():
            pass
        if last:
            self._content(self._take(len(self._buffer)))
            if not self._calls:
                self._parts.content += self._blanks.held
        parts, self._parts = self._parts, AnswerParts()
        return parts

    def _text(self) -> bool:
        raise NotImplementedError

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text

    def _skip_blanks(self, more: str = "") -> None:
        self._buffer = self._buffer.lstrip(" \t\r\n" + more)

    def _take_until(self, *tags: str) -> tuple[str, str | None]:
        """The text before the first of the tags, and that tag; without one, what cannot belong to one."""
        places = [(at, tag) for tag in tags if (at := self._buffer.find(tag)) >= 0]
        if places:
            at, tag = min(places)
            before = self._take(at)
            self._take(len(tag))
            return before, tag
        return self._take(len(self._buffer) - (0 if self._ended else self._begun(tags))), None

    def _begun(self, tags: tuple[str, ...]) -> int:
        """Characters at the end of the buffer that one of the tags may begin with."""
        longest = min(max(map(len, tags)) - 1, len(self._buffer))
        ends = (self._buffer[len(self._buffer) - length :] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(tag.startswith(end) for tag in tags)), 0)

    def _content(self, text: str) -> None:
        self._parts.content += self._blanks.push(text)

    def _open_call(self, name: str) -> None:
        self._parts.calls.append(CallPart(self._calls, name))
        self._calls += 1
        self._blanks.begin()
        self._arguments_end = JsonEnd()

    def _add_arguments(self, text: str) -> None:
        if text:
            self._parts.calls.append(CallPart(self._calls - 1, None, text))

    def _take_head(self, names: Callable[[str], bool] = lambda name: True) -> bool:
        """Open a call, if the buffer begins with an object whose first keys are its name and arguments."""
        head = _HEAD.match(self._buffer[:HEAD_LIMIT])
        if head is None or not names(head[1]):
            return False
        self._open_call(head[1])
        self._take(head.end())
        return True

    def _read_arguments(self, then: Callable[[], bool]) -> None:
        """An object of arguments comes next, and the state `then` behind it."""
        self._behind_arguments = then
        self._state = self._arguments

    def _arguments(self) -> bool:
        end = self._arguments_end.find(self._buffer)
        self._add_arguments(self._take(len(self._buffer) if end is None else end))
        if end is not None:
            self._state = self._behind_arguments
        return end is not None
