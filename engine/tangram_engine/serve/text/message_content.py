"""The shape in which a chat template reads the content of a message: one string, or a list of parts.

Most templates write `message.content` as it is, and print Python's list for a list. Others iterate over the
parts and iterate over the characters of a string. The syntax tree of a template says which kind it is. vLLM
decides in the same way (`chat_template_content_format: auto`), except for templates that take both.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from jinja2 import nodes

_CONTENT = "content"
# Filters whose result has the same elements, or some of them.
_SAME_ELEMENTS = frozenset(
    {"d", "default", "list", "reject", "rejectattr", "reverse", "select", "selectattr"}
)
_READS_ATTRIBUTES = frozenset({"groupby", "map", "rejectattr", "selectattr"})
_PART_FIELDS = frozenset({"text", "type"})


class ContentFormat(Enum):
    """What `message.content` is for a template."""

    STRING = "string"  # a list of parts is joined by line breaks
    PARTS = "parts"  # a string is one part
    EITHER = "either"  # as the client sent it: the template asks `is string`


def content_format(template: nodes.Template) -> ContentFormat:
    """What a template expects, judged by every expression in it that may be the content of a message."""
    found = list(descendants(template))
    contents = _Contents(found)
    if not any(_reads_parts(node, contents) for node in found):
        return ContentFormat.STRING
    tests = (node for node in found if isinstance(node, nodes.Test) and node.name == "string")
    return ContentFormat.EITHER if any(contents.holds(test.node) for test in tests) else ContentFormat.PARTS


def with_content(messages: list[dict[str, Any]], form: ContentFormat) -> list[dict[str, Any]]:
    """The messages with their content in this format; each content is a string or a list of text parts."""
    return [{**message, _CONTENT: _shaped(message.get(_CONTENT, ""), form)} for message in messages]


def _shaped(content: str | list[dict[str, str]], form: ContentFormat) -> str | list[dict[str, str]]:
    if form is ContentFormat.STRING and not isinstance(content, str):
        return "\n".join(part["text"] for part in content)
    if form is ContentFormat.PARTS and isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


class _Contents:
    """The variables of a template that may hold a message's content, whatever their scope."""

    def __init__(self, found: list[nodes.Node]) -> None:
        self._names: set[str] = set()
        self._attributes = {_CONTENT}  # of messages, and of namespaces
        macros = {node.name: node for node in found if isinstance(node, nodes.Macro)}
        known = -1
        while known < self._count():  # until a round finds nothing new
            known = self._count()
            for node in found:
                if isinstance(node, nodes.Assign):
                    self._assign(node)
                elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
                    self._pass(node, macros.get(node.node.name))

    def holds(self, node: nodes.Node | None) -> bool:
        """Whether an expression may be the content of a message, or some of its parts."""
        held = False
        match node:
            case nodes.Name(name=name):
                held = name in self._names
            case nodes.Getattr(attr=key) | nodes.Getitem(arg=nodes.Const(value=str(key))):
                held = key in self._attributes
            case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value=str(key)), *_]):
                held = key == _CONTENT
            case nodes.Getitem(arg=nodes.Slice()):
                held = self.holds(node.node)
            case nodes.Filter(name=name):
                held = name in _SAME_ELEMENTS and self.holds(node.node)
            case nodes.CondExpr(expr1=one, expr2=other):
                held = self.holds(one) or self.holds(other)
            case nodes.Or(left=one, right=other) | nodes.And(left=one, right=other):
                held = self.holds(one) or self.holds(other)
        return held

    def _count(self) -> int:
        return len(self._names) + len(self._attributes)

    def _assign(self, node: nodes.Assign) -> None:
        if not self.holds(node.node):
            return
        if isinstance(node.target, nodes.Name):
            self._names.add(node.target.name)
        elif isinstance(node.target, nodes.NSRef):
            self._attributes.add(node.target.attr)

    def _pass(self, call: nodes.Call, macro: nodes.Macro | None) -> None:
        """The parameters of a macro hold what the call gives them."""
        if macro is None:
            return
        by_position = zip((parameter.name for parameter in macro.args), call.args, strict=False)
        by_name = ((argument.key, argument.value) for argument in call.kwargs)
        self._names.update(name for name, value in (*by_position, *by_name) if self.holds(value))


def _reads_parts(node: nodes.Node, contents: _Contents) -> bool:
    """Whether a node reads the content as a list of parts."""
    match node:
        case nodes.For():
            return contents.holds(node.iter)
        case nodes.Filter(name=name):
            return name in _READS_ATTRIBUTES and contents.holds(node.node)
        case nodes.Getattr(node=part, attr=key) | nodes.Getitem(node=part, arg=nodes.Const(value=key)):
            return key in _PART_FIELDS and _is_element(part, contents)
    return False


def _is_element(node: nodes.Node, contents: _Contents) -> bool:
    match node:
        case nodes.Getitem(arg=nodes.Const(value=int())) | nodes.Filter(name="first" | "last"):
            return contents.holds(node.node)
        case nodes.Getitem(arg=nodes.Neg(node=nodes.Const(value=int()))):
            return contents.holds(node.node)
    return False


def descendants(template: nodes.Template) -> Iterator[nodes.Node]:
    """Every node, without recursion, which a deep template could exhaust."""
    waiting: list[nodes.Node] = [template]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.iter_child_nodes())
