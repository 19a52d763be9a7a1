"""The plan of the fleet counts replicas of other shapes for the measured load, as the planner does."""

from dataclasses import replace

import pytest

from tangram.catalog.prices import Prices
from tangram.fleet import Objective, ProvisionedLoad, Traffic
from tangram.fleet.lengths import around
from tangram.plan import plan
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.offers.fleet_shapes import replicas
from tangram.plan.place.best.demands import size_all
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

OLD, NEW = shape(), shape(sku="A100-80GB-SXM")
LONG = ProvisionedLoad(36.0, 3000.0, 100.0)
CHAT = intent(
    "m",
    "image:///m/8b",
    ttft=Objective(95, 1000),
    tpot=Objective(95, 60),
    traffic=Traffic(None, around(700), around(150)),
    max_replicas=60,
)


def observed(load, *, m=CHAT, desired=4):
    return snapshot(
        node("h", gpu=8),
        node("a", sku="A100-80GB-SXM", gpu=60),
        claims=claims(m, OLD, "h", desired),
        workloads=(workload(m, OLD, desired),),
        desired=((m.uid, desired),),
        desired_of=((m.uid, OLD),),
        provisioned=() if load is None else ((m.uid, load),),
    )


def counts(load, *, m=CHAT, desired=4):
    """Return the replicas that serve the demand by shape."""
    deployments = snapshot_input(observed(load, m=m, desired=desired), (m,)).deployments
    (assessed,) = size_all(deployments, frozenset({OLD.sku, NEW.sku}), {}).values()
    return {serving.key: replicas(assessed.requirements, serving) for serving in assessed.serving}


@pytest.mark.parametrize("load", [LONG, replace(LONG, trusted_share=0.5), replace(LONG, prompt_tokens=300.0)])
def test_another_shape_has_as_many_replicas_as_the_planner_would_give_it(load):
    may_not_stay = replace(CHAT, denied_skus=(OLD.sku,))
    moved = plan(observed(load, m=may_not_stay), (may_not_stay,), NOW).decisions[0]

    assert counts(load)[NEW.key] == moved.desired
    assert counts(load)[OLD.key] == 4


def test_longer_requests_than_stated_need_more_replicas():
    assert counts(LONG)[NEW.key] == 22
    assert counts(None)[NEW.key] == 10


def test_the_shape_at_present_keeps_the_desired_replicas_though_the_load_needs_fewer():
    assert counts(replace(LONG, requests_per_second=1.0))[OLD.key] == 4


def test_a_shape_on_which_the_measured_requests_cannot_be_served_is_counted_as_before():
    assert counts(replace(LONG, prompt_tokens=6000.0)) == counts(None)


def test_a_number_that_is_set_holds_whatever_the_load():
    m = replace(CHAT, replicas=4, min_replicas=4, max_replicas=4)

    assert counts(LONG, m=m) == counts(None, m=m)


def test_the_cheapest_shape_for_the_measured_load_comes_first():
    deployments = snapshot_input(observed(LONG), (CHAT,)).deployments
    (assessed,) = size_all(deployments, frozenset({OLD.sku, NEW.sku}), {}).values()
    prices = Prices()
    costs = [replicas(assessed.requirements, s) * prices.replica_hour(*s.key) for s in assessed.serving]

    assert costs == sorted(costs)
