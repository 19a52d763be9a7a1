"""Whole runs: requests, scrapes, rounds and pods together."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from tangram.capacity.load.simulate import simulate
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.fleet import FleetSnapshot, Objective, Plan, Pool, Shape
from tangram.plan import plan
from tangram.scaling.scrapes import read_sample
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.faults import (
    CrashLoop,
    InjectedFaults,
    NodeFailure,
    PodQuota,
    PrometheusOutage,
)
from tangram.simulator.cluster.observed_fleet import DesiredReplicas
from tangram.simulator.cluster.start_times import Delay, StartTimes
from tangram.simulator.control import fleet_planner
from tangram.simulator.controllers import ControllerView
from tangram.simulator.run import SimulationSettings, run, shapes_at_start
from tangram.simulator.serving.gateway import Router
from tangram.simulator.traffic.resampling import window
from tangram.simulator.traffic.trace import Trace
from tests.support.fleet import FACTS_8B, node, shape
from tests.support.simulated_fleets import Law, Schedule, h100_nodes, poisson_trace, served, served_intent

FLEET = SimulationSettings(h100_nodes(4, 4), seed=5)
PRICE = Prices({}).required_replica_hour("H100-80GB-SXM", "gpu")


def test_one_replica_serves_a_trace_as_the_step_simulation_does() -> None:
    drawn = poisson_trace(4000, 20.0)
    trace = Trace(tuple(r for r in drawn.requests if r.input_tokens + r.output_tokens <= 8192))
    intent = served_intent()

    result = run((served(trace, Schedule([(0, 1)])),), FLEET).deployments[0]

    setup = EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())
    alone = simulate(setup.steps, setup.limits, trace.requests)
    met = sum(
        ttft + setup.request_s <= 1.5 and tpot <= 0.04
        for ttft, tpot in zip(alone.ttft_s, alone.tpot_s, strict=True)
    )
    assert 1000 < met < 3000
    assert dict(result.attainment.verdicts)["attained"] == met


def test_equal_inputs_give_equal_results() -> None:
    def once() -> object:
        law = Law(lambda view: 1 + int(view.now // 200) % 4)
        settings = replace(FLEET, router=Router.LEAST_OUTSTANDING)
        return run((served(poisson_trace(3000, 5.0), law),), settings)

    assert once() == once()


@pytest.mark.parametrize("router", list(Router))
def test_every_request_has_one_verdict_and_lies_in_one_window(router: Router) -> None:
    trace = poisson_trace(4000, 6.0)
    law = Schedule([(0, 1), (200, 5), (400, 1), (500, 3)])
    faults = InjectedFaults(node_failures=(NodeFailure("n0", 450.0, 500.0),))

    result = run((served(trace, law),), replace(FLEET, router=router, faults=faults)).deployments[0]

    verdicts = dict(result.attainment.verdicts)
    assert sum(verdicts.values()) == result.attainment.requests == 4000
    unservable = verdicts.get("infeasible", 0) + verdicts.get("too long", 0)
    assert result.attainment.feasible == 4000 - unservable
    assert sum(w.attained for w in result.attainment.windows) == verdicts["attained"]
    assert result.attainment.share == pytest.approx(verdicts["attained"] / (4000 - unservable))


def test_more_replicas_meet_more_objectives_and_cost_more() -> None:
    trace = poisson_trace(4000, 25.0)

    results = [run((served(trace, Schedule([(0, n)]), initial_replicas=n),), FLEET) for n in (1, 2, 4)]

    shares = [result.deployments[0].attainment.share for result in results]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < 0.95 < shares[-1]
    hours = results[0].duration_s / 3600
    assert [result.usd for result in results] == pytest.approx([PRICE * hours * n for n in (1, 2, 4)])


def test_a_start_costs_its_device_and_serves_from_readiness_on() -> None:
    trace = poisson_trace(6000, 6.0)
    starts = StartTimes(1.0, Delay(60.0), Delay(120.0), Delay(19.0))
    law = Schedule([(0, 1), (300, 2)])

    result = run((served(trace, law, start_times=starts),), replace(FLEET, duration_s=900.0)).deployments[0]

    # Ordered in the round at 300 s, on the other node, whose image is not there yet.
    assert [(c.at, c.desired, c.ordered, c.ready) for c in result.counts] == [
        (0.0, 1, 1, 1),
        (300.0, 2, 2, 1),
        (510.0, 2, 2, 2),
    ]
    assert result.use.gpu_hours == pytest.approx((900 + 599) / 3600)
    assert result.use.starting_gpu_hours == pytest.approx(199 / 3600)
    assert result.use.starts == 1


def test_a_law_sees_what_was_scraped_before_and_nothing_later() -> None:
    rates = []

    def law(view: ControllerView) -> int:
        sample = read_sample(view.metrics, served_intent().objectives, 60.0)
        requests = view.metrics.increase("tangram:requests_received_total", 60.0)
        newest = view.metrics.timestamp("vllm:num_requests_running")
        assert all(at <= view.now for at in newest.values())
        rates.append((view.now, sum(requests.values()) / 60, sample))
        return 2

    run((served(poisson_trace(6000, 10.0), Law(law), initial_replicas=2),), FLEET)

    settled = [rate for now, rate, _ in rates if now > 120]
    assert sum(settled) / len(settled) == pytest.approx(10.0, rel=0.05)
    assert all(rate == 0 for now, rate, _ in rates if now <= 15)


def test_metrics_agree_with_what_was_served() -> None:
    seen = {}

    def law(view: ControllerView) -> int:
        for metric in ("vllm:time_to_first_token_seconds_count", "vllm:generation_tokens_total"):
            seen[metric] = sum(view.metrics.instant(metric).values())
        return 1

    trace = poisson_trace(600, 3.0)
    settings = replace(FLEET, duration_s=trace.duration_s + 120.0)
    result = run((served(trace, Law(law)),), settings).deployments[0]

    assert result.attainment.requests == 600
    assert seen["vllm:time_to_first_token_seconds_count"] == 600
    assert seen["vllm:generation_tokens_total"] == sum(r.output_tokens for r in trace.requests)


def test_an_outage_blinds_the_law_and_what_it_does_then_is_counted() -> None:
    def holds(view: ControllerView) -> int:
        return len(view.metrics.instant("vllm:num_requests_running")) + 1  # raises PrometheusDown

    blind = Schedule([(0, 3), (400, 1)])
    settings = replace(
        FLEET, faults=InjectedFaults(outages=(PrometheusOutage(300.0, 600.0),)), duration_s=900.0
    )
    trace = poisson_trace(900, 1.0)

    result = run((served(trace, Law(holds), "holds"), served(trace, blind, "blind")), settings)

    by_name = {deployment.name: deployment for deployment in result.deployments}
    assert by_name["holds"].blind_actions == 0
    assert (by_name["blind"].blind_actions, by_name["blind"].blind_scale_downs) == (1, 1)


def test_requests_of_a_lost_node_are_misses_and_its_pods_are_replaced() -> None:
    trace = poisson_trace(4000, 4.0)
    faults = InjectedFaults(node_failures=(NodeFailure("n1", 300.0),))

    result = run(
        (served(trace, Schedule([(0, 2)]), initial_replicas=2),), replace(FLEET, faults=faults)
    ).deployments[0]

    lost = dict(result.attainment.verdicts)["lost"]
    # What ran there, and half of what came until the control plane missed the node.
    assert 0.5 * 4.0 * 40 * 0.7 < lost < 0.5 * 4.0 * 40 * 1.5 + 32
    ready = [(count.at, count.ready) for count in result.counts]
    assert (345.0, 1) in ready
    assert ready[-1][1] == 2


@pytest.mark.parametrize(
    ("crashing", "last"), [(shape(sku="A100-80GB-SXM"), (2, 2)), (None, (2, 0))], ids=["one shape", "all"]
)
def test_replicas_that_never_start_on_one_shape_start_on_another(
    crashing: Shape | None, last: tuple[int, int]
) -> None:
    """Two nodes are lost, and the pods that replace theirs on a third one crash for ever."""
    alike = tuple(node(f"a{i}", "A100-80GB-SXM", gpu=2) for i in range(3))
    faults = InjectedFaults(
        node_failures=tuple(NodeFailure(lost.name, 100.0) for lost in alike[:2]),
        crash_loops=(CrashLoop("uid-chat", 1.0, math.inf, crashing),),
    )
    settings = replace(FLEET, nodes=(*alike, *h100_nodes(2), node("l0", "L4", gpu=4)), faults=faults)
    law = Schedule([(0, 2)])

    result = run((served(poisson_trace(800, 0.2), law, initial_replicas=2),), settings).deployments[0]

    assert (result.counts[-1].ordered, result.counts[-1].ready) == last
    assert max(count.ordered for count in result.counts) == 4  # of two shapes at a time
    back = [count.at for count in result.counts if count.at > 200.0 and count.ready]
    # The loss is noticed after 40 s, replicas are late 600 s later, and others then start within minutes.
    assert all(740.0 <= at <= 1000.0 for at in back)
    assert bool(back) == bool(crashing)


def test_without_a_ready_pod_requests_wait_or_are_refused() -> None:
    trace = poisson_trace(300, 1.0)
    faults = InjectedFaults(node_failures=(NodeFailure("n0", 100.0), NodeFailure("n1", 100.0)))

    for wait_s, verdict in ((0.0, "refused"), (30.0, "timed out")):
        settings = replace(FLEET, faults=faults, gateway_wait_s=wait_s)
        result = run((served(trace, Schedule([(0, 1)])),), settings).deployments[0]

        verdicts = dict(result.attainment.verdicts)
        assert verdicts[verdict] == sum(request.arrival_s >= 140.0 for request in trace.requests)


def test_requests_that_no_replica_serves_in_time_are_counted_apart() -> None:
    trace = poisson_trace(400, 1.0, input_tokens=3000)

    result = run(
        (served(trace, Schedule([(0, 1)]), intent_changes={"ttft": Objective(95, 120)}),), FLEET
    ).deployments[0]

    verdicts = dict(result.attainment.verdicts)
    assert verdicts["infeasible"] > 50
    assert result.attainment.feasible == 400 - verdicts["infeasible"] - verdicts.get("too long", 0)


def test_desired_replicas_stay_within_the_limits_of_the_spec() -> None:
    law = Law(lambda view: 99 if view.now < 300 else -5)

    result = run(
        (served(poisson_trace(600, 1.0), law, intent_changes={"min_replicas": 2, "max_replicas": 3}),), FLEET
    ).deployments[0]

    assert {count.desired for count in result.counts} == {2, 3}


def test_llmdeployments_share_the_nodes_and_the_planner_places_what_fits() -> None:
    trace = poisson_trace(600, 1.0)
    both = (
        served(trace, Schedule([(0, 1), (150, 3)]), "first"),
        served(trace, Schedule([(0, 1), (150, 3)]), "second"),
    )

    result = run(both, replace(FLEET, nodes=h100_nodes(4)))

    last = [deployment.counts[-1] for deployment in result.deployments]
    assert sum(count.ready for count in last) == 4
    assert [count.desired for count in last] == [3, 3]
    assert result.planning_faults == ()


@pytest.mark.parametrize(
    "faults",
    [
        InjectedFaults(),
        InjectedFaults(pod_quotas=(PodQuota("ns", 3, 300.0, 600.0),)),
        InjectedFaults(node_failures=(NodeFailure("n0", 200.0, 700.0),)),
        InjectedFaults(crash_loops=(CrashLoop("uid-chat", 100.0, 400.0),)),
    ],
    ids=["calm", "quota", "node", "crash"],
)
def test_plans_from_the_cache_are_those_that_planning_every_round_gives(
    faults: InjectedFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once() -> object:
        law = Law(lambda view: 1 + (int(view.now) * 7 // 105) % 5)
        settings = replace(FLEET, nodes=h100_nodes(3, 2), faults=faults)
        return run((served(poisson_trace(1500, 1.5), law),), settings)

    cached = once()
    plans = Counter[str]()

    def always(
        self: fleet_planner.FleetPlanner,
        cluster: object,
        desired: dict[str, DesiredReplicas],
        at: float,
        _: object,
    ) -> tuple[object, ...]:
        snapshot: FleetSnapshot = fleet_planner.observed_fleet(
            cluster, self.facts, desired, self.back_offs, self.prices, at
        )
        planned: Plan = plan(snapshot, self.intents, fleet_planner.START_OF_TRACE + at)
        self.back_offs = tuple(b for decision in planned.decisions for b in decision.back_offs)
        plans["made"] += 1
        return planned.actions

    monkeypatch.setattr(fleet_planner.FleetPlanner, "actions", always)
    uncached = once()

    assert replace(cached, plans=0) == replace(uncached, plans=0)
    assert cached.plans < plans["made"] / 2


def test_replicas_that_a_quota_held_back_are_ordered_when_it_ends() -> None:
    faults = InjectedFaults(pod_quotas=(PodQuota("ns", 3, 100.0, 600.0),))
    deployment = served(poisson_trace(1000, 1.0), Schedule([(0, 1), (150, 5)]))

    result = run((deployment,), replace(FLEET, nodes=h100_nodes(3, 2), faults=faults)).deployments[0]

    ordered = {count.ordered: count.at for count in reversed(result.counts)}
    assert ordered[3] < 600.0 <= ordered[5] <= 630.0


def test_prefix_caching_shortens_prompts_that_begin_alike() -> None:
    blocks = tuple(range(6))
    shared = tuple(
        replace(r, input_tokens=3100, prefix_blocks=blocks) for r in poisson_trace(1200, 8.0).requests
    )
    changes = {"ttft": Objective(95, 400), "tpot": Objective(95, 20)}

    shares = [
        run(
            (served(Trace(shared), Schedule([(0, 1)]), intent_changes=changes),),
            replace(FLEET, prefix_caching=caching),
        )
        .deployments[0]
        .attainment.share
        for caching in (False, True)
    ]

    assert shares[0] < 0.5
    assert shares[1] == 1.0


def test_a_run_without_requests_costs_what_stands() -> None:
    result = run((served(Trace(), Schedule([(0, 2)])),), replace(FLEET, duration_s=3600.0))

    assert result.deployments[0].attainment.share == 1.0
    assert result.usd == pytest.approx(PRICE * (3600 + 3584) / 3600, rel=1e-3)
    assert math.isclose(result.deployments[0].use.idle_gpu_hours, 2.0, rel_tol=0.05)


def test_two_llmdeployments_of_one_uid_are_refused() -> None:
    trace = window(poisson_trace(10, 1.0), 0.0, 5.0)

    with pytest.raises(InputError, match="have the same uid"):
        run((served(trace, Schedule([(0, 1)])), served(trace, Schedule([(0, 1)]))), FLEET)


def test_each_objective_has_its_own_attainment_and_both_are_met_by_fewer() -> None:
    trace = poisson_trace(4000, 20.0)
    only_ttft, only_tpot, both = (
        run((served(trace, Schedule([(0, 1)]), intent_changes=changes),), FLEET).deployments[0].attainment
        for changes in (
            {"ttft": Objective(95, 1500), "tpot": None},
            {"ttft": None, "tpot": Objective(95, 11)},
            {"ttft": Objective(95, 1500), "tpot": Objective(95, 11)},
        )
    )

    assert both.whole.ttft_attainment == pytest.approx(only_ttft.share, abs=0.01)
    assert both.whole.tpot_attainment == pytest.approx(only_tpot.share, abs=0.01)
    assert both.share == both.whole.attainment
    assert both.share < min(both.whole.ttft_attainment, both.whole.tpot_attainment) < 1.0
    assert only_ttft.whole.tpot_attainment == only_tpot.whole.ttft_attainment == 1.0
    assert both.ttft_s == only_tpot.ttft_s
    assert 0.0 < both.ttft_s.p50 < both.ttft_s.p99


def test_a_request_that_is_not_served_misses_both_objectives_and_has_no_latency() -> None:
    trace = poisson_trace(200, 1.0)
    faults = InjectedFaults(node_failures=(NodeFailure("n0", 50.0), NodeFailure("n1", 50.0)))

    result = (
        run((served(trace, Schedule([(0, 1)])),), replace(FLEET, faults=faults)).deployments[0].attainment
    )

    whole, verdicts = result.whole, dict(result.verdicts)
    unserved = verdicts["lost"] + verdicts["timed out"]
    assert unserved > 100
    assert whole.ttft_missed == unserved + verdicts.get("TTFT", 0)
    assert whole.tpot_missed >= unserved
    assert result.ttft_s.p99 < 2.0


def test_cost_by_window_adds_up_to_the_cost_of_the_run() -> None:
    law = Schedule([(0, 1), (310, 4), (700, 2)])

    result = run((served(poisson_trace(6000, 5.0), law),), replace(FLEET, duration_s=1100.0)).deployments[0]

    assert len(result.usd) == len(result.attainment.windows) == 4
    assert sum(result.usd) == pytest.approx(result.use.usd)
    assert result.usd[0] == pytest.approx(PRICE * 300 / 3600)
    assert result.usd[1] > 3 * result.usd[0]


def test_the_price_of_a_gpupool_and_of_a_node_decide_what_a_replica_costs() -> None:
    cheap = Pool("cheap", (("team", "a"),), price_per_gpu_hour=1.0)
    nodes = (replace(h100_nodes(4)[0], labels=(("team", "a"),)),)
    trace = poisson_trace(100, 1.0)
    of_pool = replace(FLEET, nodes=nodes, pools=(cheap,), duration_s=3600.0)

    runs = [
        run((served(trace, Schedule([(0, 1)])),), s)
        for s in (of_pool, replace(of_pool, node_prices={"n0": 7.0}))
    ]

    assert [result.usd for result in runs] == pytest.approx([1.0, 7.0])


def test_an_llmdeployment_stays_in_the_gpupools_that_it_names() -> None:
    pool = Pool("mine", (("team", "a"),))
    nodes = tuple(
        replace(node, labels=(("team", team),)) for node, team in zip(h100_nodes(4, 4), "ba", strict=True)
    )
    deployment = served(poisson_trace(100, 1.0), Schedule([(0, 6)]), intent_changes={"pools": ("mine",)})

    result = run((deployment,), replace(FLEET, nodes=nodes, pools=(pool,), duration_s=900.0)).deployments[0]

    assert result.counts[-1].ready == 4


def test_progress_is_reported_a_hundred_times_and_changes_nothing() -> None:
    deployment = served(poisson_trace(2000, 5.0), Schedule([(0, 1), (100, 3)]))
    reports: list[float] = []

    result = run((deployment,), FLEET, reports.append)

    assert result == run((served(poisson_trace(2000, 5.0), Schedule([(0, 1), (100, 3)])),), FLEET)
    assert len(reports) in (99, 100)
    assert reports == sorted(reports)
    assert reports[-1] <= result.duration_s


def test_shapes_at_start_are_those_that_the_planner_takes_and_absent_where_there_is_no_place() -> None:
    fits, not_there = (
        served(Trace(), Schedule([])),
        served(Trace(), Schedule([]), "other", {"allowed_skus": ("L4",), "uid": "uid-other"}),
    )

    assert shapes_at_start((fits, not_there), FLEET) == {fits.intent.uid: shape()}
