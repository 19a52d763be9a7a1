"""Each published law on cases that are counted by hand, and on metrics that are missing."""

from dataclasses import replace

import pytest

from benchmarks.autoscaling.laws import PUBLISHED, CapacityFacts, hpa_kv
from benchmarks.autoscaling.laws.aibrix import AIBrixPodAutoscaler
from benchmarks.autoscaling.laws.dynamo import DynamoLoad, DynamoThroughput
from benchmarks.autoscaling.laws.fitted_models.step_filter import StepFilter, guessed_coefficients
from benchmarks.autoscaling.laws.hpa import HPAOnQueue
from benchmarks.autoscaling.laws.keda import KEDAOnPrometheus
from benchmarks.autoscaling.laws.knative import KnativePodAutoscaler
from benchmarks.autoscaling.laws.llm_d_slo import LatencySaturation
from benchmarks.autoscaling.laws.queue_model import QueueModel
from benchmarks.autoscaling.laws.wva_saturation import WVASaturation, behind_hpa
from benchmarks.autoscaling.laws.wva_tokens import WVATokens
from tangram.fleet import Objective, Objectives
from tests.support.scraped_fleet import ScrapedFleet

FACTS = CapacityFacts(
    requests_per_second=2.0,
    running_requests=40.0,
    max_running=100,
    max_batched_tokens=8192,
    kv_tokens=100_000,
    # 10 ms, 20 us per request, 0.1 us per token of context, 50 us per prompt token
    step_s=lambda decoding, context, prompt: (
        0.010 + 2e-5 * decoding + 1e-7 * decoding * context + 5e-5 * prompt
    ),
    input_tokens=1000.0,
    output_tokens=200.0,
    objectives=Objectives(Objective(90, 2000), Objective(90, 50)),
)
LAWS = {
    "hpa-queue": HPAOnQueue,
    "hpa-kv": lambda: hpa_kv(None, None),
    "keda": KEDAOnPrometheus,
    "keda-null-is-error": lambda: KEDAOnPrometheus(ignore_null_values=False),
    "knative": lambda: KnativePodAutoscaler(FACTS),
    "aibrix-apa": AIBrixPodAutoscaler,
    "wva-v1": WVASaturation,
    "wva-v1-hpa": lambda: behind_hpa(WVASaturation()),
    "wva-v2": lambda: WVATokens(FACTS),
    "queue-model": lambda: QueueModel(FACTS),
    "dynamo-throughput": lambda: DynamoThroughput(FACTS),
    "dynamo-load": lambda: DynamoLoad(FACTS),
    "llm-d-slo": lambda: LatencySaturation(FACTS),
}
# Laws to which series that are missing look like no load, as published.
MISSING_IS_IDLE = {"keda", "llm-d-slo"}


def busy(page):
    """15 s of an engine within its objectives."""
    for _ in range(15):
        page.arrived()
        page.first_token(0.3, 1000)
        page.token_gaps(199, 0.02)
        page.finished(0.02, 1000, 200, 4.3)


def slow(page):
    """15 s of an engine above its objectives."""
    for _ in range(15):
        page.arrived()
        page.first_token(4.0, 1000)
        page.token_gaps(199, 0.09)
        page.finished(0.09, 1000, 200, 22.0)


# -- what all have in common -------------------------------------------------------------------------------


def test_each_published_law_is_examined_here():
    # `hpa-running` is of the product.
    assert PUBLISHED.keys() - LAWS.keys() == {"hpa-running"}


@pytest.mark.parametrize("name", LAWS)
def test_no_law_changes_anything_while_prometheus_is_down(name):
    fleet = ScrapedFleet(4).set(running=30, waiting=1, kv=0.4).wait(600, busy)
    law = LAWS[name]()
    fleet.prometheus_down()

    decided = [law.decide(fleet.view(after=seconds)) for seconds in range(0, 1200, 15)]

    assert set(decided) == {4}


@pytest.mark.parametrize("name", LAWS)
def test_series_that_are_missing_look_idle_to_some_laws_and_change_nothing_in_the_others(name):
    fleet = ScrapedFleet(4).set(running=30, waiting=1, kv=0.4).wait(600, busy)
    law = LAWS[name]()
    fleet.fall_silent()

    decided = [law.decide(fleet.view(after=seconds)) for seconds in range(1800, 3000, 15)]

    assert min(decided) == (3 if name == "llm-d-slo" else 1 if name in MISSING_IS_IDLE else 4)
    assert max(decided) == 4


