"""What one engine processes in one step and holds at one time."""

from dataclasses import dataclass

from tangram.fleet import DEFAULT_RUNNING_REQUESTS


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine may do in one step and hold at one time."""

    # Requests that decode or prefill at the same time (--max-num-seqs).
    max_running: int = DEFAULT_RUNNING_REQUESTS
    max_batched_tokens: int = 8192  # tokens of one step, prompts and decodes together
    kv_tokens: int | None = None  # room of the KV cache in tokens; None: never the limit
    block_tokens: int = 16  # tokens of one KV block

    @property
    def kv_blocks(self) -> int | None:
        """Blocks of the KV cache, None if it is never the limit."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens

    def slots(self, tokens: float) -> float:
        """Requests that run at the same time if each holds `tokens` tokens on average; at least 0."""
        most = float(min(self.max_running, self.max_batched_tokens))
        return most if self.kv_tokens is None else min(most, self.kv_tokens / max(tokens, 1.0))
