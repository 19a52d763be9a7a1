"""The metrics that the operator exports about itself and its LLMDeployments (prefix `tangram_`)."""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from tangram.fleet import Decision, Intent, Node, ParsedIntent, Workload
from tangram.kube.kinds import Object
from tangram.scaling.outlook.load_outlook import ReplicaNeed
from tangram.shell.decide.recommendation_worker import RecommendationResult

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PER_DEPLOYMENT = ("namespace", "llmdeployment")
_WORKER_FAILURES = ("deadline", "died", "raised")  # of a planning process


class OperatorMetrics:
    """One registry per operator, so that tests may have several."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=registry)
        per_deployment = partial(Gauge, labelnames=_PER_DEPLOYMENT, registry=registry)
        per_state = partial(Gauge, labelnames=("state",), registry=registry)
        self.api_requests = counter(
            "tangram_api_requests_total", "Requests to the API server.", ("verb", "kind", "code")
        )
        self.plan_seconds = seconds("tangram_plan_seconds", "Time to make one plan, in seconds.")
        self.apply_seconds = seconds(
            "tangram_apply_seconds", "Time to write the changes of one plan, in seconds."
        )
        self.plan_failures = counter(
            "tangram_plan_failures_total", "Planning rounds that failed, by cause.", ("why",)
        )
        self.loop_errors = counter(
            "tangram_loop_errors_total",
            "Unexpected errors (bugs of the operator), by the step of the round.",
            ("where",),
        )
        self.drift = counter(
            "tangram_mirror_drift_total",
            "Objects in which the operator's copy differed from the API server.",
            ("kind",),
        )
        self.intake_restarts = counter(
            "tangram_intake_restarts_total",
            "Restarts of kopf after a fault, for example of one of its watches.",
        )
        self.admission_restarts = counter(
            "tangram_admission_restarts_total", "Restarts of the webhook's kopf after a fault."
        )
        self.admission_reviews = counter(
            "tangram_admission_reviews_total",
            "Objects reviewed at `kubectl apply`: admitted, refused, late (admitted without a prediction), "
            "busy or invalid (not reviewed), failed (a bug of the operator).",
            ("outcome",),
        )
        self.admission_certificate = gauge(
            "tangram_admission_certificate_expires_seconds",
            "When the webhook's certificate expires, in seconds since the epoch; NaN without one.",
        )
        self.admission_certificate.set(float("nan"))
        self.overdue = counter(
            "tangram_expectations_overdue_total",
            "Writes of the operator that its watches did not show in time.",
        )
        self.last_plan = gauge(
            "tangram_seconds_since_last_plan", "Seconds since the last plan; NaN before the first one."
        )
        self.last_fresh_metric = per_deployment(
            "tangram_seconds_since_last_fresh_metric",
            "Age of the newest metrics, from Prometheus or the engines; before the first ones, seconds since "
            "they are due: while it may scale and has a ready replica. Only the leader sets it.",
        )
        self.watch_age = gauge(
            "tangram_watch_age_seconds",
            "Seconds since the API server confirmed the operator's copy of a kind.",
            ("kind",),
        )
        self.leading = gauge("tangram_lease_held", "1 while this operator holds the Lease and may write.")
        self.desired = per_deployment(
            "tangram_desired_replicas", "Replicas that the load needs, within the limits of spec.scaling."
        )
        self.recommended = per_deployment(
            "tangram_recommended_replicas",
            "Replicas that the scaling law recommends, also where spec.replicas sets another number.",
        )
        self.spare = per_deployment(
            "tangram_spare_replicas",
            "Replicas that the forecast load needs beyond those that the expected load alone needs.",
        )
        self.forecast = gauge(
            "tangram_forecast_requests_per_second",
            "Forecast load at the time when a replica ordered now is ready: expected, and exceeded once in "
            "forty times (upper).",
            (*_PER_DEPLOYMENT, "bound"),
        )
        self.replica_rate = per_deployment(
            "tangram_replica_requests_per_second",
            "Load that one replica carries within the objectives: as predicted, corrected by measurements.",
        )
        self.placed = per_deployment(
            "tangram_placed_replicas",
            "Replicas that run or have a GPU or slice, on any node; at most the desired ones.",
        )
        self.ready = per_deployment("tangram_ready_replicas", "Replicas that take requests.")
        self.attainment = gauge(
            "tangram_slo_attainment_ratio",
            "Measured share of requests within the objective.",
            (*_PER_DEPLOYMENT, "objective"),
        )
        self.objective = gauge(
            "tangram_slo_objective_ratio",
            "Share of requests that must be within the objective.",
            (*_PER_DEPLOYMENT, "objective"),
        )
        self.dollars = per_deployment(
            "tangram_cost_dollars_per_hour",
            "US dollars per hour of the replicas that are placed or run; absent where a price is not known.",
        )
        self.condition = gauge(
            "tangram_condition",
            "1: the LLMDeployment has the condition, with this status and reason.",
            (*_PER_DEPLOYMENT, "type", "status", "reason"),
        )
        self.nodes_left_out = gauge(
            "tangram_gpu_nodes_left_out",
            "GPU nodes with devices that are left out of plans, by reason.",
            ("reason",),
        )
        # Of the current FleetPlan. Only the leader sets them.
        self.plan_cost = per_state(
            "tangram_fleet_plan_cost_dollars_per_hour", "Cost of the fleet under the current FleetPlan."
        )
        self.plan_savings = per_state(
            "tangram_fleet_plan_savings_dollars_per_hour",
            "Cost of the fleet as it is minus its cost under the current FleetPlan.",
        )
        self.plan_gap = per_state(
            "tangram_fleet_plan_gap_ratio",
            "Upper bound of the relative distance of the plan from the optimum.",
        )
        self.plan_unmet = per_state(
            "tangram_fleet_plan_unmet_llmdeployments",
            "LLMDeployments with fewer replicas than they need under the current FleetPlan.",
        )
        self.plan_solve = per_state(
            "tangram_fleet_plan_solve_seconds", "Time to compute the current FleetPlan, in seconds."
        )
        self.advice_seconds = seconds(
            "tangram_advice_seconds",
            "Time to plan the whole fleet, in seconds.",
            buckets=(*_SECONDS, 60.0, 120.0),
        )
        self.advice_failures = counter(
            "tangram_advice_failures_total", "Plans of the whole fleet that failed, by cause.", ("why",)
        )
        for why in _WORKER_FAILURES:  # rate() and increase() do not count the step from absent to 1
            self.plan_failures.labels(why)
            self.advice_failures.labels(why)

    def count_request(self, verb: str, plural: str, code: str) -> None:
        """Count one request to the API server."""
        self.api_requests.labels(verb, plural, code).inc()

    def count_drift(self, plural: str, count: int) -> None:
        """Count objects in which a mirror differed from the API server."""
        self.drift.labels(plural).inc(count)

    def clear_fleet(self) -> None:
        """Drop the gauges per LLMDeployment: only the leader has current values."""
        for gauge in (
            self.desired,
            self.recommended,
            self.spare,
            self.forecast,
            self.replica_rate,
            self.placed,
            self.ready,
            self.attainment,
            self.objective,
            self.dollars,
            self.condition,
        ):
            gauge.clear()
        self.nodes_left_out.clear()

    def show_metric_ages(self, ages: Mapping[tuple[str, str], float]) -> None:
        """Set the ages of metrics, by namespace and name of the LLMDeployments of which some are due."""
        self.last_fresh_metric.clear()
        for names, seconds in ages.items():
            self.last_fresh_metric.labels(*names).set(seconds)

    def show_nodes(self, nodes: Iterable[Node]) -> None:
        """Set the number of GPU nodes with devices that are left out, by reason."""
        self.nodes_left_out.clear()
        reasons = Counts(reason for node in nodes for reason in {device.reason for device in node.left_out})
        for reason, count in reasons.items():
            self.nodes_left_out.labels(str(reason)).set(count)

    def clear_fleet_plan(self) -> None:
        """Drop the gauges of the FleetPlan: there is no current one."""
        for gauge in (self.plan_cost, self.plan_savings, self.plan_gap, self.plan_unmet, self.plan_solve):
            gauge.clear()

    def show_fleet_plan(self, result: RecommendationResult) -> None:
        """Set the gauges of the current FleetPlan; an empty result has none."""
        self.clear_fleet_plan()
        if result.empty:
            return
        spec, figures, state = result.spec, result.figures, result.state
        self.plan_cost.labels(state).set(float(spec["costPerHour"]))
        self.plan_savings.labels(state).set(float(figures["savesPerHour"]))
        self.plan_gap.labels(state).set(float(str(spec["gap"]).strip("<%")) / 100)
        self.plan_unmet.labels(state).set(spec["unmet"])
        self.plan_solve.labels(state).set(float(figures["solveSeconds"]))

    def show(
        self,
        intent: ParsedIntent,
        decision: Decision,
        status: Object,
        ready: int,
        need: ReplicaNeed | None = None,
    ) -> None:
        """Set the gauges of one LLMDeployment from the decision and the status of one round. `need`: of the
        forecast load, None without a forecast. With an invalid spec its replicas still run.
        """
        labels = (intent.namespace, intent.name)
        self.desired.labels(*labels).set(decision.desired)
        self.ready.labels(*labels).set(ready)
        for condition in status.get("conditions", ()):
            self.condition.labels(*labels, *(condition[key] for key in ("type", "status", "reason"))).set(1)
        if not isinstance(intent, Intent) and not decision.running:
            return
        scaling = status.get("scaling") or {}
        self.recommended.labels(*labels).set(scaling.get("recommendedReplicas", decision.desired))
        if need is not None:
            self.spare.labels(*labels).set(need.spare)
            self.forecast.labels(*labels, "expected").set(need.load.expected)
            self.forecast.labels(*labels, "upper").set(need.load.upper)
            self.replica_rate.labels(*labels).set(need.replica_rate)
        self.placed.labels(*labels).set(decision.placed_of_all_shapes)
        if decision.cost_per_hour is not None:
            self.dollars.labels(*labels).set(decision.cost_per_hour)
        if not isinstance(intent, Intent):
            return
        slo = status.get("slo") or {}
        for name, objective in (("ttft", intent.ttft), ("tpot", intent.tpot)):
            share = slo.get(f"{name}Attainment")
            if share is not None and objective is not None:
                self.attainment.labels(*labels, name).set(float(share))
                self.objective.labels(*labels, name).set(objective.percentile / 100)


def ready_replicas(workloads: Iterable[Workload]) -> dict[str, int]:
    """Return the number of ready replicas of each LLMDeployment, by UID."""
    ready = Counts[str]()
    for workload in workloads:
        ready[workload.owner_uid] += workload.ready
    return dict(ready)
