"""Scaler and planner in turn, while replicas move to another shape under a load that is measured."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from tangram.fleet import Objective, Traffic
from tangram.fleet.lengths import around
from tangram.plan import plan
from tangram.scaling import Sample, ScalingParams, record
from tangram.scaling.sample import Window
from tangram.shell.measure.metrics_readings import Reading
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tangram.shell.measure.scaler import Scaler, provisioned_loads
from tests.plan.now.test_evaluations import GOOD, key
from tests.support.fleet import FACTS_8B, NOW, Cluster, intent, node, shape, snapshot

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=30, down_after_s=300)
STRONG, WEAK = shape(), shape(sku="A100-80GB-SXM")
SHORT, LONG = (700.0, 150.0), (3000.0, 100.0)  # mean tokens of prompts and of answers
CHAT = intent(
    "m",
    "image:///m/8b",
    ttft=Objective(95, 1000),
    tpot=Objective(95, 60),
    traffic=Traffic(None, around(700), around(150)),
    max_replicas=60,
    denied_skus=("A100-80GB-SXM",),
)


@cache
def model(at):
    return PredictedCapacities().of(CHAT, at, CapacityInputs({CHAT.uid: FACTS_8B}))


def rate_of(at, lengths):
    """Return the requests/s of such lengths that a replica carries for a P95."""
    return model(at)(*lengths).rate_at(95)


class Metrics:
    """Readings of a load behind a random router, whose replicas miss what the capacity model predicts."""

    def __init__(self):
        self.sample, self.met = None, []  # the share that met both objectives, by reading
        self.histories = self

    def of(self, _uid):
        return None

    def reading(self, _intent):
        return Reading(self.sample)

    def show(self, at, rate, workloads, lengths):
        ready = sum(w.ready for w in workloads)
        each = [(w.ready / ready, model(w.shape)(*lengths)) for w in workloads if w.ready]
        self.met.append(1 - sum(part * capacity.missed_share(rate / ready) for part, capacity in each))
        prompt, answer = lengths

        def window(seconds):
            met, n = fmean(self.met[-int(seconds // 15) :]), rate * seconds
            lengths = {"prompt_tokens_mean": prompt, "answer_tokens_mean": answer}
            return Window(seconds, n, 4.0, met, met, met, seconds == 1500.0, n, **lengths)

        narrow, *wider = map(window, (60.0, 300.0, 1500.0))
        self.sample = Sample(
            at=at,
            targets=float(ready),
            age_s=3.0,
            waiting=0.0,
            running=4.0,
            running_mean=4.0,
            requests=narrow.requests,
            arrived=narrow.arrived,
            ttft_attainment=narrow.ttft_attainment,
            tpot_attainment=narrow.tpot_attainment,
            itl_attainment=narrow.itl_attainment,
            kv_usage=0.1,
            wider=tuple(wider),
        )


class Fleet:
    """A cluster whose pods become ready at once, its scaler, and what was decided in each round."""

    def __init__(self, m, *nodes):
        self.m, self.cluster, self.now = m, Cluster(snapshot(*nodes), (m,)), NOW
        self.metrics = Metrics()
        self.scaler = Scaler(PARAMS, self.metrics)
        self.decisions = []  # of the law and of the plan

    def run(self, seconds, rate, lengths, *, most_new=None):
        """Let time pass. `most_new`: so many replicas of the newest Deployment become ready, no more."""
        for _ in range(int(seconds // 15)):
            self.now += 15.0
            workloads = self.cluster.observed.workloads
            if any(w.ready for w in workloads):
                now = rate(self.now - NOW) if callable(rate) else rate
                self.metrics.show(self.now, now, workloads, lengths)
            self.round()
            if most_new is not None:
                *before, last = self.cluster.observed.workloads
                last = replace(last, ready=min(last.ready, most_new), available=min(last.ready, most_new))
                self.cluster.observed = replace(self.cluster.observed, workloads=(*before, last))

    def round(self, **restarted):
        inputs = CapacityInputs({self.m.uid: FACTS_8B})
        observed, recorded = self.cluster.observed, restarted.pop("recorded", {})
        scaled = self.scaler.decide(
            (self.m,), observed.workloads, recorded, self.now, capacity_inputs=inputs, **restarted
        )
        decision = scaled[self.m.uid].decision
        seen = replace(
            observed,
            desired=((self.m.uid, decision.replicas),),
            desired_of=self.scaler.counted_shapes(),
            provisioned=provisioned_loads(scaled),
        )
        new_plan = plan(seen, (self.m,), self.now)
        self.scaler.adopt(new_plan.decisions, seen.workloads)
        self.cluster.perform(new_plan)
        self.cluster.settle()
        self.decisions.append((decision, new_plan.decisions[0]))

    def leave_h100s(self):
        self.m = replace(self.m, denied_skus=("H100-80GB-SXM",), generation=self.m.generation + 1)
        self.cluster.intents = (self.m,)

    @property
    def ready(self):
        return {w.shape: w.ready for w in self.cluster.observed.workloads if w.replicas}


def fleet():
    return Fleet(CHAT, node("h", gpu=16), node("a", sku="A100-80GB-SXM", gpu=60))


def test_a_move_under_longer_requests_than_stated_gets_enough_replicas():
    chat = fleet()
    chat.run(2 * 3600, 36.0, LONG)
    assert chat.ready.keys() == {STRONG}
    chat.leave_h100s()
    chat.run(120, 36.0, LONG)

    ((at, ready),) = chat.ready.items()
    needed = math.ceil(36.0 / rate_of(WEAK, LONG))
    by_stated_lengths = math.ceil(5 * rate_of(STRONG, SHORT) / rate_of(WEAK, SHORT))
    assert at == WEAK
    assert by_stated_lengths <= 12
    assert 0.9 * needed <= ready <= 1.3 * needed == 28.6  # lengths come in steps of a tenth


def test_replicas_of_both_shapes_are_forecast_and_growth_does_not_wait_for_the_end_of_a_move():
    chat = fleet()
    chat.run(3600, 20.0, SHORT)
    chat.leave_h100s()
    chat.run(60, 20.0, SHORT, most_new=1)
    assert chat.ready.keys() == {STRONG, WEAK}
    before, planned = chat.decisions[-1]
    assert before.need is not None

    chat.run(120, 60.0, SHORT, most_new=1)

    assert chat.ready.keys() == {STRONG, WEAK}
    mixed, grown = chat.decisions[-1]
    assert mixed.need.replica_rate == pytest.approx(rate_of(WEAK, SHORT), rel=0.1)
    assert mixed.provisioned.requests_per_second >= 60.0
    assert grown.desired >= 2.5 * planned.desired


def test_a_load_about_the_threshold_of_a_move_moves_replicas_once():
    """Within an hour int4 saves a tenth at some loads, and less at others."""
    rng = Random(11)
    slices = Fleet(replace(CHAT, precision="Any", denied_skus=()), node("s", mig_3g_40gb=60))

    def rate(at):
        return 50.0 * (1 + 0.12 * math.sin(2 * math.pi * at / 3600)) + rng.gauss(0.0, 1.0)

    slices.run(1800, rate, LONG)
    slices.cluster.observed = replace(slices.cluster.observed, reports=((key(), GOOD),))
    slices.run(2 * 3600, rate, LONG)

    shapes = [planned.shape for _, planned in slices.decisions]
    assert shapes[0].precision == "bf16"
    assert sum(before != after for before, after in pairwise(shapes)) <= 1


def test_a_steady_noisy_load_moves_nothing_and_is_no_news():
    rng = Random(7)
    chat = fleet()
    chat.run(4 * 3600, lambda _: rng.gauss(40.0, 1.0), (1200.0, 200.0))
    settled = chat.decisions[-120:]  # the mean of the lengths has come near the present ones

    assert len({(planned.shape, planned.desired) for _, planned in settled}) == 1
    assert len({scaled.provisioned for scaled, _ in settled}) == 1


def test_a_restart_in_the_middle_of_a_move_keeps_the_replicas_of_the_new_shape():
    chat = fleet()
    chat.run(3600, 36.0, LONG)
    chat.leave_h100s()
    chat.run(60, 36.0, LONG, most_new=1)
    scaled, planned = chat.decisions[-1]

    chat.scaler, chat.metrics.sample = Scaler(PARAMS, chat.metrics), None
    chat.round(
        recorded={CHAT.uid: scaled.replicas},
        variants={CHAT.uid: STRONG.variant},
        memories={CHAT.uid: record(scaled.memory)},
    )

    assert chat.decisions[-1][1].desired == planned.desired > 20
