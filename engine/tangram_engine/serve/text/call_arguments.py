"""The shape in which a chat template reads the arguments of past calls: an object, or JSON in a string.

OpenAI's API has a string. Most templates write `arguments | tojson`, and transformers' documentation asks for
an object. Those of DeepSeek join the arguments to other text with `+`, which fails on an object.
"""

import json
from collections.abc import Callable
from typing import Any

from jinja2 import nodes

from .message_content import descendants

_ARGUMENTS = "arguments"


def joins_arguments(template: nodes.Template) -> bool:
    """Whether a template takes arguments as a string alone."""
    found = list(descendants(template))
    asks = any(
        isinstance(node, nodes.Test) and node.name == "string" and _is_arguments(node.node) for node in found
    )
    joined = (node for node in found if isinstance(node, nodes.Add))
    return not asks and any(_is_arguments(node.left) or _is_arguments(node.right) for node in joined)


def _is_arguments(node: nodes.Node) -> bool:
    match node:
        case nodes.Getattr(attr=key) | nodes.Getitem(arg=nodes.Const(value=str(key))):
            return bool(key == _ARGUMENTS)
    return False


def with_arguments(message: dict[str, Any], *, joined: bool) -> dict[str, Any]:
    """The message with the arguments of its calls as the template takes them. Raises ValueError."""
    if not message.get("tool_calls"):
        return message
    shaped: Callable[[Any], Any] = _text if joined else _object
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        if _ARGUMENTS in function:
            function = function | {_ARGUMENTS: shaped(function[_ARGUMENTS])}
        calls.append(call | {"function": function})
    return message | {"tool_calls": calls}


def _text(arguments: Any) -> str:
    _object(arguments)
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object(arguments: Any) -> dict[str, Any]:
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, dict):
        return value
    raise ValueError("the arguments of a tool call are no JSON object")
