"""A token with its log-probability and alternatives, as OpenAI's APIs for chats have it."""

from typing import Any

from tangram_engine.serve.answers.deltas import TokenLogprob

from .tokenizer import TextTools


def logprob_of_chats(tools: TextTools, entry: TokenLogprob) -> dict[str, Any]:
    """The object of one token of an answer."""
    alternatives = [_token(tools, token, logprob) for token, logprob in entry.top]
    return _token(tools, entry.token, entry.logprob) | {"top_logprobs": alternatives}


def _token(tools: TextTools, token: int, logprob: float | None) -> dict[str, Any]:
    return {"token": tools.token_text(token), "logprob": logprob, "bytes": list(tools.token_bytes(token))}
