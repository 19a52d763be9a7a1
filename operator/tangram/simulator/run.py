"""One run: requests, scrapes, control rounds and pods of a fleet in the order of time."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import merge
from operator import itemgetter

from tangram.capacity.load.engine_events import EngineEvents
from tangram.capacity.load.prefix_cache import PrefixCache
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.fleet import CheckpointFacts, Claim, Intent, Node, Pool, Shape, claiming_pools, pool_price
from tangram.routing.rates import replica_rates
from tangram.routing.replica import ReplicaRates
from tangram.simulator.cluster.cluster import ClusterTimes, SimulatedCluster
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.event_queue import EventQueue
from tangram.simulator.cluster.faults import InjectedFaults
from tangram.simulator.cluster.simulated_pod import SimulatedPod
from tangram.simulator.cluster.start_times import StartTimes
from tangram.simulator.control.control_loop import ControlLoop, ScaledDeployment
from tangram.simulator.control.fleet_planner import FleetPlanner
from tangram.simulator.controllers import Controller, StaticReplicas
from tangram.simulator.metrics import SimulatedPrometheus
from tangram.simulator.result.attainment import WINDOW_S, attainment, violated_periods
from tangram.simulator.result.device_use import DeviceUse, device_use, usd_by_window
from tangram.simulator.result.oscillation import reversals
from tangram.simulator.result.run_result import DAY_S, DeploymentResult, RunResult
from tangram.simulator.serving.gateway import Gateway, Router
from tangram.simulator.serving.scraping import Scraper
from tangram.simulator.traffic.trace import Trace

_REPORTS = 100  # of progress in a run


@dataclass(frozen=True, slots=True)
class SimulatedLLMDeployment:
    """One LLMDeployment: what it serves, its requests, its scaling law and how its pods start."""

    intent: Intent
    facts: CheckpointFacts
    trace: Trace
    controller: Controller  # new for each run: it has a memory
    start_times: StartTimes = field(default_factory=StartTimes)
    initial_replicas: int | None = None  # that serve at instant 0; None: its minimum


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The fleet, and what is not about one LLMDeployment. `seed` is for start times, phases and routing."""

    nodes: tuple[Node, ...]
    foreign_claims: tuple[Claim, ...] = ()
    pools: tuple[Pool, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)  # USD per GPU-hour by SKU, over the catalog's
    node_prices: Mapping[str, float] = field(default_factory=dict)  # by node, over those of GPUPools
    seed: int = 0
    duration_s: float | None = None  # None: until the last request of all traces
    round_s: float = 15.0
    scrape_interval_s: float = 15.0
    router: Router = Router.RANDOM
    gateway_wait_s: float = 60.0  # of requests while no pod is ready; 0: they are refused
    prefix_caching: bool = False
    has_metrics: bool = True  # False: engines count nothing, for scaling laws that read no metrics
    times: ClusterTimes = field(default_factory=ClusterTimes)
    faults: InjectedFaults = field(default_factory=InjectedFaults)


def run(
    deployments: tuple[SimulatedLLMDeployment, ...],
    settings: SimulationSettings,
    progress: Callable[[float], None] | None = None,
) -> RunResult:
    """Simulate the fleet. Equal inputs give equal results. Raises `InputError` for what cannot be served.

    `progress` is called with the simulated time, a hundred times in a run.
    """
    return _Run(deployments, settings, progress).result()


def shapes_at_start(
    deployments: tuple[SimulatedLLMDeployment, ...], settings: SimulationSettings
) -> Mapping[str, Shape]:
    """Return the shape of the first replicas of each LLMDeployment, by its uid.

    Where the fleet has no place for a replica, it is absent.
    """
    held = tuple(replace(deployment, controller=StaticReplicas(0)) for deployment in deployments)
    begun = _Run(held, settings)
    begun.control.begin()
    shapes = dict[str, Counter[Shape]]()
    for pod in begun.cluster.pods:
        if pod.holds_devices:
            shapes.setdefault(pod.owner_uid, Counter())[pod.shape] += 1
    return {uid: counts.most_common(1)[0][0] for uid, counts in shapes.items()}


