"""Means of continuous batching: step, wait and rate for a number of decoding requests.

An answer takes `gaps` steps, so of d decoding requests d / gaps end per step and as many prompts join. A
prompt shares the token budget of its step with the decodes and with other prompts; what does not fit waits.
Nothing here fluctuates: `queueing` adds the effect of random arrivals.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.steps.clock import Clock


@dataclass(frozen=True)
class UniformLoad:
    """Requests of one kind on one replica, as functions of how many decode (not always a whole number)."""

    clock: Clock  # of the model, at the tokens that a decoding request attends to, mean over its steps
    limits: EngineLimits
    input_tokens: float
    output_tokens: float
    prompt_context: float  # tokens that a prompt token attends to, mean over prompt tokens
    stages: int = 1  # of the pipeline: while a prompt passes one of them, other batches pass the others

    @cached_property
    def gaps(self) -> float:
        """Steps from the first token to the last."""
        return max(1.0, self.output_tokens - 1)

    def budget(self, decoding: float) -> float:
        """Prompt tokens that a step has room for."""
        return max(1.0, self.limits.max_batched_tokens - decoding)

    def prompts(self, decoding: float) -> float:
        """Prompts that join per step."""
        return decoding / self.gaps

    def mixed_s(self, decoding: float, prompt_tokens: float) -> float:
        """Seconds of a step with that many prompt tokens beside the decodes."""
        return self.clock(decoding, prompt_tokens, self.prompt_context)

    def step_s(self, decoding: float) -> float:
        """Mean seconds of a step, over steps with and without prompts."""
        prompt = self.input_tokens
        budget = max(1.0, self.limits.max_batched_tokens - decoding)
        share = min(budget, decoding / self.gaps * prompt)
        whole = max(min(prompt, budget), share)
        plain = self.clock(decoding, 0.0, 0.0)
        prompt_s = self.clock(decoding, whole, self.prompt_context) - plain
        return plain + prompt_s / self.stages * share / whole

    def rate(self, decoding: float) -> float:
        """Answers per second."""
        if decoding <= 0:
            return 0.0
        return self.prompts(decoding) / self.step_s(decoding)

    def queue_steps(self, decoding: float) -> float:
        """Steps in the queue for the token budget: M/D/m after Sakasegawa (1977), m prompts to a step."""
        return _queue_steps(self.budget(decoding), self.prompts(decoding), self.input_tokens)

    def own_s(self, decoding: float, tokens: float) -> float:
        """Seconds of the steps that compute a prompt of `tokens`, and others that join them."""
        budget = self.budget(decoding)
        chunks = math.ceil(tokens / budget)
        together = tokens + self.prompts(decoding) * self.input_tokens
        chunk = min(budget, together / chunks)
        return chunks * self.clock(decoding, chunk, tokens / 2)

    def before_s(self, decoding: float, missed: float) -> float:
        """Seconds in the queue for the token budget, and of `missed` steps that had begun already."""
        return (missed + self.queue_steps(decoding)) * self.step_s(decoding)

    def decoding_of(self, running: float, missed: float) -> float:
        """How many of `running` requests decode; the others are before their first token (Little's law)."""
        low, high, prompt, gaps = 0.0, running, self.input_tokens, self.gaps
        for _ in range(24):
            middle = (low + high) / 2
            budget, prompts = self.budget(middle), middle / gaps
            before = missed + _queue_steps(budget, prompts, prompt) + math.ceil(prompt / budget)
            low, high = (middle, high) if middle + prompts * before < running else (low, middle)
        return high

    def decoding_at(self, rate: float, most: float) -> float:
        """How many decode at a rate; `most` if the rate is beyond theirs (regula falsi, Illinois)."""
        low, high = 0.0, most
        peak = self.rate(most)
        tiny = 1e-9 * peak
        if rate <= tiny:
            return 0.0
        if rate >= peak:
            return most
        below, above = -rate, peak - rate
        for _ in range(40):
            middle = max(low, high - above * (high - low) / (above - below))
            error = self.rate(middle) - rate
            if abs(error) <= 1e-6 * rate + tiny:
                return middle
            if error > 0:
                high, above, below = middle, error, below / 2
            else:
                low, below, above = middle, error, above / 2
        return high


def _queue_steps(budget: float, prompts: float, prompt: float) -> float:
    used = min(0.999, prompts * prompt / budget)
    servers = max(1.0, budget / prompt)
    service = max(1.0, prompt / budget)
    busy: float = used ** (math.sqrt(2 * (servers + 1)) - 1)
    return service * busy / (2 * servers * (1 - used))
