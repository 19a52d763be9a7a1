"""Tool calls of DeepSeek: V3 and R1 write a block of JSON for each call, V3.1 bare JSON."""

from .parts import NAME, CallParser

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_KIND = "function"  # what V3 has in place of the name, which comes behind the separator
_FENCE = "```"
_NAME_LIMIT = 256  # characters of a name with what is around it

MARKS = (_CALLS, _CALL)


class DeepSeekCalls(CallParser):
    """`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>` in V3.1; tags stand around all calls, too.

    V3 has `function<｜tool▁sep｜>f`, a line break, and the arguments in a block of Markdown.
    """

    keeps_special_tokens = True

    def _text(self) -> bool:
        before, tag = self._take_until(_CALLS, _CALL)
        self._content(before)
        if tag is not None:
            self._state = self._head if tag == _CALL else self._between
        return tag is not None

    def _between(self) -> bool:
        """Behind the first tag and behind each call: blanks, then another call, the end, or text."""
        begin = self._buffer.lstrip()
        tags = (_CALL, _CALLS_END)
        tag = next((tag for tag in tags if begin.startswith(tag)), None)
        if tag is None and not self._ended and any(tag.startswith(begin) for tag in tags):
            return False
        if tag is not None:
            self._buffer = begin.removeprefix(tag)
        self._state = self._head if tag == _CALL else self._text
        return True

    def _head(self) -> bool:
        """The text before the separator: a name, or the kind of the call."""
        begin = self._buffer[:_NAME_LIMIT]
        name, separator, rest = begin.partition(_SEPARATOR)
        if name.strip() == _KIND and not rest.lstrip().startswith("{"):
            name, separator, rest = rest.lstrip().partition("\n")
        if not separator and len(begin) < _NAME_LIMIT and not self._ended:
            return False
        if not separator or NAME.fullmatch(name.strip()) is None:
            self._content(_CALL)
            self._state = self._text
            return True
        self._take(len(begin) - len(rest))
        self._open_call(name.strip())
        self._state = self._block
        return True

    def _block(self) -> bool:
        """Blanks and the opening of a block, before the arguments."""
        begin = self._buffer.lstrip()
        if begin.startswith(_FENCE):
            fence, line_break, begin = begin.partition("\n")
            begun = not line_break and len(fence) < _NAME_LIMIT
        else:
            begun = _FENCE.startswith(begin)
        if begun and not self._ended:
            return False
        self._buffer = begin.lstrip()
        if self._buffer.startswith("{"):
            self._read_arguments(self._tail)
        elif self._buffer or self._ended:
            self._state = self._other_arguments
        return bool(self._buffer)

    def _other_arguments(self) -> bool:
        """What the model writes in place of an object."""
        text, tag = self._take_until(_CALL_END, _CALLS_END)
        self._add_arguments(text)
        if tag is not None:
            self._state = self._between if tag == _CALL_END else self._text
        return tag is not None

    def _tail(self) -> bool:
        """Up to the end of the call; what stands there is no argument."""
        _, tag = self._take_until(_CALL_END, _CALLS_END, _CALL)
        if tag is not None:
            self._state = {_CALL_END: self._between, _CALLS_END: self._text, _CALL: self._head}[tag]
        return tag is not None
