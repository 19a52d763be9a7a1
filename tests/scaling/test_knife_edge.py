"""A constant load at the edge of what replicas carry: their number settles, and does not saw."""

import random

import pytest

from tangram.scaling import ScalingMemory
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import CapacityCorrection
from tests.scaling.test_capacity_correction import SMOOTH
from tests.scaling.test_feed_forward import decided, sample

pytestmark = pytest.mark.slow

HOUR_S, ROUND_S, START_S = 3600, 15, 60
NOISE = 0.02  # of the load of a minute


def changes(load, real, *, hours, start=3):
    """Return the times at which the number of replicas changes that carry `load` requests/s as `real` does,
    where the prediction is SMOOTH.
    """
    chance = random.Random(1)
    memory, ready, ordered, times, rates = ScalingMemory(replicas=start), start, [], [], []
    for now in range(0, hours * HOUR_S, ROUND_S):
        ready = next((count for due, count in reversed(ordered) if due <= now), ready)
        rate = load * (1 + chance.gauss(0, NOISE))
        if now % 60 == 0:
            rates.append(rate)
        reading = sample(rate, attainment=1 - real.missed_share(rate / ready))
        known = LoadOutlook(LoadHistory(now - now % 60.0, tuple(rates[-240:])), SMOOTH, float(START_S))
        decision = decided(memory, reading, ready=ready, now=float(now), known=known)
        memory = decision.memory
        if decision.replicas != decision.previous:
            times.append(now)
            ordered.append((now + (START_S if decision.replicas > ready else 0), decision.replicas))
    return times


# A lower budget for removals fails these four; the others are run in `make campaign`.
FEW = [(1.0, 0.7), (1.0, 1.0), (1.0, 1.3), (1.05, 0.7)]
CASES = [
    pytest.param(load, carried, marks=() if (load, carried) in FEW else pytest.mark.campaign)
    for load in (0.9, 1.0, 1.05)
    for carried in (0.7, 1.0, 1.3)
]


@pytest.mark.parametrize(("load", "carried"), CASES)
def test_replicas_of_a_constant_load_settle_at_the_edge_of_what_they_carry(load, carried):
    real = SMOOTH.corrected(CapacityCorrection(carried))

    times = changes(3 * load * real.rate_at(90), real, hours=5)

    assert len(times) <= 3
    assert len([now for now in times if now > HOUR_S]) <= 2
