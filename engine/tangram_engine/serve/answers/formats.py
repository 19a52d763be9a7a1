"""Which format of tool calls a model was made for, by what its chat template contains."""

from collections.abc import Mapping

from .deepseek_calls import MARKS, DeepSeekCalls
from .harmony import CHANNEL, HarmonyAnswer
from .json_calls import HermesCalls, Llama3Calls, MistralCalls
from .parts import CallParser
from .reasoning import CLOSE
from .xml_calls import Qwen3CoderCalls

HARMONY = "harmony"  # all of its answers are in this format, whether there are tools or not
PARSERS: Mapping[str, type[CallParser]] = {
    "deepseek": DeepSeekCalls,
    HARMONY: HarmonyAnswer,
    "hermes": HermesCalls,
    "llama3_json": Llama3Calls,
    "mistral": MistralCalls,
    "qwen3_coder": Qwen3CoderCalls,
}
# Text of which a template has at least one, in the order in which they are looked for.
_MARKS = (
    (HARMONY, (CHANNEL,)),
    ("deepseek", MARKS),
    ("qwen3_coder", ("<function=",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("hermes", ("<tool_call>",)),
    ("llama3_json", ("<|python_tag|>", "Environment: ipython", '"parameters": ')),
)


# Of a format without a parser, whose templates have marks of others (DeepSeek V3.2: tags with attributes).
_NOT_PARSED = ("｜DSML｜",)


def call_format(template: str) -> str | None:
    """The name of the parser, None if the template shows no known format."""
    if any(mark in template for mark in _NOT_PARSED):
        return None
    return next((name for name, marks in _MARKS if any(mark in template for mark in marks)), None)


def thinks(template: str) -> bool:
    """Whether a template knows reasoning between tags."""
    return CLOSE in template
