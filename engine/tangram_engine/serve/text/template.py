"""Chat templates: Jinja from the checkpoint, in Jinja's sandbox, with what transformers gives them.

The sandbox keeps a template from reaching Python objects beyond its variables. It does not bound time or
memory: a template is compiled and rendered in the text process alone (`process.py`), under its limits.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2.debug  # noqa: F401  (otherwise imported at the first error, where no file can be opened)
from jinja2 import meta, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tangram_engine.serve.answers.formats import call_format, thinks

from .call_arguments import joins_arguments, with_arguments
from .continued_message import cut, marked
from .declared_tokens import TEMPLATE_TOKENS
from .message_content import content_format, with_content

OUTPUT_LIMIT = 8 << 20  # characters
# Names that chat_template_kwargs may not set: inputs and functions of a template, and the arguments of
# transformers' `apply_chat_template` that choose another template or result, which vLLM refuses as well.
RESERVED = frozenset(
    {"messages", "tools", "documents", *TEMPLATE_TOKENS, "raise_exception", "strftime_now", "self"}
    | {"chat_template", "tokenize", *DEFAULT_NAMESPACE}
)


# Variables of a template that decide what a request may ask for.
READ_VARIABLES = frozenset({"tools", "documents", "enable_thinking", "thinking", "reasoning_effort"})


class TemplateError(Exception):
    """The template refused the messages, is broken, or went over a limit.

    `exceeded` is true for a limit of the text process: then the process that rendered it is gone.
    """

    def __init__(self, message: str, *, exceeded: bool = False) -> None:
        super().__init__(message)
        self.exceeded = exceeded


@dataclass(frozen=True, slots=True)
class TemplateFeatures:
    """What a chat template shows of its model."""

    variables: frozenset[str] = frozenset()  # that it reads
    call_format: str | None = None  # of tool calls, see `tangram_engine.serve.answers.formats`
    thinks: bool = False  # it knows reasoning between tags


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for serving it is only its content.

    The content has a scope of its own, as in transformers: a variable that is set in it ends with it.
    """

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as a set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], content).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, as in transformers."""

    def __init__(*arguments: Any, **attributes: Any) -> None:
        # The first argument has no name, so that an attribute may be called `self`.
        values = dict(*arguments[1:], **attributes)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(arguments[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


class _TemplateDict:
    """The global `dict`, without the attributes of Python's type."""

    def __call__(self, *arguments: Any, **items: Any) -> dict[Any, Any]:
        return dict(*arguments, **items)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class ChatTemplate:
    """One compiled template. Neither compiling nor `render` is bounded in time or memory here."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.content_format = content_format(tree)
            self._joins_arguments = joins_arguments(tree)
            variables = frozenset(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(tree)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (constant expressions are evaluated here and raise anything)
            raise TemplateError(f"the chat template cannot be compiled: {str(error)[:300]}") from None
        self.features = TemplateFeatures(variables, call_format(source), thinks(source))
        self._special_tokens = special_tokens

    def render(
        self,
        messages: list[dict[str, Any]],
        options: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
        *,
        continued: bool = False,
    ) -> str:
        """The prompt for these messages. Raises TemplateError, and MemoryError at the process's limit.

        Clients choose the names in `options`: a mapping, because keywords of a call have names of their own.
        `inputs` are tools and documents, where there are any. `continued`: the answer goes on with the last
        message.
        """
        variables = {
            **options,
            **self._special_tokens,
            "messages": self._shaped(messages, continued=continued),
            "tools": None,
            "documents": None,
            **(inputs or {}),
        }
        try:
            text = self._collect(variables)
            return cut(text) if continued else text
        except (TemplateError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  (a template can raise anything: TypeError, KeyError, …)
            raise TemplateError(
                f"the chat template failed: {type(error).__name__}: {str(error)[:300]}"
            ) from None

    def _shaped(self, messages: list[dict[str, Any]], *, continued: bool) -> list[dict[str, Any]]:
        """The messages as this template takes them. Raises TemplateError."""
        try:
            shaped = with_content(messages, self.content_format)
            shaped = marked(shaped) if continued else shaped
            return [with_arguments(message, joined=self._joins_arguments) for message in shaped]
        except ValueError as error:
            raise TemplateError(str(error)) from None

    def _collect(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > OUTPUT_LIMIT:
                raise TemplateError(f"the chat template writes more than {OUTPUT_LIMIT} characters")
            pieces.append(piece)
        return "".join(pieces)


def _environment() -> ImmutableSandboxedEnvironment:
    """The same settings, filters and globals as in transformers: templates are written for these."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _TemplateNamespace
    environment.globals["dict"] = _TemplateDict()
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML escapes, unlike Jinja's. Templates pass the options by position, too."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message)[:500])


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)  # local time without a zone: %Z is empty


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no attribute {name[:100]!r}: it begins with an underscore")