class _Run:
    """The parts of one run, and what connects them."""

    def __init__(
        self,
        deployments: tuple[SimulatedLLMDeployment, ...],
        settings: SimulationSettings,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.deployments, self.settings, self.progress = deployments, settings, progress
        intents = tuple(deployment.intent for deployment in deployments)
        if len({intent.uid for intent in intents}) < len(intents):
            raise InputError("LLMDeployments", "have the same uid")
        self.by_uid = {deployment.intent.uid: deployment for deployment in deployments}
        self.end_s = settings.duration_s or max((d.trace.duration_s for d in deployments), default=0.0)
        self.prices = Prices(dict(settings.prices))
        self.node_prices = _node_prices(settings)
        self.engines = EngineSetups(((d.intent, d.facts) for d in deployments), self.prices)
        self.events = EventQueue()
        self.prometheus = SimulatedPrometheus(settings.scrape_interval_s)
        for outage in settings.faults.outages:
            self.prometheus.outage(outage.begin_s, outage.end_s)
        self.scraper = Scraper(self.prometheus, self.events, settings.seed)
        self.cluster = SimulatedCluster(
            settings.nodes,
            intents,
            self.events,
            self,
            self._engine,
            {uid: deployment.start_times for uid, deployment in self.by_uid.items()},
            settings.seed,
            foreign_claims=settings.foreign_claims,
            faults=settings.faults,
            times=settings.times,
        )
        self.gateways = {intent.uid: self._gateway(intent, place) for place, intent in enumerate(intents)}
        self.scaled = {
            deployment.intent.uid: ScaledDeployment(
                deployment.intent, deployment.controller, _initial_replicas(deployment)
            )
            for deployment in deployments
        }
        facts = {uid: deployment.facts for uid, deployment in self.by_uid.items()}
        self.planner = FleetPlanner(intents, facts, settings.prices, settings.pools)
        self.control = ControlLoop(
            self.scaled, self.cluster, self.planner, self.prometheus, self.events, settings.round_s
        )

    # -- what the cluster calls ----------------------------------------------------------------------------

    def engine_started(self, pod: SimulatedPod, at: float) -> None:
        """Scrape the pod."""
        self.scraper.add(pod, self.engines.setup(pod.owner_uid, pod.shape).request_s, at)
        self.scaled[pod.owner_uid].pods.append(pod)

    def endpoint_added(self, pod: SimulatedPod, at: float) -> None:
        """Send it the requests that wait for a pod."""
        self.gateways[pod.owner_uid].flush(at)

    def pod_gone(self, pod: SimulatedPod, at: float) -> None:
        """End its scrapes."""
        self.scraper.remove(pod, at)

    def _engine(self, owner_uid: str, shape: Shape) -> ReplicaSimulation:
        setup = self.engines.setup(owner_uid, shape)
        cache = PrefixCache(setup.limits.kv_tokens) if self.settings.prefix_caching else None
        longest_s = float(self.by_uid[owner_uid].intent.max_request_s)
        events = EngineEvents() if self.settings.has_metrics else None
        return ReplicaSimulation(setup.steps, setup.limits, setup.times, events, cache, max_wait_s=longest_s)

    def _gateway(self, intent: Intent, place: int) -> Gateway:
        settings = self.settings
        return Gateway(
            self.cluster.endpoints[intent.uid],
            self.scraper.arrived,
            self.engines.max_model_len(intent.uid),
            settings.router,
            settings.gateway_wait_s,
            settings.seed * 1_000_003 + place,
            partial(self._rates, intent),
        )

    def _rates(self, intent: Intent, shape: Shape) -> ReplicaRates:
        setup, tpot = self.engines.setup(intent.uid, shape), intent.objectives.tpot
        objective_s = math.inf if tpot is None else tpot.seconds
        return replica_rates(setup.steps, setup.limits, tpot_objective_s=objective_s)

    # -- time ----------------------------------------------------------------------------------------------

    def result(self) -> RunResult:
        """Let time pass, let running requests finish, and judge."""
        self.control.begin()
        if self.progress is not None and self.end_s:
            self.events.add(self.end_s / _REPORTS, self._report)
        self._pass_time()
        for gateway in self.gateways.values():
            gateway.close()
        for pod in self.cluster.pods:
            if pod.replica is not None and math.isinf(pod.lost_at):
                pod.replica.drain()
        results = tuple(self._deployment_result(deployment) for deployment in self.deployments)
        faults = tuple(sorted({fault.error for fault in self.planner.faults}))
        return RunResult(self.end_s, results, self.planner.computed, faults)

    def _pass_time(self) -> None:
        events, end_s = self.events, self.end_s
        arrivals = merge(
            *(_arrivals(place, deployment.trace) for place, deployment in enumerate(self.deployments)),
            key=itemgetter(0),
        )
        gateways = [self.gateways[deployment.intent.uid] for deployment in self.deployments]
        for at, place, request in arrivals:
            if at > end_s:
                break
            while events.next_at <= at:
                events.call_next()
            gateways[place].accept(request, at)
        while events.next_at <= end_s:
            events.call_next()

    def _report(self, at: float) -> None:
        if self.progress is not None:
            self.progress(at)
            self.events.add(at + self.end_s / _REPORTS, self._report)

    # -- figures -------------------------------------------------------------------------------------------

    def _deployment_result(self, deployment: SimulatedLLMDeployment) -> DeploymentResult:
        intent, uid = deployment.intent, deployment.intent.uid
        scaled = self.scaled[uid]
        pods = [pod for pod in self.cluster.pods if pod.owner_uid == uid]
        judged = attainment(
            self.gateways[uid].sent,
            intent,
            lambda shape: self.engines.setup(uid, shape),
            pods[0].shape if pods else None,
            self.end_s,
        )
        shapes = dict.fromkeys(pod.shape for pod in pods if pod.scheduled_at < self.end_s)
        days = self.end_s / DAY_S
        return DeploymentResult(
            name=intent.name,
            attainment=judged,
            use=self._use(pods),
            counts=tuple(scaled.counts),
            violated=violated_periods(judged.windows, intent.objectives.strictest_percentile / 100),
            reversals_per_day=reversals(scaled.counts) / days if days else 0.0,
            blind_actions=scaled.blind_actions,
            blind_scale_downs=scaled.blind_scale_downs,
            usd=usd_by_window(pods, self._usd_per_hour, self.end_s, WINDOW_S),
            shape_uses=tuple(
                (shape, self._use([pod for pod in pods if pod.shape == shape])) for shape in shapes
            ),
        )

    def _use(self, pods: list[SimulatedPod]) -> DeviceUse:
        return device_use(pods, self._idle_s, self._usd_per_hour, self.end_s)

    def _idle_s(self, pod: SimulatedPod) -> float:
        engine = self.scraper.engines.get(pod)
        return engine.idle_s if engine is not None else 0.0

    def _usd_per_hour(self, pod: SimulatedPod) -> float:
        price = self.prices.replica_hour(*pod.shape.key, pool_price=self.node_prices.get(pod.node))
        return self.prices.required_replica_hour(*pod.shape.key) if price is None else price


def _arrivals(place: int, trace: Trace) -> Iterator[tuple[float, int, SimulatedRequest]]:
    """Yield when the requests of the LLMDeployment at a place arrive, the place and the request."""
    for request in trace.requests:
        yield request.arrival_s, place, request


def _node_prices(settings: SimulationSettings) -> Mapping[str, float]:
    """Return USD per GPU-hour by node, where its GPUPools or the settings have one."""
    pools = {pool.name: pool for pool in settings.pools}
    prices = dict[str, float]()
    for node in settings.nodes:
        price = pool_price(claiming_pools(node, settings.pools), pools)
        if price is not None:
            prices[node.name] = price
    return prices | dict(settings.node_prices)


def _initial_replicas(deployment: SimulatedLLMDeployment) -> int:
    least, most = deployment.intent.min_replicas, deployment.intent.max_replicas
    initial = deployment.initial_replicas
    return least if initial is None else min(max(initial, least), most)
