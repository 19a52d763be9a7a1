"""Replicas of a shape that never become ready: the scaler says so to plans, in the log, and orders anew."""

import json
from dataclasses import replace

from tangram.fleet import StartOutcome
from tangram.plan import plan
from tangram.scaling import ScalingParams
from tangram.shell.measure.scaler import Scaler
from tests.support.fleet import NOW, Cluster, intent, node, shape, snapshot

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)
CHEAP, DEAR = shape("1g.10gb"), shape("1g.20gb")
M = intent(min_replicas=2, max_replicas=9)


def outcome(at, *, is_late):
    return StartOutcome(M.uid, at, M.rendered_generation, is_late)


def test_the_law_gets_onto_another_shape_by_itself_and_expects_its_replicas(caplog):
    cluster, scaler = (
        Cluster(snapshot(node("a", mig_1g_10gb=7), node("b", mig_1g_20gb=4)), (M,)),
        Scaler(PARAMS, None),
    )
    back_offs, seen, written_off = (), [], []
    for step in range(40):
        now = NOW + 30 * step
        workloads = tuple(
            replace(w, ready=0, available=0, message="CrashLoopBackOff") if w.shape == CHEAP else w
            for w in cluster.observed.workloads
        )
        scaled = scaler.decide((M,), workloads, {}, now)
        written_off.append(scaled[M.uid].decision.memory.supply.written_off)
        observed = replace(
            cluster.observed,
            workloads=workloads,
            desired=((M.uid, scaled[M.uid].decision.replicas),),
            desired_of=scaler.counted_shapes(),
            start_outcomes=scaler.start_outcomes(),
            back_offs=back_offs,
        )
        new_plan = plan(observed, (M,), now)
        scaler.adopt(new_plan.decisions, workloads)
        back_offs = new_plan.decisions[0].back_offs
        cluster.observed = replace(observed, back_offs=(), start_outcomes=())
        cluster.perform(new_plan)
        cluster.settle()
        seen += [o for o in scaler.start_outcomes() if o not in seen]

    assert {w.shape: w.replicas for w in cluster.observed.workloads} == {DEAR: 2}
    assert seen == [outcome(CHEAP, is_late=True), outcome(DEAR, is_late=False)]
    assert (max(written_off), written_off[-1]) == (2, 0)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("no replica became ready")]
    assert json.loads(line.removeprefix("no replica became ready ")) == {
        "namespace": "ns",
        "name": "m",
        "shape": "H100-80GB-SXM:1g.10gb",
        "since": "2026-11-21T10:00:30Z",
        "message": "CrashLoopBackOff",
    }


def test_a_deleted_llmdeployment_has_no_outcome():
    cluster, scaler = Cluster(snapshot(node("a", mig_1g_10gb=7)), (M,)), Scaler(PARAMS, None)
    for step in range(8):
        scaler.decide((M,), cluster.observed.workloads, {}, NOW + 30 * step)
        cluster.perform(plan(cluster.observed, (M,), NOW))
        cluster.settle()
    assert scaler.start_outcomes() == (outcome(CHEAP, is_late=False),)

    scaler.decide((), (), {}, NOW + 300)

    assert scaler.start_outcomes() == ()
