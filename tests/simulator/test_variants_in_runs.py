"""Replicas of two shapes behind one Service in a run: the law counts and moves them as in the operator."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tangram.catalog.prices import Prices
from tangram.fleet import Node, Objective, Shape, Traffic
from tangram.fleet.lengths import around
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import CrashLoop, InjectedFaults, NodeFailure
from tangram.simulator.cluster.observed_fleet import DesiredReplicas
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.control.laws_by_name import LAWS
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import LawKnowledge
from tangram.simulator.result.run_result import DeploymentResult
from tangram.simulator.run import SimulationSettings, run
from tangram.simulator.traffic.trace import Trace
from tests.support.fleet import FACTS_8B, node, shape
from tests.support.simulated_fleets import poisson_trace, served, served_intent

pytestmark = pytest.mark.slow

H100, A100 = shape(), shape(sku="A100-80GB-SXM")
STARTS = StartTimes(1.0, Delay(0.0), Delay(40.0, 0.2), Delay(18.0, 0.2), 1.0)
OBJECTIVES = {"ttft": Objective(95, 1000), "tpot": Objective(95, 50)}
PROMPT = 1500
LOST_AT = 600.0
PRICES = Prices({})


def of_model(shape: Shape, *gpus: int) -> tuple[Node, ...]:
    return tuple(
        node(f"{shape.sku}-{place}".lower(), shape.sku, gpu=count) for place, count in enumerate(gpus)
    )


def lost(at: float, nodes: Iterable[Node]) -> InjectedFaults:
    return InjectedFaults(node_failures=tuple(NodeFailure(node.name, at) for node in nodes))


def knowledge(trace: Trace, first: Shape, **changes: Any) -> LawKnowledge:
    intent = served_intent(**OBJECTIVES | changes)
    engines = EngineSetups([(intent, FACTS_8B)], PRICES)
    setup = engines.setup(intent.uid, first)
    return LawKnowledge(intent, setup, *trace.lengths, start_s=60.0, engines=engines)


def ran(
    trace: Trace, first: Shape, nodes: tuple[Node, ...], faults: InjectedFaults, initial: int, **changes: Any
) -> tuple[DeploymentResult, OperatorLaw]:
    law = LAWS["tangram"](knowledge(trace, first, **changes), None)
    assert isinstance(law, OperatorLaw)
    deployment = served(
        trace,
        law,
        intent_changes=OBJECTIVES | changes,
        start_times=STARTS,
        initial_replicas=initial,
    )
    return run((deployment,), SimulationSettings(nodes, seed=1, faults=faults)).deployments[0], law


def rate_of(at: Shape) -> float:
    """Return the requests/s that a replica carries for a P95."""
    trace = poisson_trace(1000, 20.0, input_tokens=PROMPT)
    capacity = knowledge(trace, at).capacity(*(lengths.mean for lengths in trace.lengths))
    assert capacity is not None
    return capacity.rate_at(95)


def attained(result: DeploymentResult, since: float) -> float:
    windows = [window for window in result.attainment.windows if window.begin_s >= since]
    return sum(w.attained for w in windows) / sum(w.requests for w in windows)


def ready(result: DeploymentResult, at: float = math.inf) -> dict[Shape, int]:
    """Return the ready replicas by shape at an instant."""
    count = next(count for count in reversed(result.counts) if count.at <= at)
    return {replicas.shape: replicas.ready for replicas in count.shapes if replicas.ready}


@pytest.fixture(scope="module")
def both() -> tuple[DeploymentResult, OperatorLaw]:
    """Two H100s are left of eight, and seven A100s are free: either alone carries less than the load."""
    first, second = of_model(H100, 2, 6), of_model(A100, 7)
    trace = poisson_trace(120_000, 40.0, input_tokens=PROMPT)
    return ran(trace, H100, first + second, lost(LOST_AT, first[1:]), 8, min_replicas=6)


def test_two_gpu_models_serve_together_where_neither_has_enough_devices(
    both: tuple[DeploymentResult, OperatorLaw],
) -> None:
    result, law = both

    assert ready(result, LOST_AT).keys() == {H100}
    assert ready(result) == {H100: 2, A100: 7}
    assert law.state.shape == H100  # until the move is over, which it never is
    assert law.state.is_mixed
    load = law.state.memory.provisioned
    assert load is not None
    assert law.desired(0) == DesiredReplicas(result.counts[-1].desired, H100, load)
    assert attained(result, 1200.0) > 0.98


def test_each_replica_counts_as_one_of_the_weaker_shape_while_two_serve(
    both: tuple[DeploymentResult, OperatorLaw],
) -> None:
    _, law = both
    rates = [(d.at, d.need.replica_rate) for d in law.decisions if d.need is not None]
    strong, weak = (rate_of(at) for at in (H100, A100))

    assert all(rate == pytest.approx(strong, rel=0.1) for at, rate in rates if at <= LOST_AT)
    mixed = [rate for at, rate in rates if at > LOST_AT + 100.0]
    assert mixed
    assert mixed == pytest.approx([weak] * len(mixed), rel=0.1)
    assert weak < 0.5 * strong


def test_a_constant_load_on_two_shapes_comes_to_a_constant_number(
    both: tuple[DeploymentResult, OperatorLaw],
) -> None:
    result, _ = both

    desired = [count.desired for count in result.counts if count.at >= 1200.0]
    changes = [(before, after) for before, after in pairwise(desired) if before != after]
    assert all(after < before for before, after in changes), changes
    assert len(changes) <= 2
    assert 9 <= desired[-1] <= 10


def test_a_run_on_two_gpu_models_costs_what_both_cost(both: tuple[DeploymentResult, OperatorLaw]) -> None:
    result, _ = both
    uses = dict(result.shape_uses)

    assert list(uses) == [H100, A100]
    for at, use in uses.items():
        assert use.usd == pytest.approx(use.gpu_hours * PRICES.required_replica_hour(*at.key))
    assert uses[A100].gpu_hours == pytest.approx(7 * (3000.0 - LOST_AT - 45.0) / 3600, rel=0.01)
    assert sum(use.usd for use in uses.values()) == pytest.approx(result.use.usd)
    assert sum(use.gpu_hours for use in uses.values()) == pytest.approx(result.use.gpu_hours)


def test_replicas_of_a_lost_pool_move_to_another_one_and_are_counted_there() -> None:
    first, second = of_model(A100, 4, 4), of_model(H100, 8)
    trace = poisson_trace(30_000, 20.0, input_tokens=PROMPT)

    result, law = ran(trace, A100, first + second, lost(LOST_AT, first), 6)

    assert ready(result, LOST_AT).keys() == {A100}
    assert ready(result) == {H100: result.counts[-1].desired}
    assert law.state.shape == H100
    assert attained(result, LOST_AT + 300.0) > 0.99
    # The queue of the lost replicas teaches nothing about the new ones.
    assert law.state.memory.capacity.correction.trusted_share > 0.9
    assert ready(result) == {H100: math.ceil(20.0 / rate_of(H100))}


def test_a_move_gets_the_replicas_that_the_measured_load_needs_on_the_new_shape() -> None:
    """Of the short requests that the spec expects an A100 serves more than half as many as an H100."""
    first, second = of_model(A100, 4, 4), of_model(H100, 8)
    trace = poisson_trace(24_000, 24.0, input_tokens=PROMPT)
    stated = Traffic(None, around(100), around(150))

    result, _ = ran(trace, A100, first + second, lost(LOST_AT, first), 6, traffic=stated)

    assert ready(result, LOST_AT) == {A100: 5}
    ordered = [s.ordered for count in result.counts for s in count.shapes if s.shape == H100]
    assert ordered[0] == math.ceil(5 * rate_of(A100) / rate_of(H100)) == 3


def test_replicas_that_are_late_on_one_shape_are_started_and_counted_on_another() -> None:
    """Two nodes are lost, and the pods that replace theirs on a third one crash for ever."""
    first, second = of_model(A100, 2, 2, 2), of_model(H100, 4)
    crashes = (CrashLoop("uid-chat", 1.0, math.inf, A100),)
    faults = replace(lost(LOST_AT, first[:2]), crash_loops=crashes)

    result, law = ran(poisson_trace(6_000, 3.0, input_tokens=PROMPT), A100, first + second, faults, 2)

    assert ready(result, LOST_AT).keys() == {A100}
    assert ready(result).keys() == {H100}
    assert law.state.shape == H100
