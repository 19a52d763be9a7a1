"""A replica is trusted with the share of its predicted capacity that explains the misses that happen."""

from dataclasses import replace

import pytest

from tangram.scaling import ScalingMemory
from tangram.scaling import capacity_correction as law
from tangram.scaling.outlook.load_history import LoadHistory
from tests.scaling.test_feed_forward import CHAT, PARAMS, outlook, sample


def corrected(memory, reading, *, ready=3, queued=False, now=60.0, known=None):
    return law.corrected(
        memory, PARAMS, CHAT, known or outlook(), reading, ready=ready, lasted=3600.0, queued=queued, now=now
    )


def after(minutes, reading, memory=None, **arguments):
    memory = memory or ScalingMemory()
    for minute in range(minutes):
        memory = corrected(memory, reading, now=60.0 * (minute + 1), **arguments)
    return memory


def test_misses_at_a_load_that_should_be_carried_lower_the_share_to_what_explains_them():
    memory = after(10, sample(3.0, attainment=0.5))

    # A replica misses half at 1.05 times its rate of 2: one request a second is half of that.
    assert memory.trusted_share == pytest.approx(1 / 2.1, rel=0.02)


def test_misses_that_the_load_explains_change_nothing():
    assert after(5, sample(6.3, attainment=0.3)).trusted_share == pytest.approx(1.0, abs=0.02)


def test_a_miss_within_the_error_budget_changes_nothing():
    assert after(5, sample(3.0, attainment=0.91)).trusted_share == 1.0


def test_misses_of_an_almost_idle_replica_say_nothing_about_its_load():
    assert after(5, sample(1.0, attainment=0.5)).trusted_share == 1.0


def test_a_load_carried_beyond_the_prediction_raises_the_share_slowly():
    memory = after(1, sample(9.0, attainment=0.999))

    assert 1.0 < memory.trusted_share < 1.1
    assert after(60, sample(9.0, attainment=0.999)).trusted_share == pytest.approx(1.5, rel=0.1)


def test_a_refuted_share_is_not_reached_again_at_the_same_load():
    refuted = after(10, sample(3.0, attainment=0.5))

    later = after(600, sample(3.0, attainment=0.999), memory=replace(refuted, compared_at=None))

    assert later.trusted_share < 1.1 * refuted.trusted_share


def test_a_higher_load_that_is_carried_withdraws_the_refutation():
    refuted = after(10, sample(3.0, attainment=0.5))

    later = after(120, sample(6.0, attainment=0.999), memory=replace(refuted, compared_at=None))

    assert later.most_share is None
    assert later.trusted_share > 1.5 * refuted.trusted_share


def test_misses_while_the_queue_shrinks_say_nothing_about_the_present_load():
    memory = ScalingMemory(compared_at=0.0, queue_then=100.0)

    memory = corrected(memory, sample(3.0, attainment=0.2, waiting=50.0), queued=True)

    assert memory.trusted_share == 1.0


def test_a_lasting_queue_shows_what_a_replica_carries():
    memory = ScalingMemory(compared_at=0.0, queue_then=100.0)

    for minute in range(8):
        waiting = 200.0 + 100 * minute
        memory = corrected(memory, sample(3.0, waiting=waiting), queued=True, now=60.0 * (minute + 1))

    assert memory.trusted_share == pytest.approx(0.5, rel=0.1)


def test_misses_after_a_burst_are_not_those_of_the_mean_load():
    bursty = replace(outlook(), history=LoadHistory(0.0, (*(3.0,) * 237, 12.0, 3.0, 3.0)))

    assert after(3, sample(3.0, attainment=0.5), known=bursty).trusted_share == 1.0
