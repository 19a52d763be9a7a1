"""Chat templates: Jinja from the checkpoint, in Jinja's sandbox.

The sandbox keeps a template from reaching Python objects beyond its variables. It does not bound time or
memory: a template is compiled and rendered in the text process alone (`process.py`), under its limits.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2.debug  # noqa: F401  (otherwise imported at the first error, where no file can be opened)
from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_LIMIT = 8 << 20  # characters
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
# Names that chat_template_kwargs may not set: inputs and functions of a template, and the arguments of
# transformers' `apply_chat_template` that choose another template or result, which vLLM refuses as well.
RESERVED = frozenset(
    {"messages", "tools", *SPECIAL_TOKENS, "raise_exception", "strftime_now", "self", *DEFAULT_NAMESPACE}
    | {"chat_template", "tokenize"}
)


class TemplateError(Exception):
    """The template refused the messages, is broken, or went over a limit.

    `exceeded` is true for a limit of the text process: then the process that rendered it is gone.
    """

    def __init__(self, message: str, *, exceeded: bool = False) -> None:
        super().__init__(message)
        self.exceeded = exceeded


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for serving it is only its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as a set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. Neither compiling nor `render` is bounded in time or memory here."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (constant expressions are evaluated here and raise anything)
            raise TemplateError(f"the chat template cannot be compiled: {str(error)[:300]}") from None
        self._special_tokens = special_tokens

    def render(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt for these messages. Raises TemplateError, and MemoryError at the process's limit.

        Clients choose the names in `options`: a mapping, because keywords of a call have names of their own.
        """
        variables = {**options, **self._special_tokens, "messages": messages, "tools": None}
        try:
            return self._collect(variables)
        except (TemplateError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  (a template can raise anything: TypeError, KeyError, …)
            raise TemplateError(
                f"the chat template failed: {type(error).__name__}: {str(error)[:300]}"
            ) from None

    def _collect(self, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            size += len(piece)
            if size > OUTPUT_LIMIT:
                raise TemplateError(f"the chat template writes more than {OUTPUT_LIMIT} characters")
            pieces.append(piece)
        return "".join(pieces)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers does it: without HTML escapes."""
    del options
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message)[:500])


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(str(form)[:100])
