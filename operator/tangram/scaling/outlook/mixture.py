"""The mixture of requests that replicas serve: mean tokens of prompts and of answers."""

import math
from typing import NamedTuple

from tangram.scaling.outlook.tenth_steps import nearest_step

LEAST_AVERAGED_S, AVERAGED_S = 300.0, 3600.0  # time constants of the mean of mixtures
STATED_S = 1200.0  # as long as this counts the mixture of the spec


class Mixture(NamedTuple):
    """Mean tokens."""

    prompt_tokens: float
    answer_tokens: float

    @property
    def rounded(self) -> "Mixture":
        """The next mixture among those that a capacity is computed for: neighbours share one."""
        return Mixture(*(nearest_step(max(tokens, 1.0)) for tokens in self))

    def averaged(self, measured: "Mixture", seconds: float, age_s: float) -> "Mixture":
        """Return the mean of `age_s` seconds, of an hour at most, after `seconds` of another mixture."""
        share = 1 - math.exp(-max(seconds, 0.0) / min(max(age_s, LEAST_AVERAGED_S), AVERAGED_S))
        return Mixture(*(a + share * (b - a) for a, b in zip(self, measured, strict=True)))
