"""The queue of one replica as WVA models it: state-dependent M/M/1 with a finite queue.

Source: pkg/analyzer/queueanalyzer.go of llm-d/llm-d-workload-variant-autoscaler. A step with n requests takes
T(n) = a + n * (b * (I + O) / (O + 1) + g * (I + O/2)); a prompt T(n) + (b + g) * I; a token
T(n) + b + g * (I + O/2). So n requests leave at n / (prompt + O * token) per second. A prompt is computed at
the mean number of requests in service, and a token takes an O-th of what is left of the mean time in service.
"""

from collections.abc import Callable
from dataclasses import dataclass

_MOST_UTILISATION = 0.999
_BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class StepCoefficients:
    """The parameters of a step, which are fitted."""

    base_s: float  # a
    prompt_token_s: float  # b
    context_token_s: float  # g

    def values(self) -> tuple[float, float, float]:
        """Return them in the order of the fields."""
        return self.base_s, self.prompt_token_s, self.context_token_s


@dataclass(frozen=True, slots=True)
class QueueingAnalyzer:
    """Latency of one replica at a rate of requests of a mean length."""

    coefficients: StepCoefficients
    max_running: int
    most_waiting: int
    input_tokens: float
    output_tokens: float

    def latency(self, rate: float) -> tuple[float, float]:
        """Return the mean TTFT (wait and prompt) and the mean time between tokens, in seconds."""
        rate = min(rate, self.most_rate)
        probability, in_service, mass = 1.0, 0.0, 1.0
        for running in range(1, self.max_running + 1):
            probability *= rate / self._service_rate(running)
            if probability > 1e200:  # only ratios count
                in_service, mass, probability = in_service / 1e200, mass / 1e200, probability / 1e200
            in_service += running * probability
            mass += probability
        ratio = rate / self._service_rate(self.max_running)
        places = self.most_waiting
        tail = ratio**places
        queued_mass = probability * ratio * (1 - tail) / (1 - ratio)
        queued = probability * ratio * (1 - (places + 1) * tail + places * tail * ratio) / (1 - ratio) ** 2
        mass += queued_mass
        in_service += self.max_running * queued_mass
        served = rate * (1 - probability * tail / mass)
        prompt_s = self._prompt_s(in_service / mass)
        token_s = (in_service / mass / served - prompt_s) / self.output_tokens
        return queued / mass / served + prompt_s, token_s

    @property
    def most_rate(self) -> float:
        """Requests per second above which the model has no answer: nearly those with every slot taken."""
        return _MOST_UTILISATION * self._service_rate(self.max_running)

    def highest_rate(self, ttft_s: float, itl_s: float) -> float:
        """Return the highest rate at which both means are within these limits; 0 if there is none.

        The first token comes with the first step after its prompt.
        """

        def is_met(rate: float) -> bool:
            ttft, itl = self.latency(rate)
            return ttft + itl <= ttft_s and itl <= itl_s

        low, high = 0.0, self.most_rate
        if is_met(high):
            return high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if is_met(middle) else (low, middle)
        return low

    def _step_s(self, running: float) -> float:
        prompt, answer = self.input_tokens, self.output_tokens
        a, b, g = self.coefficients.values()
        return a + running * (b * (prompt + answer) / (answer + 1) + g * (prompt + answer / 2))

    def _prompt_s(self, running: float) -> float:
        _, b, g = self.coefficients.values()
        return self._step_s(running) + (b + g) * self.input_tokens

    def _token_s(self, running: float) -> float:
        _, b, g = self.coefficients.values()
        return self._step_s(running) + b + g * (self.input_tokens + self.output_tokens / 2)

    def _service_rate(self, running: float) -> float:
        return running / (self._prompt_s(running) + self.output_tokens * self._token_s(running))


def derivatives(
    function: Callable[[StepCoefficients], tuple[float, float]], at: StepCoefficients
) -> list[list[float]]:
    """Return the derivatives of both results with respect to each coefficient, by differences."""
    columns = []
    values = at.values()
    center = function(at)
    for place, value in enumerate(values):
        step = 0.01 * value
        moved = function(StepCoefficients(*(v + step if i == place else v for i, v in enumerate(values))))
        columns.append([(after - before) / step for after, before in zip(moved, center, strict=True)])
    return [list(row) for row in zip(*columns, strict=True)]
