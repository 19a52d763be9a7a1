"""How far predicted times are off, learned from observed ones."""

from dataclasses import dataclass

HALF_LIFE_S = 60.0  # of an observation; a prediction that nothing contradicts is believed again
PRIOR_S = 1.0  # predicted seconds for which a ratio of 1 counts
LOWEST, HIGHEST = 0.2, 5.0


@dataclass(slots=True, eq=False)
class RatioEstimate:
    """Observed over predicted seconds: a ratio of sums, of which old ones fade.

    A ratio of sums weighs requests by their length, and is right where several prompts share a step: their
    first tokens come together, the first with all of the time and the others with none.
    """

    value: float = 1.0
    observed_s: float = 0.0
    predicted_s: float = 0.0
    at: float = 0.0

    def observe(self, observed_s: float, predicted_s: float, now: float) -> None:
        """Add one observation; negative times count as none."""
        kept = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        self.observed_s = self.observed_s * kept + max(0.0, observed_s)
        self.predicted_s = self.predicted_s * kept + predicted_s
        self.at = now
        ratio = (self.observed_s + PRIOR_S) / (self.predicted_s + PRIOR_S)
        self.value = min(HIGHEST, max(LOWEST, ratio))
