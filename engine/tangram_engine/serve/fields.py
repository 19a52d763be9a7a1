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

# With the reason why the answer is the same without them.
IGNORED: Mapping[str, str] = {
    "metadata": "a label for the caller's own books",
    "prompt_cache_key": "a hint for routing",
    "prompt_cache_options": "a hint for how long prefixes stay cached",
    "prompt_cache_retention": "a hint for how long prefixes stay cached",
    "request_id": "a label; the header x-request-id names a request here",
    "safety_identifier": "a label of the caller's user",
    "session_id": "a label of the caller's conversation",
    "user": "a label of the caller's user",
    "guided_decoding_backend": "means something only with a guided field, which is refused",
    "guided_whitespace_pattern": "means something only with a guided field, which is refused",
    "truncation_side": "means something only with truncate_prompt_tokens, which is refused",
    "return_mm_kwargs": "means something only on vLLM's render endpoints",
    "spaces_between_special_tokens": "means something only to tokenizers without tokenizer.json",
    "stream_interval": "how many tokens come in one chunk; a stream may be cut anywhere",
}
IGNORED_IN_CHATS: Mapping[str, str] = {
    "media_io_kwargs": "means something only with images or audio, which are refused",
    "mm_processor_kwargs": "means something only with images or audio, which are refused",
    "parallel_tool_calls": "means something only with tools, which are refused",
    "prediction": "a guess at the answer that may make it faster",
}


def first_refused(values: Mapping[str, Any], refused: Mapping[str, Neutral]) -> str | None:
    """The first field, by name, whose value asks for something that is not implemented."""
    return next(
        (name for name in sorted(refused.keys() & values) if _asks(values[name], refused[name])), None
    )


def _asks(value: Any, neutral: Neutral) -> bool:
    # True and 1 are equal in Python, and mean different things to a client.
    same = (isinstance(value, bool) == isinstance(other, bool) and value == other for other in neutral)
    return value is not None and not any(same)
