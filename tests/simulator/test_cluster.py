"""The simulated cluster: pods start, drain and are lost as on a real one, with the instants of a real one."""

import math
from collections import Counter
from random import Random

import pytest

from benchmarks.linear_steps import LinearSteps
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.fleet import (
    Action,
    ApplyDeployment,
    Claim,
    Node,
    ProvisionedLoad,
    RemoveDeployment,
    ScaleDeployment,
)
from tangram.simulator.cluster.cluster import ClusterTimes, ScaleDownOrder, SimulatedCluster
from tangram.simulator.cluster.event_queue import EventQueue
from tangram.simulator.cluster.faults import CrashLoop, InjectedFaults, NodeFailure, PodQuota, SlowPulls
from tangram.simulator.cluster.observed_fleet import DesiredReplicas, observed_fleet, observed_workloads
from tangram.simulator.cluster.simulated_pod import PodPhase, SimulatedPod
from tangram.simulator.cluster.start_times import Delay, StartTimes, luck
from tests.support.fleet import FACTS_8B, PRODUCTS, shape
from tests.support.simulated_fleets import H100, h100_nodes, served_intent

CHAT = served_intent("chat", max_request_s=100)  # 115 s of grace
SHAPE = shape()
STARTS = StartTimes(1.0, Delay(60.0), Delay(30.0), Delay(10.0), endpoint_lag_s=2.0)


