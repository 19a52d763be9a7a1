"""What becomes of each field of OpenAI's and vLLM's requests that the models in `params` do not read.

A field that would change the answer is refused by its name, unless its value asks for nothing: answering
otherwise than asked would be worse. A field that cannot change the answer is ignored, and so is one that
neither API has. Sources: the OpenAI API reference (chat/create, completions/create) and vLLM's protocol.py,
both of 2026.
"""

from collections.abc import Mapping
from typing import Any

# The values beside null that ask for nothing: mostly the API's default.
Neutral = tuple[Any, ...]

_OFF: Neutral = (False,)
_EMPTY: Neutral = ([], {}, "")

REFUSED: Mapping[str, Neutral] = {
    # OpenAI
    "logit_bias": ({},),
    "moderation": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": _OFF,
    # vLLM: what is drawn
    "allowed_token_ids": (),
    "bad_words": ([],),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (),
    "use_beam_search": _OFF,
    "vllm_xargs": ({},),
    "watermarking": _OFF,
    # vLLM: structured outputs, under the names of several years
    "guided_choice": _EMPTY,
    "guided_grammar": _EMPTY,
    "guided_json": (),
    "guided_regex": _EMPTY,
    "structural_tag": _EMPTY,
    "structured_outputs": (),
    # vLLM: what is returned
    "logprob_token_ids": ([],),
    "prompt_logprobs": (),
    "return_token_ids": _OFF,
    "return_token_offsets": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "routed_experts_prompt_start": (0,),
    # vLLM: how it is computed
    "ec_transfer_params": ({},),
    "kv_transfer_params": ({},),
    "priority": (0,),
}
REFUSED_IN_COMPLETIONS: Mapping[str, Neutral] = {
    "echo": _OFF,
    "prompt_embeds": (),
    "suffix": ("",),
}
REFUSED_IN_CHATS: Mapping[str, Neutral] = {
    "audio": (),
    "chat_template": (),
    "continue_final_message": _OFF,
    "documents": ([],),
    "echo": _OFF,
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "return_prompt_text": _OFF,
    "tool_choice": ("none", "auto"),  # without tools, both ask for text
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
REFUSED_IN_MESSAGES: Mapping[str, Neutral] = {
    "audio": (),
    "function_call": ({},),
    "tool_calls": ([],),
}
REFUSED_IN_STREAM_OPTIONS: Mapping[str, Neutral] = {
    "continuous_usage_stats": _OFF,
    "include_obfuscation": _OFF,
}
REFUSED_IN_TOKENIZE: Mapping[str, Neutral] = {
    "chat_template": (),
    "continue_final_message": _OFF,
    "return_token_strs": _OFF,
    "tools": ([],),
}


def asks(value: Any, neutral: Neutral) -> bool:
    """Whether a value of a field that is not implemented asks for something."""
    # True and 1 are equal in Python, and mean different things to a client.
    same = (isinstance(value, bool) == isinstance(other, bool) and value == other for other in neutral)
    return value is not None and not any(same)
