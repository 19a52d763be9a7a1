"""The sampling parameters of a request."""

from dataclasses import dataclass

MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5  # a smaller temperature only overflows


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling parameters, with OpenAI's and vLLM's meanings.

    Logits pass through penalties, temperature, top-k, top-p (of what top-k left) and min-p, in that
    order. Temperature 0 is greedy. The repetition penalty looks at prompt and output, the other two at
    the output only. `logprobs` are those of the model itself, before any of this.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None  # None: derived from the engine's seed and the request's id
    logprobs: int | None = None  # None: off; 0: the chosen token only; at most MAX_LOGPROBS
    prompt_logprobs: int | None = None  # likewise, of the prompt's tokens
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token, what is added to its logit
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # the last token of one may not follow the others
    min_tokens: int = 0  # before which no token ends the answer
    grammar: str | None = None  # of llguidance, which the whole answer matches; None: any text

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def biased(self) -> bool:
        """Whether single tokens are favoured or excluded."""
        return bool(self.logit_bias or self.allowed_token_ids or self.min_tokens or self.bad_words)

    @property
    def penalised(self) -> bool:
        """Whether tokens that were already there count."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)
