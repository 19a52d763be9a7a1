"""The gateway: which pod gets a request, and what happens while there is none."""

import math
from collections import Counter

import pytest

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.routing.replica import ReplicaRates
from tangram.simulator.cluster.simulated_pod import PodPhase, SimulatedPod
from tangram.simulator.serving.gateway import Gateway, Router, SendFailure
from tests.support.fleet import shape


def _pod(ordinal: int) -> SimulatedPod:
    limits = EngineLimits(kv_tokens=1600)
    replica = ReplicaSimulation(LinearSteps(step=1.0), limits)
    return SimulatedPod(f"p{ordinal}", ordinal, "uid", shape(), 0.0, PodPhase.READY, "n0", replica)


def _gateway(pods: list[SimulatedPod], router: Router = Router.RANDOM, max_wait_s: float = 30.0) -> Gateway:
    return Gateway(pods, lambda _pod: None, 4000, router, max_wait_s, seed=3)


def _request(at: float, answer: int = 10) -> SimulatedRequest:
    return SimulatedRequest(at, 50, answer)


def test_requests_are_spread_at_random_as_by_kube_proxy() -> None:
    gateway = _gateway([_pod(0), _pod(1), _pod(2)])

    for number in range(3000):
        gateway.accept(_request(float(number)), float(number))

    counts = Counter(sent.pod.name for sent in gateway.sent if sent.pod)
    assert all(count == pytest.approx(1000, rel=0.1) for count in counts.values())
    assert len(counts) == 3


def test_round_robin_gives_every_pod_its_turn() -> None:
    gateway = _gateway([_pod(0), _pod(1), _pod(2)], Router.ROUND_ROBIN)

    for number in range(6):
        gateway.accept(_request(float(number)), float(number))

    assert Counter(sent.pod.name for sent in gateway.sent if sent.pod) == {"p0": 2, "p1": 2, "p2": 2}


def test_the_pod_with_the_fewest_outstanding_requests_is_picked() -> None:
    gateway = _gateway([_pod(0), _pod(1)], Router.LEAST_OUTSTANDING)

    for at, answer in ((0.0, 100), (1.0, 3), (2.0, 100), (8.0, 100)):
        gateway.accept(_request(at, answer), at)

    assert [sent.pod.name for sent in gateway.sent if sent.pod] == ["p0", "p1", "p1", "p0"] or [
        sent.pod.name for sent in gateway.sent if sent.pod
    ] == ["p0", "p1", "p0", "p1"]


def test_requests_wait_for_an_endpoint_and_time_out() -> None:
    pods: list[SimulatedPod] = []
    gateway = _gateway(pods)
    for at in (0.0, 20.0, 40.0):
        gateway.accept(_request(at), at)

    pods.append(_pod(0))
    gateway.flush(45.0)

    assert [sent.failure for sent in gateway.sent] == [SendFailure.TIMED_OUT, None, None]
    replica = pods[0].replica
    assert replica is not None
    assert replica.arrival == [45.0, 45.0]


def test_requests_are_refused_at_once_where_the_gateway_does_not_wait() -> None:
    gateway = _gateway([], max_wait_s=0.0)

    gateway.accept(_request(0.0), 0.0)

    assert gateway.sent[0].failure is SendFailure.NO_READY_POD


def test_what_waits_when_the_run_ends_has_timed_out() -> None:
    gateway = _gateway([], max_wait_s=math.inf)
    gateway.accept(_request(0.0), 0.0)

    gateway.close()

    assert gateway.sent[0].failure is SendFailure.TIMED_OUT


@pytest.mark.parametrize("answer", [1600, 3960])
def test_requests_too_long_for_the_cache_or_the_model_reach_no_engine(answer: int) -> None:
    pod = _pod(0)
    arrived: list[SimulatedPod] = []
    gateway = Gateway([pod], arrived.append, 4000, Router.RANDOM, 30.0, seed=3)

    gateway.accept(_request(0.0, answer), 0.0)

    assert arrived == []  # it is no load
    assert gateway.sent[0].failure is SendFailure.TOO_LONG
    assert pod.outstanding == 0


def test_predictions_send_a_request_to_the_fast_pod_until_its_queue_is_longer() -> None:
    fast, slow = _pod(0), _pod(1)
    slow.shape = shape("A10G")
    rates = {fast.shape: ReplicaRates(1000.0, 0.1), slow.shape: ReplicaRates(200.0, 0.1)}
    pods = [slow, fast]
    gateway = Gateway(
        pods, lambda _pod: None, 4000, Router.PREDICTED_TTFT, 30.0, seed=3, rates_of=rates.__getitem__
    )

    for at in (0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 50.0):
        gateway.accept(_request(at), at)

    names = [sent.pod.name for sent in gateway.sent if sent.pod]
    assert names[:4] == ["p0", "p0", "p0", "p1"]
    assert names[-1] == "p0"

    pods.remove(fast)
    gateway.accept(_request(51.0), 51.0)
    assert gateway.sent[-1].pod is slow
