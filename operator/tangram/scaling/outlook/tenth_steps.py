"""Steps of a tenth, for numbers whose small changes must not change anything else."""

import math

STEP = 1.1


def nearest_step(number: float) -> float:
    """Return the step next to `number`, which is above 0: of one that was recorded, exactly what it was."""
    return float(STEP ** round(math.log(number, STEP)))