# -- HPA ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "replicas", "expected"),
    [
        (60, 10, 12),  # 60 / 5
        (61, 10, 13),
        (55, 10, 10),  # ratio 1.1 is inside the tolerance
        (56, 10, 12),
        (100, 4, 8),  # 20, but at most the larger of 100 % and 4 pods
        (100, 2, 6),
        (0, 4, 4),  # down only after 300 s
    ],
)
def test_hpa_orders_the_queue_over_the_target(waiting, replicas, expected):
    assert HPAOnQueue().decide(ScrapedFleet().set(waiting=waiting).wait(15).view(replicas)) == expected


# -- KEDA --------------------------------------------------------------------------------------------------


def test_keda_takes_an_empty_result_for_no_load_and_removes_replicas():
    fleet = ScrapedFleet(4).set(waiting=20).wait(600)
    default, strict = KEDAOnPrometheus(), KEDAOnPrometheus(ignore_null_values=False)
    fleet.fall_silent()

    default_after, strict_after = (
        [law.decide(fleet.view(4, after=seconds)) for seconds in range(0, 315, 15)][-1]
        for law in (default, strict)
    )

    assert (default_after, strict_after) == (1, 4)


def test_keda_scales_to_zero_after_its_cooldown_and_back_when_requests_wait():
    fleet = ScrapedFleet().set(waiting=1).wait(15)
    law = KEDAOnPrometheus()
    law.decide(fleet.view(1, least=0))
    fleet.set(waiting=0)
    decided = [law.decide(fleet.wait(15).view(1, least=0)) for _ in range(21)]
    fleet.set(waiting=1)
    woken = [law.decide(fleet.wait(15).view(0, least=0)) for _ in range(2)]

    assert decided == [1] * 19 + [0, 0]
    assert woken[-1] == 1


# -- Knative -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "expected"),
    [(28, 4), (29, 5), (7, 2), (1, 2)],  # the target is 0.7 * 40; no less than half of the ready ones
)
def test_knative_orders_the_concurrency_over_the_target(running, expected):
    fleet = ScrapedFleet(4).set(running=running).wait(90)

    assert KnativePodAutoscaler(FACTS).decide(fleet.view()) == expected


def test_knative_panics_at_twice_the_ready_replicas_and_then_removes_none_for_a_stable_window():
    fleet = ScrapedFleet(1).set(running=20).wait(90)
    law = KnativePodAutoscaler(FACTS)
    calm = law.decide(fleet.view())
    burst = law.decide(fleet.set(running=140).wait(15).view())
    held = [law.decide(fleet.set(running=20).wait(15).view()) for _ in range(5)]

    assert (calm, burst) == (1, 5)
    assert held == [5, 5, 5, 5, 1]


# -- AIBrix ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "expected"),
    [(0.6, 5), (0.55, 4), (0.95, 8), (1.0, 8), (0.46, 4)],
)
def test_aibrix_multiplies_by_the_ratio_between_half_and_twice(kv, expected):
    assert AIBrixPodAutoscaler().decide(ScrapedFleet(4).set(kv=kv).wait(15).view()) == expected


def test_aibrix_removes_replicas_after_its_cooldown_by_half_at_most():
    fleet = ScrapedFleet(8).set(kv=0.5).wait(15)
    law = AIBrixPodAutoscaler()
    law.decide(fleet.view())
    fleet.set(kv=0.05)
    decided = [law.decide(fleet.wait(15).view()) for _ in range(20)]

    assert decided == [8] * 19 + [4]


# -- WVA ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "waiting", "starting", "expected"),
    [
        ([0.75, 0.72], [0, 0], 0, 3),  # 6.5 % to spare on average
        ([0.75, 0.72], [0, 0], 1, 2),  # one is starting
        ([0.65, 0.65], [0, 0], 0, 2),  # 15 % to spare; one alone would have none
        ([0.3, 0.3], [0, 0], 0, 1),
        ([0.3, 0.3], [3, 0], 0, 2),  # queue: 3.5 to spare on average, 2 if one is removed
        ([0.3, 0.3], [3, 2], 0, 3),  # queue: 2.5 to spare
        ([0.9, 0.2], [0, 0], 0, 2),  # one is saturated; the only other one is not removed
        ([0.9, 0.9], [9, 9], 0, 3),  # all are saturated
    ],
)
def test_wva_v1_adds_and_removes_single_replicas_by_spare_capacity(kv, waiting, starting, expected):
    fleet = ScrapedFleet(2).set(kv=kv, waiting=waiting).wait(75)

    assert WVASaturation().decide(fleet.view(2, ready=2 - starting, starting=starting)) == expected


