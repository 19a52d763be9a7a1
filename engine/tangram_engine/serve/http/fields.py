"""What becomes of each field of OpenAI's and vLLM's requests that the models in `params` do not read.

A field that would change the answer is refused by its name, unless its value asks for nothing: answering
otherwise than asked would be worse. Any other field is skipped: those of the two APIs that cannot change the
answer are listed, with the reason, in the tests. Sources: the OpenAI API reference (chat/create,
completions/create) and vLLM's protocol.py, both of 2026.
"""

from collections.abc import Mapping
from typing import Any

# The values beside null that ask for nothing: mostly the API's default.
Neutral = tuple[Any, ...]
_ALWAYS: Neutral = ()
_OFF: Neutral = (False,)
_NONE: Neutral = ([],)
_EMPTY: Neutral = ([], {}, "")


def _table(*rows: tuple[str, Neutral]) -> Mapping[str, Neutral]:
    return {name: neutral for names, neutral in rows for name in names.split()}


REFUSED = _table(
    # OpenAI
    ("moderation", _ALWAYS),
    # vLLM: what is drawn
    ("repetition_detection truncate_prompt_tokens", _ALWAYS),
    ("logits_processors", _NONE),
    ("length_penalty", (1,)),
    ("thinking_token_budget", (-1,)),
    ("use_beam_search watermarking", _OFF),
    ("vllm_xargs", ({},)),
    # vLLM: structured outputs, under their older names
    ("guided_json", _ALWAYS),
    ("guided_choice guided_grammar guided_regex structural_tag", _EMPTY),
    # vLLM: what is returned
    ("logprob_token_ids", _NONE),
    ("return_token_offsets return_tokens_as_token_ids", _OFF),
    ("routed_experts_prompt_start", (0,)),
    # vLLM: how it is computed
    ("ec_transfer_params kv_transfer_params", ({},)),
    ("priority", (0,)),
)
REFUSED_IN_COMPLETIONS = _table(("prompt_embeds", _ALWAYS), ("suffix", ("",)))
REFUSED_IN_CHATS = _table(
    ("audio chat_template web_search_options", _ALWAYS),
    ("echo return_prompt_text", _OFF),
    ("functions", _NONE),
    ("function_call", ("none", "auto")),  # without functions, both ask for text
    ("modalities", (["text"],)),
)
REFUSED_IN_MESSAGES = _table(("audio", _ALWAYS), ("function_call", ({},)))
REFUSED_IN_STREAM_OPTIONS = _table(("include_obfuscation", _OFF))
REFUSED_IN_TOKENIZE = _table(("chat_template", _ALWAYS), ("return_token_strs", _OFF))


class FieldError(ValueError):
    """A value that `field` cannot take, where its type alone does not show it."""

    def __init__(self, field: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


def unsupported(field: str, detail: str = "") -> FieldError:
    """A field whose meaning is known and not implemented."""
    message = f"{field} {detail} is not supported by this server.".replace("  ", " ")
    return FieldError(field, message, "unsupported_parameter")


def asks(value: Any, neutral: Neutral) -> bool:
    """Whether a value of a field that is not implemented asks for something."""
    # True and 1 are equal in Python, and mean different things to a client.
    same = (isinstance(value, bool) == isinstance(other, bool) and value == other for other in neutral)
    return value is not None and not any(same)
