"""The scaling law continues from the numbers of replicas that the planner decides."""

from dataclasses import replace

from tangram.fleet import Objective, Traffic
from tangram.plan import plan
from tangram.scaling import ScalingParams, record
from tangram.scaling.record import PREDICTED_TPOT
from tangram.shell.measure.scaler import Scaler
from tests.support.fleet import NOW, Cluster, intent, node, shape, snapshot

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)


def rounds(cluster, scaler, count):
    owners, replicas = cluster.intents, []
    for step in range(count):
        scaled = scaler.decide(owners, cluster.observed.workloads, {}, NOW + step)
        desired = tuple(sorted((uid, result.decision.replicas) for uid, result in scaled.items()))
        seen_now = replace(cluster.observed, desired=desired, desired_of=scaler.counted_shapes())
        new_plan = plan(seen_now, owners, NOW + step)
        scaler.adopt(new_plan.decisions, seen_now.workloads)
        cluster.perform(new_plan)
        cluster.settle()
        replicas.append([w.replicas for w in cluster.observed.workloads])
    return replicas


def test_replicas_for_expected_traffic_stay_in_the_next_round():
    m = intent(max_replicas=9, traffic=Traffic(requests_per_second=40.0))
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))

    assert rounds(cluster, Scaler(PARAMS, None), 4) == [[4]] * 4


def test_a_fully_placed_scaling_decision_stays_unchanged():
    m = intent(max_replicas=9)
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))

    assert rounds(cluster, Scaler(PARAMS, None), 3) == [[1]] * 3


def test_a_restarted_operator_continues_from_the_recorded_status():
    m = intent(max_replicas=9, tpot=Objective(90, 50))
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))
    first = Scaler(PARAMS, None)
    rounds(cluster, first, 2)
    memory = first._states[m.uid].memory
    violated, late = replace(memory.evidence, violated_rate=1.5), replace(memory.supply, written_off=1)
    learned = replace(memory, evidence=violated, supply=late)
    recorded = record(learned)
    new_plan = plan(cluster.observed, cluster.intents, NOW)
    predicted = new_plan.decisions[0].predicted_tpot_ms

    again = Scaler(PARAMS, None)
    block = {**recorded, PREDICTED_TPOT: f"{predicted}"}
    decision = again.decide(cluster.intents, cluster.observed.workloads, {}, NOW, memories={m.uid: block})[
        m.uid
    ]

    assert decision.decision.memory.evidence.violated_rate == 1.5
    assert decision.decision.memory.evidence.idle_tpot_ms == predicted


def test_the_learned_load_of_one_shape_is_not_used_for_another():
    m = intent(max_replicas=9)
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))
    scaler = Scaler(PARAMS, None)
    rounds(cluster, scaler, 2)
    state = scaler._states[m.uid]
    violated = replace(state.memory.evidence, violated_rate=1.5)
    scaler._states[m.uid] = replace(state, memory=replace(state.memory, evidence=violated))
    other = replace(cluster.observed.workloads[0], shape=shape())
    moved = replace(plan(cluster.observed, cluster.intents, NOW).decisions[0], shape=other.shape)

    scaler.adopt((moved,), (other,))

    assert scaler._states[m.uid].memory.evidence.violated_rate is None