def test_wva_v1_goes_by_the_peak_of_a_minute():
    fleet = ScrapedFleet(2).set(kv=0.75).wait(15)
    fleet.set(kv=0.1)
    decided = [WVASaturation().decide(fleet.wait(15).view()) for _ in range(5)]

    assert decided == [3, 3, 3, 1, 1]


def test_an_hpa_behind_wva_ignores_single_steps_above_ten_replicas_and_waits_four_minutes_below():
    def after(count):
        fleet = ScrapedFleet(count).set(kv=0.75).wait(75)
        law = behind_hpa(WVASaturation())
        return [law.decide(fleet.wait(15).view()) for _ in range(18)]

    assert after(10) == [10] * 18
    assert after(9) == [9] * 16 + [10, 10]


def test_wva_v2_orders_tokens_in_use_and_waiting_over_the_capacity():
    # Nothing waited yet, so the limit is N * (I + O/2): min(8192 * 200 / 1200, 100) * 1100 = 110,000 tokens,
    # and 80 % of the cache, 80,000, is less.
    fleet = ScrapedFleet(2).set(kv=0.75).wait(15)
    calm = WVATokens(FACTS).decide(fleet.view())
    full = WVATokens(FACTS).decide(fleet.set(kv=0.9).wait(15).view())
    idle = WVATokens(FACTS).decide(fleet.set(kv=0.1).wait(15).view())

    # 180,000 / 0.85 - 160,000 = 51,765 is required; 160,000 - 20,000 / 0.7 = 131,429 is spare.
    assert (calm, full, idle) == (3, 3, 1)


def test_wva_v2_learns_the_capacity_at_which_requests_waited():
    fleet = ScrapedFleet(2).set(kv=0.3, waiting=4).wait(15)
    law = WVATokens(FACTS)

    # Capacity is 30,000 tokens now; demand is 60,000 and 8 prompts of 1,000: 80,000 at 85 %.
    assert law.decide(fleet.view()) == 3


# -- queueing model ----------------------------------------------------------------------------------------


def test_the_queue_model_orders_the_rate_over_the_highest_that_meets_the_means():
    # One reading is explained by steps of 18 ms and 3.39 ms for each request (test_fitted_models.py). At one
    # per second the model then expects tens of requests in service, and the filter rejects the reading. A
    # token takes 50 ms with 8.8 requests in service, which end after 0.33 + 200 * 0.05 s: 0.86 per second,
    # and 0.76 with all states of the queue.
    fleet = ScrapedFleet(2).wait(75, busy)
    law = QueueModel(FACTS)

    assert law.decide(fleet.view()) == 3  # 2 / 0.759
    guess = guessed_coefficients(0.3, 0.02, 1000.0, 200.0)
    assert law.filter.estimate.values() == pytest.approx(guess.values(), rel=1e-9)
    assert QueueModel(FACTS, knob=0.5).decide(fleet.view()) == 23  # 2 / 0.0884: a token in 25 ms
    assert QueueModel(FACTS, knob=1 / 3).decide(fleet.view()) == 2  # no rate has a token in 17 ms


def test_the_queue_model_counts_requests_as_they_are_sent():
    def congested(page):
        busy(page)
        page.arrived(30)

    # Three requests arrive for each that ends: 6 / 0.759.
    assert QueueModel(FACTS).decide(ScrapedFleet(2).wait(75, congested).view()) == 8


def test_the_queue_model_learns_nothing_at_a_rate_that_its_model_cannot_serve():
    fleet = ScrapedFleet(2).wait(75, busy)
    law = QueueModel(FACTS)
    law.decide(fleet.view())
    law.filter = ExpectsNoReading(law.filter.estimate)

    law.decide(
        fleet.wait(60, lambda page: (busy(page), page.arrived(15))).view()
    )  # 2 requests/s; most are 1.4


class ExpectsNoReading(StepFilter):
    """Fails as soon as it is corrected."""

    def update(self, measured, predict):
        raise AssertionError(measured)


def test_the_queue_model_holds_without_requests():
    assert QueueModel(FACTS).decide(ScrapedFleet(3).wait(75).view()) == 3


# -- Dynamo ------------------------------------------------------------------------------------------------


