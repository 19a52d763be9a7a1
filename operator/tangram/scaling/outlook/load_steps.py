"""The load that replicas are ordered for, in steps of a tenth: replicas of other shapes are counted by it.

A rate becomes the next higher step. Lengths and the correction keep their step until they are a whole step
away from it. So chance moves no replica to another shape, and a steady load is no news.
"""

import math

from tangram.fleet import ProvisionedLoad
from tangram.scaling.outlook.mixture import Mixture
from tangram.scaling.outlook.tenth_steps import STEP, nearest_step

_TOLERANCE = 0.05  # of a step: a rate that was recorded with three digits is of the same step


def rate_step(rate: float) -> int:
    """Return the number of the lowest step that is not below `rate`, which is above 0."""
    return math.ceil(math.log(rate, STEP) - _TOLERANCE)


def provisioned_load(
    before: ProvisionedLoad | None, step: int, mixture: Mixture, trusted_share: float
) -> ProvisionedLoad:
    """Return the load of a step of the rate, in steps of the others beside those of `before`.

    Below 1 the correction holds for other shapes, too: it is for loads and lengths that vary within minutes.
    Above 1 it is an error of the prediction for this shape alone, which may be of any size.
    """
    share = min(trusted_share, 1.0)
    if before is None:
        return ProvisionedLoad(float(STEP**step), *mixture.rounded, nearest_step(share))
    rate = before.requests_per_second
    return ProvisionedLoad(
        rate if rate_step(rate) == step else float(STEP**step),
        _kept(before.prompt_tokens, mixture.prompt_tokens),
        _kept(before.answer_tokens, mixture.answer_tokens),
        _kept(before.trusted_share, share),
    )


def _kept(before: float, number: float) -> float:
    """Return `before` while `number` is less than a step away, else the step next to it."""
    number = max(number, 1e-9)
    return before if abs(math.log(number / before, STEP)) < 1 else nearest_step(number)
