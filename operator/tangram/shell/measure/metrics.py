"""The operator's own metrics, prefix `tangram_`."""

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from tangram.fleet import Decision, Intent, Node, Workload
from tangram.shell.decide.recommending import Advised
from tangram.shell.objects.kinds import Object

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ONE = ("namespace", "llmdeployment")


class OperatorMetrics:
    """One registry per operator, so that tests may have several."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self.api_requests = Counter(
            "tangram_api_requests_total",
            "Requests to the API server.",
            ("verb", "kind", "code"),
            registry=registry,
        )
        self.plan_seconds = Histogram(
            "tangram_plan_seconds", "Time from snapshot to plan.", buckets=_SECONDS, registry=registry
        )
        self.apply_seconds = Histogram(
            "tangram_apply_seconds", "Time to perform a plan.", buckets=_SECONDS, registry=registry
        )
        self.plan_failures = Counter(
            "tangram_plan_failures_total", "Plans that did not come out.", ("why",), registry=registry
        )
        self.loop_errors = Counter(
            "tangram_loop_errors_total",
            "Errors of ours that one round survived.",
            ("where",),
            registry=registry,
        )
        self.drift = Counter(
            "tangram_mirror_drift_total",
            "Objects in which a mirror was found wrong.",
            ("kind",),
            registry=registry,
        )
        self.overdue = Counter(
            "tangram_expectations_overdue_total",
            "Own writes that a mirror did not show in time.",
            registry=registry,
        )
        self.last_plan = Gauge(
            "tangram_seconds_since_last_plan",
            "Age of the plan in force; NaN before the first.",
            registry=registry,
        )
        self.last_fresh_metric = Gauge(
            "tangram_seconds_since_last_fresh_metric",
            "Age of the newest sample from Prometheus.",
            registry=registry,
        )
        self.watch_age = Gauge(
            "tangram_watch_age_seconds",
            "Since the API server last confirmed a mirror.",
            ("kind",),
            registry=registry,
        )
        self.leading = Gauge("tangram_lease_held", "1 while this operator may write.", registry=registry)
        self.desired = Gauge("tangram_desired_replicas", "Replicas wanted.", _ONE, registry=registry)
        self.placed = Gauge("tangram_placed_replicas", "Replicas that have room.", _ONE, registry=registry)
        self.ready = Gauge("tangram_ready_replicas", "Replicas that serve.", _ONE, registry=registry)
        self.attainment = Gauge(
            "tangram_slo_attainment_ratio",
            "Share of requests within the objective.",
            (*_ONE, "objective"),
            registry=registry,
        )
        self.objective = Gauge(
            "tangram_slo_objective_ratio",
            "Share of requests that the objective asks for.",
            (*_ONE, "objective"),
            registry=registry,
        )
        self.dollars = Gauge(
            "tangram_cost_dollars_per_hour", "Price of the placed replicas.", _ONE, registry=registry
        )
        self.nodes_left_out = Gauge(
            "tangram_gpu_nodes_left_out",
            "GPU nodes with devices that no new replica is given, by reason.",
            ("reason",),
            registry=registry,
        )
        self._fleet_plan(registry)

    def _fleet_plan(self, registry: CollectorRegistry) -> None:
        """Of the plan of the whole fleet that counts now. Only the leader knows one."""

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(name, what, ("state",), registry=registry)

        self.plan_cost = gauge("tangram_fleet_plan_cost_dollars_per_hour", "Cost of the fleet as planned.")
        self.plan_savings = gauge("tangram_fleet_plan_savings_dollars_per_hour", "What it is cheaper by.")
        self.plan_gap = gauge("tangram_fleet_plan_gap_ratio", "How far from the best it may be at most.")
        self.plan_unmet = gauge("tangram_fleet_plan_unmet_llmdeployments", "Who would go short.")
        self.plan_solve = gauge("tangram_fleet_plan_solve_seconds", "How long it took to decide.")
        self.advice_seconds = Histogram(
            "tangram_advice_seconds",
            "Time to think about the whole fleet.",
            buckets=(*_SECONDS, 60.0, 120.0),
            registry=registry,
        )
        self.advice_failures = Counter(
            "tangram_advice_failures_total",
            "Recommendations that did not come out.",
            ("why",),
            registry=registry,
        )

    def count_request(self, verb: str, plural: str, code: str) -> None:
        """Count one request to the API server."""
        self.api_requests.labels(verb, plural, code).inc()

    def count_drift(self, plural: str, count: int) -> None:
        """Count objects in which a mirror was wrong."""
        self.drift.labels(plural).inc(count)

    def clear_fleet(self) -> None:
        """Drop the gauges per LLMDeployment: an operator that does not lead knows nothing of them."""
        for gauge in (self.desired, self.placed, self.ready, self.attainment, self.objective, self.dollars):
            gauge.clear()
        self.nodes_left_out.clear()

    def show_nodes(self, nodes: Iterable[Node]) -> None:
        """Set how many GPU nodes have devices that are left out."""
        self.nodes_left_out.clear()
        reasons = Counts(reason for node in nodes for reason in {each.reason for each in node.left_out})
        for reason, count in reasons.items():
            self.nodes_left_out.labels(str(reason)).set(count)

    def clear_fleet_plan(self) -> None:
        """Drop the gauges of the plan of the whole fleet: there is none that counts."""
        for gauge in (self.plan_cost, self.plan_savings, self.plan_gap, self.plan_unmet, self.plan_solve):
            gauge.clear()

    def show_fleet_plan(self, advised: Advised) -> None:
        """Set the gauges of the plan of the whole fleet."""
        self.clear_fleet_plan()
        spec, figures, state = advised.spec, advised.figures, advised.state
        self.plan_cost.labels(state).set(float(spec["costPerHour"]))
        self.plan_savings.labels(state).set(float(figures["savesPerHour"]))
        self.plan_gap.labels(state).set(float(str(spec["gap"]).strip("<%")) / 100)
        self.plan_unmet.labels(state).set(spec["unmet"])
        self.plan_solve.labels(state).set(float(figures["solveSeconds"]))

    def show(self, intent: Intent, decision: Decision, status: Object, ready: int) -> None:
        """Set the gauges of one LLMDeployment from one round: its decision and its status."""
        labels = (intent.namespace, intent.name)
        self.desired.labels(*labels).set(decision.desired)
        self.placed.labels(*labels).set(decision.placed)
        self.ready.labels(*labels).set(ready)
        self.dollars.labels(*labels).set(decision.price_per_hour)
        slo = status.get("slo") or {}
        for name, objective in (("ttft", intent.ttft), ("tpot", intent.tpot)):
            share = slo.get(f"{name}Attainment")
            if share is not None and objective is not None:
                self.attainment.labels(*labels, name).set(float(share))
                self.objective.labels(*labels, name).set(objective.percentile / 100)


def ready_replicas(workloads: Iterable[Workload]) -> dict[str, int]:
    """Return how many replicas of each LLMDeployment are ready, by uid."""
    found: dict[str, int] = {}
    for workload in workloads:
        found[workload.owner_uid] = found.get(workload.owner_uid, 0) + workload.ready
    return found