def test_dynamo_adds_prefill_and_decode_by_the_profile_and_its_corrections():
    # One request per second of 1,000 and 200 tokens on each of two engines, for 4.3 s. A prompt takes 60 ms,
    # and measured TTFT is above that: 2 * 0.06 replicas. A step of the profile takes 10 + B * (0.02 + 0.11)
    # ms; at the batch of 4.3 it is 10.559, measured are 20, so a step may take 50 * 10.559 / 20 = 26.4 ms: at
    # most 126 requests, but 90 fill the KV cache. 400 tokens/s over 90 / 21.7 ms are 0.096 replicas.
    fleet = ScrapedFleet(2).wait(195, busy)

    assert DynamoThroughput(FACTS).decide(fleet.view()) == 2  # each of them rounded up
    # Of 39 % of the objective, 10.295 ms are left, so 2 requests: 400 tokens/s over 2 / 10.26 ms are 2.05.
    assert DynamoThroughput(FACTS, knob=0.39).decide(fleet.view()) == 4


def test_dynamo_plans_with_no_more_requests_than_the_kv_cache_holds():
    # 2,200 tokens are 2 requests of 1,100: a step of 10.26 ms, and 400 tokens/s are 2.05 replicas, not 0.096.
    fleet = ScrapedFleet(2).wait(195, busy)

    assert DynamoThroughput(replace(FACTS, kv_tokens=2200)).decide(fleet.view()) == 4


def test_dynamo_counts_requests_as_they_end():
    def congested(page):
        busy(page)
        page.arrived(30)
        for _ in range(30):
            page.first_token(0.3, 1000)

    # Three arrive for each that ends: the queue that grows is no demand.
    assert (
        DynamoThroughput(replace(FACTS, kv_tokens=2200)).decide(ScrapedFleet(2).wait(195, congested).view())
        == 4
    )


def test_dynamo_orders_more_where_tokens_take_longer_than_the_profile_says():
    fleet = ScrapedFleet(2).wait(195, slow)

    # 22 requests in 22 s: 12.86 ms. A step may take 50 * 12.86 / 90 = 7.1 ms, which not even one request
    # does: 400 * 10.13 ms are 4.05 replicas, and one for 0.12.
    assert DynamoThroughput(FACTS).decide(fleet.view()) == 6


def test_dynamo_holds_without_traffic():
    assert DynamoThroughput(FACTS).decide(ScrapedFleet(7).wait(195).view()) == 7


def test_dynamo_in_load_mode_adds_a_replica_if_all_are_overloaded_and_removes_one_if_none_nearly_is():
    def decided(happening, waiting, **view):
        fleet = ScrapedFleet(2).set(kv=0.5, waiting=waiting)
        law = DynamoLoad(FACTS)
        for _ in range(4):
            result = law.decide(fleet.wait(15, happening).view(**view))
        return result

    assert decided(slow, 0) == 3
    assert decided(slow, 0, starting=1) == 2
    assert decided(busy, 0) == 1
    assert decided(busy, [40, 0]) == 2  # one of two: 41 prompts of 60 ms are above 2 s
    assert decided(busy, [30, 0]) == 2  # 1.88 s is above 80 %
    assert decided(busy, 40) == 3


# -- llm-d -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saturation", "ready", "expected"),
    [
        (0.5, 10, 10),  # inside the band
        (1.1, 10, 20),  # 10 + ceil(10 * (1.1 / 0.55 - 1))
        (1.1, 5, 10),  # half of them start: what they will carry is not ordered twice
        (0.2, 10, 5),  # 10 - floor(10 * (1 - 0.2 / 0.4))
        (0.2, 5, 5),
    ],
)
def test_llm_d_asks_by_saturation_outside_of_its_band(saturation, ready, expected):
    assert LatencySaturation(FACTS)._ask(saturation, 10, ready) == expected


def test_llm_d_waits_for_thirty_seconds_and_clamps_a_spike():
    fleet = ScrapedFleet(4).wait(75, busy)
    law = LatencySaturation(FACTS)

    replicas, decided = 4, []
    for happening in (busy, slow, slow, slow, slow):
        replicas = law.decide(fleet.wait(15, happening).view(replicas))
        decided.append(replicas)

    # The recommendation of 15 s before the first slow scrape counts for 30 s; then at most twice as many.
    assert decided == [4, 4, 8, 8, 8]
    assert max(value for _, value in law._samples) == 2.0


def test_llm_d_removes_one_pod_per_two_minutes():
    fleet = ScrapedFleet(6).wait(75)
    law, replicas, seen = LatencySaturation(FACTS), 6, []
    for _ in range(40):
        replicas = law.decide(fleet.view(replicas))
        seen.append(replicas)
        fleet.wait(15)

    # After 180 s of low recommendations, one each 120 s.
    assert seen == [6] * 12 + [5] * 8 + [4] * 8 + [3] * 8 + [2] * 4
