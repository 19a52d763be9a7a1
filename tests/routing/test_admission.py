"""Which request is sent next, which waits and which is shed."""

import math
import time

import pytest

from benchmarks.routing.tenants import attacked
from tangram.routing.admission import MOST_HELD, MOST_TENANTS, AdmissionQueue, Dispatched
from tangram.routing.pick import RefusalCause, RoutingRefusal
from tangram.routing.replica import ReplicaLoads, ReplicaRates
from tangram.routing.request import RoutedRequest
from tangram.routing.tenants import HeldRequest, TenantPolicy

RATES = ReplicaRates(10_000.0, 0.01, 1e-4)


def queue(replicas: int = 1, rates: ReplicaRates = RATES, **policies: TenantPolicy) -> AdmissionQueue:
    loads = ReplicaLoads()
    loads.set_replicas({f"r{number}": rates for number in range(replicas)})
    return AdmissionQueue(loads, policies)


def held(tenant: str = "", prompt: int = 2000, deadline: float = math.inf, most: int = 100) -> HeldRequest:
    return HeldRequest(RoutedRequest("m", prompt, most, tenant=tenant), 4 * prompt, 0.0, deadline)


def sent(of: AdmissionQueue, now: float = 0.0) -> list[Dispatched]:
    found = []
    while dispatched := of.next(now):
        found.append(dispatched)
    return found


def served_one_by_one(of: AdmissionQueue, count: int) -> list[str]:
    """Let each request that is sent have its first token and end before the next is sent."""
    order: list[str] = []
    now = 0.0
    while len(order) < count:
        for dispatched in sent(of, now):
            now += 0.3
            of.first_token(dispatched, now)
            of.ended(dispatched, now, dispatched.held.request.most_tokens)
            order.append(dispatched.held.request.tenant)
    return order


def test_a_request_is_sent_at_once_where_a_replica_is_idle() -> None:
    of = queue(2)
    assert of.offer(held(), 0.0) is None

    (only,) = sent(of)

    assert only.choice.ttft_s == pytest.approx(0.2, abs=0.05)
    assert (of.held, of.held_bytes) == (0, 0)


def test_requests_wait_while_every_replica_has_a_queue_and_go_when_it_has_not() -> None:
    of = queue()
    for _ in range(3):
        of.offer(held(), 0.0)

    (first,) = sent(of)
    assert sent(of, 0.05) == []
    of.first_token(first, 0.2)
    assert len(sent(of, 0.2)) == 1
    assert of.held == 1


def test_no_replica_takes_one_more_than_its_tpot_objective_allows() -> None:
    of = queue(2, ReplicaRates(1e6, 0.01, 0.001, tpot_objective_s=0.0155))
    for _ in range(20):
        of.offer(held(prompt=10), 0.0)

    running = sent(of)
    for dispatched in running:
        of.first_token(dispatched, 0.01)

    assert len(running) == 10
    assert sent(of, 0.01) == []
    of.ended(running[0], 1.0)
    assert len(sent(of, 1.0)) == 1


def test_tenants_share_gpu_seconds_by_weight_whatever_the_size_of_their_requests() -> None:
    of = queue(heavy=TenantPolicy(weight=3.0), light=TenantPolicy())
    for _ in range(90):
        of.offer(held("heavy", prompt=4000, most=1), 0.0)
    for _ in range(150):
        of.offer(held("light", prompt=1000, most=1), 0.0)

    order = served_one_by_one(of, 120)

    seconds = {"heavy": 4 * order.count("heavy"), "light": order.count("light")}
    assert seconds["heavy"] / seconds["light"] == pytest.approx(3, rel=0.15)


def test_answers_longer_than_expected_are_charged_when_they_end() -> None:
    of = queue(2)
    for _ in range(2):
        of.offer(held("long"), 0.0)
        of.offer(held("short"), 0.0)
    for dispatched in sent(of):
        of.first_token(dispatched, 0.2)
        of.ended(dispatched, 0.5, 100 if dispatched.held.request.tenant == "short" else 100_000)

    assert sent(of, 0.5)[0].held.request.tenant == "short"


def test_a_higher_priority_goes_first_and_batch_traffic_waits_for_an_idle_replica() -> None:
    of = queue(batch=TenantPolicy(priority=-1), urgent=TenantPolicy(priority=1))
    for tenant in ("batch", "", "urgent"):
        for _ in range(2):
            of.offer(held(tenant, prompt=400), 0.0)

    order = [dispatched.held.request.tenant for dispatched in sent(of)]

    assert order == ["urgent", "urgent", ""]
    assert served_one_by_one(queue_with(of), 1) == [""]


def queue_with(of: AdmissionQueue) -> AdmissionQueue:
    """Empty the engines of a queue, as if all that was sent had ended."""
    of.loads.set_replicas({})
    of.loads.set_replicas({"new": RATES})
    return of


def test_a_request_whose_deadline_cannot_be_met_is_shed_at_once_with_the_time_to_retry() -> None:
    of = queue()
    for _ in range(11):
        of.offer(held(), 0.0)
    sent(of)

    refusal = of.offer(held(deadline=1.0), 0.0)

    assert isinstance(refusal, RoutingRefusal)
    assert refusal.cause is RefusalCause.SHED
    assert refusal.retry_after_s == pytest.approx(10 * (0.2 + 100 * 0.01) + 0.2 - 1.0, rel=0.5)
    assert of.offer(held(deadline=60.0), 0.0) is None
    never = of.offer(held(deadline=0.1), 0.0)
    assert never == RoutingRefusal(RefusalCause.SHED, retry_after_s=None)


