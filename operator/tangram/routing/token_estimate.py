"""Tokens of a prompt by its bytes: a picker has no tokenizer, and learns from `usage`."""

from dataclasses import dataclass

BYTES_PER_TOKEN = 4.0  # of English, until usage says otherwise
_PRIOR_TOKENS = 200.0  # for which the prior counts
_KEPT = 0.98  # of what was observed, with each new observation: about the last fifty count
_LEAST, _MOST = (
    0.5,
    64.0,
)  # bytes per token: a template adds tokens to few bytes; an image is bytes without text


@dataclass(slots=True, eq=False)
class TokenEstimate:
    """Bytes per token of the prompts of one model, or of one tenant."""

    observed_bytes: float = 0.0
    observed_tokens: float = 0.0

    @property
    def bytes_per_token(self) -> float:
        """Mean over what was observed."""
        prompt_bytes = self.observed_bytes + _PRIOR_TOKENS * BYTES_PER_TOKEN
        return min(_MOST, max(_LEAST, prompt_bytes / (self.observed_tokens + _PRIOR_TOKENS)))

    def tokens(self, prompt_bytes: int) -> int:
        """Return the tokens of a prompt, at least 1."""
        return max(1, round(prompt_bytes / self.bytes_per_token))

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from the `usage` of a request that has ended."""
        if prompt_bytes > 0 and prompt_tokens > 0:
            self.observed_bytes = self.observed_bytes * _KEPT + prompt_bytes
            self.observed_tokens = self.observed_tokens * _KEPT + prompt_tokens
