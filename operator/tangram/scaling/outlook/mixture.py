"""The mixture of requests that replicas serve: mean tokens of prompts and of answers."""

import math
from typing import NamedTuple

_STEP = 1.1  # means are rounded to powers of it: neighbours share a computed capacity


class Mixture(NamedTuple):
    """Mean tokens, rounded."""

    prompt_tokens: float
    answer_tokens: float


def rounded(prompt_tokens: float, answer_tokens: float) -> Mixture:
    """Return the mixture of these means."""
    return Mixture(_rounded(prompt_tokens), _rounded(answer_tokens))


def _rounded(tokens: float) -> float:
    return float(_STEP ** round(math.log(max(tokens, 1.0), _STEP)))
