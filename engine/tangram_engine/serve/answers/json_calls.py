"""Tool calls as JSON: between tags (Hermes, Qwen), as the whole answer (Llama 3), behind a tag (Mistral)."""

import json
import string
from typing import Any

from .parts import ELEMENT_LIMIT, NAME, CallParser, JsonEnd

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"
_CALLS, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME_LIMIT = 256  # characters between Mistral's tags


def _whole_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call whose keys come in any order."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class HermesCalls(CallParser):
    """`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, as often as there are calls."""

    def _text(self) -> bool:
        before, tag = self._take_until(_CALL)
        self._content(before)
        if tag is not None:
            self._state = self._head
        return tag is not None

    def _head(self) -> bool:
        end = self._buffer.find(_CALL_END)
        rest, self._buffer = ("", self._buffer) if end < 0 else (self._buffer[end:], self._buffer[:end])
        opened = self._take_head()
        body, self._buffer = self._buffer, self._buffer + rest
        if opened:
            self._read_arguments(self._tail)
            return True
        too_long = end > ELEMENT_LIMIT or (end < 0 and len(body) > ELEMENT_LIMIT + len(_CALL_END))
        if end < 0 and not too_long and not self._ended:
            return False
        call = None if too_long else _whole_call(body)
        if call is None:
            self._content(_CALL)
            self._state = self._text
            return True
        self._open_call(call[0])
        self._add_arguments(call[1])
        self._take(len(body))
        self._state = self._tail
        return True

    def _tail(self) -> bool:
        _, tag = self._take_until(_CALL_END, _CALL)
        if tag is not None:
            self._state = self._head if tag == _CALL else self._text
        return tag is not None


class ObjectCalls(CallParser):
    """Objects with a name and arguments, one behind the other: what Llama 3 and Mistral have in common."""

    def _is_call(self, name: str) -> bool:
        del name
        return True

    def _object(self) -> bool:
        if self._take_head(self._is_call):
            self._read_arguments(self._after)
            return True
        end = self._element_end.find(self._buffer, self._read)
        self._read = len(self._buffer)
        if end is None and len(self._buffer) <= ELEMENT_LIMIT and not self._ended:
            return False
        element = self._buffer[:end] if end is not None and end <= ELEMENT_LIMIT else ""
        call = _whole_call(element)
        if call is None or not self._is_call(call[0]):
            self._state = self._no_call
            return True
        self._take(len(element))
        self._open_call(call[0])
        self._add_arguments(call[1])
        self._state = self._after
        return True

    def _begin_object(self) -> bool:
        self._element_end, self._read = JsonEnd(), 0
        self._state = self._object
        return True

    def _after(self) -> bool:
        raise NotImplementedError

    def _no_call(self) -> bool:
        """What looked like a call is content, and so is all that follows."""
        self._content(self._take(len(self._buffer)))
        return False


class Llama3Calls(ObjectCalls):
    """The answer is `{"name": "f", "parameters": {}}`, or several of these behind semicolons.

    Any other answer is text, also an object whose name is none of a tool.
    """

    keeps_special_tokens = True

    def _is_call(self, name: str) -> bool:
        return name in self._tools

    def _text(self) -> bool:
        """At the beginning and between objects."""
        begin = self._buffer.lstrip()
        if begin.startswith(_PYTHON):
            self._buffer = begin.removeprefix(_PYTHON)
            return True
        if begin.startswith("{"):
            self._content(self._take(len(self._buffer) - len(begin)))
            return self._begin_object()
        if not self._ended and _PYTHON.startswith(begin):
            return False
        self._state = self._no_call
        return True

    def _after(self) -> bool:
        """Behind a call: the brace that closes it, and what stands between two."""
        self._skip_blanks("};,")
        if self._buffer:
            self._state = self._text
        return bool(self._buffer)


class MistralCalls(ObjectCalls):
    """`[TOOL_CALLS][{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}` once a call."""

    id_letters = string.ascii_letters + string.digits  # the templates refuse ids of another form
    id_length = 9
    keeps_special_tokens = True

    def _text(self) -> bool:
        before, tag = self._take_until(_CALLS)
        self._content(before)
        if tag is not None:
            self._state = self._first
        return tag is not None

    def _first(self) -> bool:
        self._skip_blanks()
        if self._buffer.startswith("["):
            self._take(1)
            self._state = self._after
        elif self._buffer:
            self._state = self._name
        return bool(self._buffer)

    def _after(self) -> bool:
        """Between the objects of an array."""
        self._skip_blanks("},")
        if self._buffer.startswith("{"):
            return self._begin_object()
        if self._buffer:
            self._take(1 if self._buffer.startswith("]") else 0)
            self._state = self._text
        return bool(self._buffer)

    def _name(self) -> bool:
        begin = self._buffer[:_NAME_LIMIT]
        places = [at for mark in (_ARGS, "{") if (at := begin.find(mark)) >= 0]
        if not places and len(begin) < _NAME_LIMIT and not self._ended:
            return False
        name = begin[: min(places, default=0)].split(_CALL_ID)[0].strip()
        if NAME.fullmatch(name) is None:
            self._content(_CALLS)
            self._state = self._text
            return True
        self._open_call(name)
        self._take(min(places))
        self._buffer = self._buffer.removeprefix(_ARGS)
        self._read_arguments(self._text)
        return True

    def _no_call(self) -> bool:
        self._state = self._text
        self._content(self._take(1))  # the brace: no tag begins with it
        return True
