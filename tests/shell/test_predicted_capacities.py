"""What a replica carries is predicted for the shape and the spec, once."""

from dataclasses import replace

import pytest

from tangram.fleet import Objective, Traffic
from tangram.fleet.lengths import around
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tests.support.fleet import FACTS_8B, intent, shape

CHAT = intent(
    ttft=Objective(90, 1000),
    tpot=Objective(90, 50),
    traffic=Traffic(None, around(700), around(150)),
    max_model_len=8192,
)
KNOWN = CapacityInputs({CHAT.uid: FACTS_8B}, {(CHAT.uid, shape()): 80.0})


def test_longer_requests_leave_a_replica_less():
    capacity_of = PredictedCapacities().of(CHAT, shape(), KNOWN)

    assert 0 < capacity_of(2000.0, 400.0).rate_at(90) < 0.5 * capacity_of(500.0, 100.0).rate_at(90)


def test_a_capacity_is_computed_again_for_another_spec_alone():
    capacities = PredictedCapacities()
    first = capacities.of(CHAT, shape(), KNOWN)

    assert capacities.of(replace(CHAT, replicas=3), shape(), KNOWN) is first
    assert (
        capacities.of(replace(CHAT, traffic=Traffic(None, around(90), around(9))), shape(), KNOWN)
        is not first
    )


@pytest.mark.parametrize(
    ("inputs", "of_shape"),
    [(CapacityInputs(), shape()), (KNOWN, shape("1g.10gb"))],
    ids=["no facts", "does not fit"],
)
def test_what_cannot_be_predicted_has_no_capacity(inputs, of_shape):
    assert PredictedCapacities().of(CHAT, of_shape, inputs) is None


def test_capacities_of_deleted_deployments_are_forgotten():
    capacities = PredictedCapacities()
    first = capacities.of(CHAT, shape(), KNOWN)

    capacities.retain(())

    assert capacities.of(CHAT, shape(), KNOWN) is not first
