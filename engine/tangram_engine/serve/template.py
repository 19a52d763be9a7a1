"""Chat templates: Jinja from strangers, in a sandbox, with limits on time, loops, sizes and output.

A template comes with the weights, never with a request. It is rendered in a worker thread; a trace function,
which Python calls at every line of the compiled template, ends it when its time is up.
"""

import datetime
import json
import math
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TIME_LIMIT_S = 1.0
OUTPUT_LIMIT = 8 << 20  # characters
_SIZE_LIMIT = 1 << 20  # of a value that an operator of the template makes
# Methods and filters that turn a short text into one of any size.
_INFLATING = frozenset(
    {"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map", "translate"}
)
_REMOVED_FILTERS = ("batch", "center", "format", "indent", "pprint", "slice", "urlize", "wordwrap", "xmlattr")
_MAX_NUMBER = 1 << 64


class TemplateError(Exception):
    """The template refused the messages, is broken, or went over a limit."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for serving it is only its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as a set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _INFLATING and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        name = getattr(value, "__name__", "")
        if name in {"format", "format_map"} and isinstance(getattr(value, "__self__", None), str):
            raise TemplateError(f"str.{name} is not available to chat templates")
        return None

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse what would make a huge value at once, inside one call that no trace can interrupt."""
    lengths = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    numbers = [abs(value) for value in (left, right) if isinstance(value, int)]
    if operator == "**":
        too_big = any(number > 1 << 16 for number in numbers[:1]) or any(
            number > 64 for number in numbers[1:]
        )
    elif operator == "*":
        too_big = math.prod(numbers) * max(lengths, default=1) > (_SIZE_LIMIT if lengths else _MAX_NUMBER)
    elif operator == "%":
        too_big = isinstance(left, str)  # "%1000000000d" % 1
    else:
        too_big = sum(lengths) > OUTPUT_LIMIT
    if too_big:
        raise TemplateError(f"the chat template's operator {operator} would make too large a value")


class ChatTemplate:
    """One compiled template. `render` may be called from several threads."""

    def __init__(
        self, source: str, special_tokens: dict[str, str], *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        for name in _REMOVED_FILTERS:
            environment.filters[name] = _refusing(name)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.globals.pop("lipsum", None)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from None
        self._special_tokens = special_tokens
        self._time_limit_s = time_limit_s

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The prompt for these messages. Raises TemplateError; takes about the time limit at most."""
        variables = {**variables, **self._special_tokens, "messages": messages, "tools": None}
        return _within(self._time_limit_s, lambda: self._collect(variables))

    def _collect(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > OUTPUT_LIMIT:
                raise TemplateError(f"the chat template writes more than {OUTPUT_LIMIT} characters")
            pieces.append(piece)
        return "".join(pieces)


def _within(limit_s: float, work: Callable[[], str]) -> str:
    """Run `work` in this thread; end it from inside, at its next line, once the time is up."""
    deadline = time.monotonic() + limit_s

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > deadline:
            raise TemplateError(f"the chat template takes longer than {limit_s:g} s")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return work()
    except TemplateError:
        raise
    except Exception as error:  # noqa: BLE001  (a template can raise anything: TypeError, KeyError, …)
        raise TemplateError(f"the chat template failed: {type(error).__name__}: {str(error)[:300]}") from None
    finally:
        sys.settrace(before)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers does it: without HTML escapes."""
    if indent is not None and not 0 <= indent <= 16:
        raise TemplateError("tojson: indent must be from 0 to 16")
    del options
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Fails when it is called, not when the template is compiled: it may stand in a branch for tools."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise TemplateError(f"the filter {name} is not available to chat templates")

    return refuse


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message)[:500])


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(str(form)[:100])
