"""What the planner decides about numbers is what the scaling law goes on from."""

from dataclasses import replace

from tangram.fleet import Traffic
from tangram.planner import plan
from tangram.scaling import ScalingParams
from tangram.shell.scaler import Scaler
from tests.support.fleet import NOW, Cluster, intent, node, snapshot

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)


def rounds(cluster, scaler, count):
    wanted, seen = cluster.intents, []
    for step in range(count):
        scaled = scaler.decide(wanted, cluster.observed.workloads, {}, NOW + step)
        desired = tuple(sorted((uid, one.decision.replicas) for uid, one in scaled.items()))
        seen_now = replace(cluster.observed, desired=desired, desired_of=scaler.counted())
        made = plan(seen_now, wanted, NOW + step)
        scaler.adopt(made.decisions, seen_now.workloads)
        cluster.perform(made)
        cluster.settle()
        seen.append([w.replicas for w in cluster.observed.workloads])
    return seen


def test_the_replicas_that_traffic_is_expected_to_need_are_not_taken_away_in_the_next_round():
    m = intent(max_replicas=9, traffic=Traffic(requests_per_second=40.0))
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))

    assert rounds(cluster, Scaler(PARAMS, None), 4) == [[4]] * 4


def test_a_wish_that_is_carried_out_as_it_is_changes_nothing():
    m = intent(max_replicas=9)
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))

    assert rounds(cluster, Scaler(PARAMS, None), 3) == [[1]] * 3
