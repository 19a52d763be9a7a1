"""Grammars of answers, as llguidance reads them, from what clients ask for.

A client's schema or expression can make compiling arbitrarily slow. It is built and compiled in the text
process (`process.py`), under its limits, before the engine compiles it again with its own vocabulary.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from tangram_engine.serve.answers.reasoning import CLOSE, OPEN

# In the grammar, of which the client knows a part at most: the place of an error, and the lines around it.
_PLACE = re.compile(r"\b(?:at )?\d+\(\d+\): | \d+ \| (?:start|thought|gap|body|call\d*|arguments\d*)\b.*")
_NO_TEXT = "NoExtensionBias"  # llguidance's word for a state that nothing can follow
_MESSAGE_LIMIT = 300  # characters
# As `json.dumps` writes: where a schema leaves blanks free, a model may write them without end.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TRIED_BYTES, _BYTES = 24, 256
_MOST_CALLS = 16  # of one answer
# "Omitting `parameters` defines a function with an empty parameter list" (OpenAI's API reference).
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# Of calls that have to be made: what stands before the name, before and behind the arguments, between calls.
_CALL_TEXTS = {
    "hermes": ('<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n"),
    "llama3_json": ('{"name": ', ', "parameters": ', "}", "; "),
}
FORCED_FORMATS = frozenset(_CALL_TEXTS)


class GrammarError(Exception):
    """What a client asks for is no grammar, or one that is not supported; the message names what is wrong."""


def build(kind: str, value: Any, reasoning: str) -> str:
    """A grammar that compiles. Raises GrammarError.

    `kind` and `value`: "json" and a schema as JSON, "regex", "choice" and texts, "grammar", or "calls" with
    their format, the schemas of the tools by name, and whether there may be several. `reasoning` comes first:
    "none", "optional" between tags, or "begun" by the prompt.
    """
    from llguidance import LLMatcher  # noqa: PLC0415  (the API process needs the names of this module alone)

    rules = _RULES[kind](value)
    grammar = "\n".join([*_REASONING[reasoning], *rules])
    if error := LLMatcher.validate_grammar(grammar):
        raise GrammarError(_said(error))
    _try("\n".join([*_REASONING["none"], *rules]))
    if kind == "calls":  # arguments may stand behind more bytes than are tried
        arguments = " | ".join(f"arguments{number}" for number in range(len(value["tools"])))
        _try("\n".join([f"start: {arguments}", *rules]))
    return grammar


def _try(grammar: str) -> None:
    """Follow a grammar for some bytes. Raises GrammarError where it is over llguidance's limits of a step.

    Beyond these bytes, such a grammar ends its answer: see `tangram_engine.sample.grammar`.
    """
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer  # noqa: PLC0415

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    for _ in range(_TRIED_BYTES):
        bits = int.from_bytes(matcher.compute_bitmask()[: _BYTES // 8], "little")
        if matcher.is_error() or not bits:
            break
        matcher.consume_token((bits & -bits).bit_length() - 1)
    if matcher.is_error():
        raise GrammarError(_limit(matcher.get_error()))


def _limit(error: str) -> str:
    """Why a grammar cannot be followed."""
    if _NO_TEXT in error:
        return "no text is allowed by it"
    if "special token" in error:
        return _said(error).split(";")[0]  # those of the model are others than llguidance lists here
    return "it is too complex" if error.startswith("panic") else f"it is too complex: {_said(error)}"


def _said(error: str) -> str:
    """An error of llguidance as far as it is about what the client wrote."""
    about = error.partition("<backtrace>")[0].removesuffix("<non-verbose/>")
    return _PLACE.sub("", " ".join(about.split()))[:_MESSAGE_LIMIT]


_THOUGHT = [f'thought[suffix="{CLOSE}"]: /(.|\\n)*/', "gap: /\\n{0,2}/"]
_REASONING = {
    "none": ["start: body"],
    "optional": [f'start: ("{OPEN}" thought gap)? body', *_THOUGHT],
    "begun": ["start: thought gap body", *_THOUGHT],
}


def _json(schema: str) -> list[str]:
    return [f"body: {_json_rule(_schema(schema))}"]


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}") from None


def _json_rule(schema: Any) -> str:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("the schema is no JSON object")
    return "%json " + json.dumps(schema | {"x-guidance": _JSON_OPTIONS})


def _regex(expression: str) -> list[str]:
    from llguidance import LLMatcher  # noqa: PLC0415

    lark = json.loads(LLMatcher.grammar_from_regex(expression))["grammars"][0]["lark_grammar"]
    return ["body: " + lark.removeprefix("start: ")]


def _choice(texts: list[str]) -> list[str]:
    return ["body: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)]


def _grammar(text: str) -> list[str]:
    """Lark, or GBNF, which vLLM's clients write."""
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415

    try:
        lark = any_to_lark(text)
    except Exception as error:  # noqa: BLE001  (the converter raises anything on what it does not know)
        raise GrammarError(f"the grammar cannot be read: {str(error)[:_MESSAGE_LIMIT]}") from None
    return ["body: %lark {", lark.replace("%llguidance {}", ""), "}"]


def _calls(value: dict[str, Any]) -> list[str]:
    before_name, before_arguments, behind, between = _CALL_TEXTS[value["format"]]
    more = f" ({json.dumps(between)} call){{0,{_MOST_CALLS - 1}}}" if value["parallel"] else ""
    rules = [f"body: call{more}", "call: " + " | ".join(f"call{n}" for n in range(len(value["tools"])))]
    for number, (name, schema) in enumerate(value["tools"].items()):
        opening = json.dumps(before_name + json.dumps(name) + before_arguments)
        rules += [
            f"call{number}: {opening} arguments{number} {json.dumps(behind)}",
            f"arguments{number}: {_json_rule(_NO_PARAMETERS if schema is None else schema)}",
        ]
    return rules


_RULES: dict[str, Callable[[Any], list[str]]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "calls": _calls,
}
