"""Accepted warns if engine.maxRequestSeconds exceeds another time limit; nothing is refused."""

from dataclasses import replace

import pytest

from tangram.fleet import FleetSnapshot, Intent, PodNeeds, Pool, Traffic
from tangram.fleet.lengths import around
from tangram.plan import plan, render_status
from tests.support.fleet import NOW, intent, node, snapshot


def accepted(observed: FleetSnapshot, owner: Intent) -> str:
    (decision,) = plan(observed, (owner,), NOW).decisions
    assert decision.accepted
    status = render_status(decision, owner, observed, None, None, {}, NOW)
    (condition,) = (c for c in status["conditions"] if c["type"] == "Accepted")
    assert condition["status"] == "True"
    return str(condition["message"])


def fleet(*, spot: bool = False, pools: tuple[Pool, ...] = ()) -> FleetSnapshot:
    return snapshot(replace(node("a", gpu=8), spot=spot), pools=pools)


GROWING = Pool("growing", (("pool", "growing"),), max_nodes=4)
FIXED = Pool("fixed", (("pool", "fixed"),))


def test_the_default_time_limit_adds_no_message() -> None:
    assert accepted(fleet(), intent()) == "the spec is valid"
    assert accepted(fleet(pools=(FIXED,)), intent()) == "the spec is valid"


@pytest.mark.parametrize(
    ("seconds", "pools", "warned"),
    [
        (600, (GROWING,), True),
        (585, (GROWING,), False),  # 600 s with the drain: what a cluster autoscaler grants
        (586, (GROWING,), True),
        (601, (), True),
        (600, (), False),
    ],
)
def test_a_grace_period_above_that_of_the_cluster_autoscaler_is_reported(
    seconds: int, pools: tuple[Pool, ...], warned: bool
) -> None:
    message = accepted(fleet(pools=pools), intent(max_request_s=seconds))
    assert ("max-graceful-termination-sec" in message) is warned


def test_no_message_if_the_cluster_autoscaler_may_not_remove_the_node() -> None:
    keeps_nodes = replace(fleet(pools=(GROWING,)), pod_needs=PodNeeds(keep_nodes=True))
    assert accepted(keeps_nodes, intent(max_request_s=3600)) == "the spec is valid"


def test_growable_pools_that_are_not_used_add_no_message() -> None:
    owner = intent(pools=("fixed",))
    observed = replace(
        fleet(pools=(FIXED, GROWING)), nodes=(replace(node("a", gpu=8), labels=(("pool", "fixed"),)),)
    )
    assert accepted(observed, owner) == "the spec is valid"


@pytest.mark.parametrize(("seconds", "warned"), [(600, True), (106, True), (105, False)])
def test_spot_nodes_with_shorter_notice_are_reported(seconds: int, warned: bool) -> None:
    owner = intent(max_request_s=seconds)
    assert ("spot nodes" in accepted(fleet(spot=True), owner)) is warned
    assert "spot nodes" not in accepted(fleet(), owner)


@pytest.mark.parametrize(("seconds", "warned"), [(10, True), (600, False)])
def test_answers_expected_to_exceed_the_time_limit_are_reported(seconds: int, warned: bool) -> None:
    owner = intent(
        max_request_s=seconds, max_model_len=20_000, traffic=Traffic(None, around(1000), around(8000))
    )
    message = accepted(fleet(), owner)
    assert ("P90 of traffic.outputTokens: 16000 tokens" in message) is warned
