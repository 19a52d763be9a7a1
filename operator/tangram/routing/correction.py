"""How far predicted times are off, learned from observed ones."""

from dataclasses import dataclass

HALF_LIFE_S = 60.0  # of an observation
PRIOR_S = 0.3  # predicted seconds for which a ratio of 1 counts
LOWEST, HIGHEST = 0.2, 5.0
_AGE_S = 1.0  # of a ratio that is not computed anew


@dataclass(slots=True, eq=False)
class RatioEstimate:
    """Observed over predicted seconds: a ratio of sums, of which old ones fade.

    A ratio of sums weighs requests by their length, and is right where several prompts share a step: their
    first tokens come together, the first with all of the time and the others with none.
    """

    observed_s: float = 0.0
    predicted_s: float = 0.0
    summed_at: float = 0.0
    _value: float = 1.0
    _valued_at: float = 0.0

    def observe(self, observed_s: float, predicted_s: float, now: float) -> None:
        """Add one observation; negative times count as none."""
        kept = 0.5 ** (max(0.0, now - self.summed_at) / HALF_LIFE_S)
        self.observed_s = self.observed_s * kept + max(0.0, observed_s)
        self.predicted_s = self.predicted_s * kept + predicted_s
        self.summed_at = now
        self._evaluate(now)

    def at(self, now: float) -> float:
        """Return the ratio. Without observations it returns to 1: a replica that was slow is tried again."""
        if now - self._valued_at > _AGE_S:
            self._evaluate(now)
        return self._value

    def _evaluate(self, now: float) -> None:
        kept = 0.5 ** (max(0.0, now - self.summed_at) / HALF_LIFE_S)
        ratio = (self.observed_s * kept + PRIOR_S) / (self.predicted_s * kept + PRIOR_S)
        self._value, self._valued_at = min(HIGHEST, max(LOWEST, ratio)), now