def test_a_request_that_waited_past_its_deadline_is_returned_once() -> None:
    of = queue()
    kept, late = held(deadline=50.0), held(deadline=9.0)
    for _ in range(2):
        of.offer(held(), 0.0)
    assert (of.offer(late, 0.0), of.offer(kept, 0.0)) == (None, None)
    sent(of)

    assert of.late(8.9) == []
    assert of.late(9.0) == [late]
    assert of.late(9.0) == []
    of.cancel(kept)
    of.cancel(kept)
    assert of.held == 1


def test_requests_beyond_a_tenants_tier_or_bounds_are_refused_and_leave_no_trace() -> None:
    tier = TenantPolicy(most_context_tokens=4000, most_held=3, most_held_bytes=20_000)
    of = queue(tier=tier, flight=TenantPolicy(most_tokens_in_flight=5000))

    assert of.offer(held("tier", prompt=3950), 0.0) == RoutingRefusal(RefusalCause.TOO_LONG)
    assert of.offer(held("flight", prompt=5000), 0.0) == RoutingRefusal(RefusalCause.TOO_LONG)
    refusals = [of.offer(held("tier"), 0.0) for _ in range(4)]
    assert [refusal is None for refusal in refusals] == [True, True, False, False]
    refusals = [of.offer(held("tier", prompt=100), 0.0) for _ in range(3)]
    assert [refusal and refusal.cause for refusal in refusals] == [None, *[RefusalCause.HELD_LIMIT] * 2]
    assert (of.held, of.held_bytes) == (3, 16_400)


def test_tokens_in_flight_of_a_tier_are_never_passed() -> None:
    of = queue(4, flight=TenantPolicy(most_tokens_in_flight=5000))
    for _ in range(4):
        of.offer(held("flight"), 0.0)

    first = sent(of)
    assert len(first) == 2
    of.ended(first[0], 1.0)
    assert len(sent(of, 1.0)) == 1


def test_a_tenant_leaves_room_for_the_shares_of_active_ones_and_uses_all_when_they_are_gone() -> None:
    rates = ReplicaRates(1e6, 0.01, most_running=10)
    of = queue(2, rates)
    of.offer(held("other"), 0.0)
    of.ended(sent(of)[0], 0.0, 1)
    for _ in range(30):
        of.offer(held("greedy", prompt=10), 0.0)

    beside = sent(of, 1.0)
    for dispatched in beside:
        of.first_token(dispatched, 1.0)
    later = sent(of, 40.0)

    assert len(beside) == 10
    assert len(later) == 10


def test_held_requests_and_tenants_are_bounded_and_so_is_the_time_of_a_call() -> None:
    of = queue(100)
    for number in range(MOST_TENANTS + 500):
        refusal = of.offer(held(f"t{number}"), 0.0)
        assert refusal is None or refusal.cause is RefusalCause.HELD_LIMIT
    assert of.held == MOST_HELD
    assert len(of.tenants) == MOST_TENANTS

    for load in of.loads.replicas.values():
        of.loads.started(load.address, RoutedRequest("m", 50_000, 10), 0.0)
    begin = time.process_time()
    assert of.next(0.0) is None
    assert time.process_time() - begin < 0.1


def test_tenants_that_have_reached_their_limits_block_no_other() -> None:
    limited = TenantPolicy(most_tokens_in_flight=2500, weight=100.0)
    of = queue(200)
    of.policies = {f"limited-{number}": limited for number in range(40)}
    for number in range(40):
        for _ in range(2):
            of.offer(held(f"limited-{number}"), 0.0)
    assert len(sent(of)) == 40

    of.offer(held("free"), 0.0)
    found = [dispatched for now in range(5) for dispatched in sent(of, float(now))]

    assert [dispatched.held.request.tenant for dispatched in found] == ["free"]


def test_what_ends_twice_or_without_a_first_token_frees_what_it_held() -> None:
    of = queue()
    of.offer(held("a"), 0.0)
    (only,) = sent(of)
    of.ended(only, 1.0)
    of.ended(only, 1.0)
    of.first_token(only, 1.0)

    use = of.tenants["a"]
    assert (use.in_flight, use.tokens_in_flight, use.occupied_gpus, use.prefilling_gpus) == (0, 0, 0, 0)


def test_without_first_tokens_a_tenants_prefill_ends_when_its_predicted_time_is_over() -> None:
    of = queue(2)
    of.loads.sees_first_tokens = False
    of.offer(held("other", prompt=10), 0.0)
    of.offer(held("a", prompt=9000), 0.0)
    of.offer(held("a", prompt=9000), 0.0)

    assert len(sent(of)) == 2
    assert sent(of, 0.5) == []
    assert len(sent(of, 1.5)) == 1


def test_without_a_replica_requests_wait() -> None:
    of = queue(0)
    assert of.offer(held(deadline=5.0), 0.0) is None
    assert sent(of) == []
    assert len(of.late(5.0)) == 1


@pytest.mark.parametrize("attack", ["a flood", "long prompts", "long answers"])
def test_a_tenant_beside_a_hostile_one_keeps_its_objectives_as_alone_on_its_share(attack: str) -> None:
    row = attacked(attack, seconds=20.0)

    assert row.alone > 0.95
    assert row.attacked >= 0.95 * row.alone
    assert row.hostile_served > 0
    assert row.hostile_refused > row.hostile_served / 5


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        TenantPolicy(weight=weight)
