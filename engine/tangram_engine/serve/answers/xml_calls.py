"""Tool calls as Qwen3-Coder writes them: a tag for the function and one for each parameter."""

import json
import re
from typing import Any

from .parts import ELEMENT_LIMIT, CallParser

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"\s*([A-Za-z0-9_.:/-]{1,128})\s*>")
_PARAMETER_NAME = re.compile(r"([^>\n]{1,128})>")
_NAME_LIMIT = 256  # characters up to the end of a tag
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Qwen3CoderCalls(CallParser):
    """`<tool_call><function=f><parameter=city>Paris</parameter></function></tool_call>`.

    The schema of the tool says whether a value is a string. Any other value is JSON, or a string where it is
    none.
    """

    def __init__(self, tools: dict[str, Any]) -> None:
        super().__init__(tools)
        self._properties: dict[str, Any] = {}
        self._written = 0  # parameters of the call

    def _text(self) -> bool:
        tags = (_CALL, _FUNCTION, *((_CALL_END,) if not self._blanks.begun else ()))
        before, tag = self._take_until(*tags)
        self._content(before)
        if tag == _FUNCTION:
            self._state = self._function
        elif tag == _CALL:
            self._state = self._call
        return tag is not None

    def _call(self) -> bool:
        """Behind `<tool_call>` a function follows, or it was text."""
        begin = self._buffer.lstrip()
        if _FUNCTION.startswith(begin[: len(_FUNCTION)]) and len(begin) < len(_FUNCTION) and not self._ended:
            return False
        if begin.startswith(_FUNCTION):
            self._buffer = begin.removeprefix(_FUNCTION)
            self._state = self._function
        else:
            self._content(_CALL)
            self._state = self._text
        return True

    def _function(self) -> bool:
        begin = self._buffer[:_NAME_LIMIT]
        name = _NAME.match(begin)
        if name is None:
            if len(begin) < _NAME_LIMIT and ">" not in begin and not self._ended:
                return False
            self._content(_FUNCTION)
            self._state = self._text
            return True
        self._take(name.end())
        self._open_call(name[1])
        schema = self._tools.get(name[1])
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self._properties = properties if isinstance(properties, dict) else {}
        self._written = 0
        self._add_arguments("{")
        self._state = self._parameters
        return True

    def _parameters(self) -> bool:
        _, tag = self._take_until(_PARAMETER, _FUNCTION_END, _CALL_END)
        if tag == _PARAMETER:
            self._state = self._parameter
        elif tag is not None:
            self._add_arguments("}")
            self._state = self._text
        return tag is not None

    def _parameter(self) -> bool:
        begin = self._buffer[:_NAME_LIMIT]
        name = _PARAMETER_NAME.match(begin)
        if name is None:
            if len(begin) < _NAME_LIMIT and ">" not in begin and not self._ended:
                return False
            self._state = self._parameters
            return True
        if len(self._buffer) == name.end() and not self._ended:
            return False  # whether a line break follows, which is none of the value
        self._take(name.end())
        self._buffer = self._buffer.removeprefix("\n")
        self._add_arguments((", " if self._written else "") + json.dumps(name[1], ensure_ascii=False) + ": ")
        self._written += 1
        if _is_string(self._properties.get(name[1])):
            self._add_arguments('"')
            self._state = self._string
        else:
            self._state = self._value
        return True

    def _string(self) -> bool:
        text, tag = self._take_until("\n" + _PARAMETER_END, _PARAMETER_END)
        self._add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        if tag is not None:
            self._add_arguments('"')
            self._state = self._parameters
        return tag is not None

    def _value(self) -> bool:
        end = self._buffer.find(_PARAMETER_END)
        if end > ELEMENT_LIMIT or (end < 0 and len(self._buffer) > ELEMENT_LIMIT + len(_PARAMETER_END)):
            self._add_arguments('"')
            self._state = self._string
            return True
        if end < 0:
            if self._ended:
                self._add_arguments(self._take(len(self._buffer)))
            return False
        self._add_arguments(_json_or_string(self._take(end).removesuffix("\n")))
        self._take(len(_PARAMETER_END))
        self._state = self._parameters
        return True


def _is_string(schema: Any) -> bool:
    """Whether a value is text as it stands; so is one of which the schema says nothing."""
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if kind is not None:
        return bool(kind == "string")
    return not any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))


def _json_or_string(text: str) -> str:
    value = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return value