class Recorder:
    """What the cluster calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float]] = []

    def engine_started(self, pod: SimulatedPod, at: float) -> None:
        self.calls.append(("started", pod.name, at))

    def endpoint_added(self, pod: SimulatedPod, at: float) -> None:
        self.calls.append(("endpoint", pod.name, at))

    def pod_gone(self, pod: SimulatedPod, at: float) -> None:
        self.calls.append(("gone", pod.name, at))


class Bench:
    """A cluster and its time."""

    def __init__(
        self,
        nodes: tuple[Node, ...] = h100_nodes(4, 4),
        faults: InjectedFaults | None = None,
        times: ClusterTimes | None = None,
        start_times: StartTimes = STARTS,
        seed: int = 1,
        foreign: tuple[Claim, ...] = (),
    ) -> None:
        self.events, self.recorder = EventQueue(), Recorder()
        self.cluster = SimulatedCluster(
            nodes,
            [CHAT],
            self.events,
            self.recorder,
            lambda _uid, _shape: ReplicaSimulation(LinearSteps(step=1.0), EngineLimits()),
            {CHAT.uid: start_times},
            seed,
            foreign_claims=foreign,
            faults=faults,
            times=times,
        )

    def order(self, replicas: int, at: float = 0.0) -> None:
        self.perform(ApplyDeployment(CHAT.uid, SHAPE, replicas, (PRODUCTS[H100],), 8192), at)

    def perform(self, action: Action, at: float) -> None:
        self.until(at)
        self.cluster.perform([action], at)

    def until(self, at: float) -> None:
        while self.events.next_at <= at:
            self.events.call_next()

    @property
    def pods(self) -> list[SimulatedPod]:
        return self.cluster.pods

    def phases(self) -> Counter[str]:
        return Counter(pod.phase for pod in self.pods)


def test_a_pod_pulls_loads_warms_up_and_gets_requests_when_endpoints_follow() -> None:
    bench = Bench()

    bench.order(1, at=100.0)
    bench.until(1000.0)

    (pod,) = bench.pods
    assert (pod.created_at, pod.scheduled_at, pod.ready_at) == (100.0, 101.0, 201.0)
    assert bench.recorder.calls == [("started", pod.name, 201.0), ("endpoint", pod.name, 203.0)]
    assert bench.cluster.endpoints[CHAT.uid] == [pod]


def test_pods_of_one_node_wait_for_the_same_pull_and_later_ones_for_none() -> None:
    bench = Bench(h100_nodes(4))

    bench.order(1, at=0.0)
    bench.order(2, at=20.0)
    bench.order(3, at=200.0)
    bench.until(1000.0)

    assert [pod.ready_at for pod in bench.pods] == [101.0, 101.0, 241.0]


def test_each_scaling_law_meets_the_same_luck() -> None:
    spread = StartTimes(1.0, Delay(60.0, 0.5), Delay(30.0, 0.5), Delay(10.0, 0.5))
    early, late, other = (
        Bench(start_times=spread),
        Bench(start_times=spread),
        Bench(start_times=spread, seed=2),
    )

    early.order(6)
    other.order(6)
    for count in range(1, 7):
        late.order(count, at=1000.0 * count)
    for bench in (early, late, other):
        bench.until(10_000.0)

    def loads(bench: Bench) -> list[float]:
        image_at = bench.cluster.supply.image_at
        return [p.ready_at - max(p.scheduled_at, image_at[p.node]) for p in bench.pods]

    assert loads(early) == pytest.approx(loads(late))
    assert loads(early) != pytest.approx(loads(other))
    assert len(set(loads(early))) == 6


def test_delays_have_their_mean_and_variation() -> None:
    delay = Delay(50.0, 0.4)
    drawn = [delay.quantile(luck(3, "pod", number)) for number in range(20_000)]

    mean = sum(drawn) / len(drawn)
    deviation = math.sqrt(sum((d - mean) ** 2 for d in drawn) / len(drawn))
    assert (mean, deviation / mean) == pytest.approx((50.0, 0.4), rel=0.03)


def test_pods_without_a_device_wait_until_one_is_free() -> None:
    bench = Bench(h100_nodes(2), foreign=(Claim("n0", "nvidia.com/gpu", 1, None),))

    bench.order(2)
    bench.until(300.0)
    waiting = next(pod for pod in bench.pods if pod.phase is PodPhase.PENDING)
    unscheduled = (
        observed_fleet(bench.cluster, {CHAT.uid: FACTS_8B}, {}, (), {}, 300.0).workloads[0].unscheduled
    )
    bench.cluster.supply.take("n0", "nvidia.com/gpu", -1)
    bench.order(3, at=300.0)  # whatever makes the scheduler look again
    bench.until(301.0)

    assert waiting.unscheduled_since is None
    assert (waiting.created_at, waiting.scheduled_at) == (0.0, 301.0)
    assert unscheduled is not None
    assert unscheduled.pods == 1


def test_the_newest_pod_drains_first_and_finishes_its_requests_without_new_ones() -> None:
    bench = Bench()
    bench.order(2)
    bench.until(200.0)
    older, newer = bench.pods
    assert newer.replica is not None
    newer.replica.send(SimulatedRequest(0.0, 10, 30), 200.0)

    bench.order(1, at=210.0)
    bench.until(211.0)
    assert (newer.phase, newer.in_endpoints, older.phase) == (PodPhase.DRAINING, True, PodPhase.READY)
    bench.until(212.0)
    assert not newer.in_endpoints
    bench.until(400.0)

    assert 230.0 <= newer.gone_at <= 232.0
    assert newer.lost_at == math.inf
    assert not math.isnan(newer.replica.last[0])


def test_the_least_loaded_pod_may_drain_first() -> None:
    bench = Bench(times=ClusterTimes(ScaleDownOrder.LEAST_LOADED))
    bench.order(2)
    bench.until(200.0)
    older, newer = bench.pods
    assert newer.replica is not None
    newer.replica.send(SimulatedRequest(0.0, 10, 30), 200.0)

    bench.order(1, at=210.0)

    assert (older.phase, newer.phase) == (PodPhase.DRAINING, PodPhase.READY)


def test_a_drain_ends_with_the_grace_period_and_what_runs_then_is_lost() -> None:
    bench = Bench()
    bench.order(1)
    bench.until(200.0)
    (pod,) = bench.pods
    assert pod.replica is not None
    pod.replica.send(SimulatedRequest(0.0, 10, 5000), 200.0)

    bench.perform(RemoveDeployment(CHAT.uid, "ns", "x", bench.cluster.of_owner(CHAT.uid)[0].uid), 210.0)
    snapshot = observed_fleet(bench.cluster, {CHAT.uid: FACTS_8B}, {}, (), {}, 210.0)
    bench.until(1000.0)

    assert snapshot.workloads == ()
    assert [claim.count for claim in snapshot.claims] == [1]
    assert pod.gone_at == pod.lost_at == pytest.approx(210.0 + CHAT.termination_grace_s, abs=1.0)


def test_the_removal_of_an_empty_deployment_is_a_change() -> None:
    bench = Bench()
    bench.order(0)
    uid, version = bench.cluster.of_owner(CHAT.uid)[0].uid, bench.cluster.version

    bench.perform(RemoveDeployment(CHAT.uid, "ns", "x", uid), 15.0)
    removed = bench.cluster.version
    bench.perform(RemoveDeployment(CHAT.uid, "ns", "x", uid), 30.0)

    assert bench.cluster.version == removed > version
    assert observed_workloads(bench.cluster, CHAT.uid) == ()


def test_a_plan_is_for_the_number_the_shape_and_the_load_that_a_law_knows() -> None:
    bench, other = Bench(), served_intent("other")
    load = ProvisionedLoad(12.0, 700.0, 150.0)
    desired = {CHAT.uid: DesiredReplicas(3, SHAPE, load), other.uid: DesiredReplicas(2)}

    snapshot = observed_fleet(bench.cluster, {CHAT.uid: FACTS_8B}, desired, (), {}, 0.0)

    assert snapshot.desired == ((CHAT.uid, 3), (other.uid, 2))
    assert snapshot.desired_of == ((CHAT.uid, SHAPE),)
    assert snapshot.provisioned == ((CHAT.uid, load),)


def test_pods_that_are_not_ready_end_before_ready_ones_and_at_once() -> None:
    bench = Bench()
    bench.order(1)
    bench.until(200.0)
    bench.order(3, at=200.0)

    bench.perform(ScaleDeployment(CHAT.uid, "ns", "x", bench.cluster.of_owner(CHAT.uid)[0].uid, 1), 210.0)

    assert bench.phases() == {PodPhase.READY: 1, PodPhase.GONE: 2}
    assert [pod.gone_at for pod in bench.pods[1:]] == [210.0, 210.0]


def test_pods_of_a_lost_node_are_replaced_when_they_are_evicted() -> None:
    bench = Bench(faults=InjectedFaults(node_failures=(NodeFailure("n0", 500.0),)))
    bench.order(2)
    bench.until(499.0)
    on_lost = next(pod for pod in bench.pods if pod.node == "n0")

    bench.until(539.0)
    assert on_lost in bench.cluster.endpoints[CHAT.uid]
    bench.until(540.0)
    assert on_lost not in bench.cluster.endpoints[CHAT.uid]
    assert [node.usable for node in bench.cluster.supply.observed_nodes] == [False, True]
    bench.until(2000.0)

    replacement = bench.pods[-1]
    assert (on_lost.lost_at, on_lost.gone_at) == (500.0, 840.0)
    assert (replacement.node, replacement.created_at, replacement.phase) == ("n1", 840.0, PodPhase.READY)


def test_a_node_that_comes_back_takes_pods_again_with_its_image() -> None:
    bench = Bench(h100_nodes(1), InjectedFaults(node_failures=(NodeFailure("n0", 500.0, 600.0),)))
    bench.order(1)

    bench.until(2000.0)

    assert [(pod.created_at, pod.ready_at) for pod in bench.pods] == [(0.0, 101.0), (600.0, 641.0)]


def test_a_quota_refuses_pods_until_it_ends() -> None:
    bench = Bench(faults=InjectedFaults(pod_quotas=(PodQuota("ns", 2, 0.0, 900.0),)))

    bench.order(3)
    bench.until(800.0)
    snapshot = observed_fleet(bench.cluster, {CHAT.uid: FACTS_8B}, {}, (), {}, 800.0)
    bench.until(2000.0)

    assert snapshot.workloads[0].refused.startswith("exceeded quota: simulated")
    assert [(quota.hard, quota.used) for quota in snapshot.quotas] == [(2.0, 2.0)]
    assert [pod.created_at for pod in bench.pods] == [0.0, 0.0, 900.0]


def test_a_crash_loop_keeps_pods_from_getting_ready_and_they_hold_their_devices() -> None:
    bench = Bench(faults=InjectedFaults(crash_loops=(CrashLoop(CHAT.uid, 100.0, 200.0),)))
    bench.order(1)

    bench.order(2, at=150.0)
    bench.order(3, at=250.0)
    bench.until(5000.0)

    assert [pod.phase for pod in bench.pods] == [PodPhase.READY, PodPhase.STARTING, PodPhase.READY]


def test_slow_pulls_take_so_many_times_as_long() -> None:
    bench = Bench(faults=InjectedFaults(slow_pulls=(SlowPulls(0.0, 50.0, 5.0),)))

    bench.order(1)
    bench.until(1000.0)

    assert bench.pods[0].ready_at == 1.0 + 5 * 60.0 + 40.0


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_no_device_has_two_pods_and_every_replica_has_one(seed: int) -> None:
    rng = Random(seed)
    failures = tuple(
        NodeFailure(f"n{rng.randrange(3)}", at := rng.uniform(0, 5000), rng.choice([None, at + 700]))
        for _ in range(2)
    )
    quotas = (PodQuota("ns", 4, 2000.0, 3000.0),)
    bench = Bench(h100_nodes(2, 3, 2), InjectedFaults(node_failures=failures, pod_quotas=quotas))
    at, replicas = 0.0, 0
    for _ in range(60):
        at += rng.choice([1.0, 15.0, 90.0, 300.0])
        replicas = rng.randrange(9)
        bench.order(replicas, at)
        for pod in bench.cluster.endpoints[CHAT.uid]:
            assert pod.replica is not None
            pod.replica.send(SimulatedRequest(at, 10, rng.randrange(1, 400)), at)
        held = Counter(pod.node for pod in bench.pods if pod.holds_devices)
        assert all(held[f"n{place}"] <= gpus for place, gpus in enumerate((2, 3, 2)))
        assert len({pod.name for pod in bench.pods}) == len(bench.pods)
    bench.until(at + 5000.0)

    (deployment,) = bench.cluster.of_owner(CHAT.uid)
    assert len(deployment.counted) == replicas
    left = sum(gpus for n, gpus in enumerate((2, 3, 2)) if f"n{n}" not in bench.cluster.supply.failed)
    assert deployment.ready == min(replicas, left)
    assert bench.phases()[PodPhase.DRAINING] == 0
    for pod in bench.pods:
        assert pod.created_at <= pod.scheduled_at or pod.scheduled_at == math.inf
        assert pod.gone_at >= pod.created_at
