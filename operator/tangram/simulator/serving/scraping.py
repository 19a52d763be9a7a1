"""Scrapes of pods: what their engines did by then, and how busy they were."""

from dataclasses import dataclass
from functools import partial

from tangram.capacity.load.engine_events import EngineEventKind, EngineEvents
from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.simulator.cluster.event_queue import EventQueue
from tangram.simulator.cluster.simulated_pod import SimulatedPod
from tangram.simulator.cluster.start_times import luck
from tangram.simulator.metrics import EnginePage, SimulatedPrometheus

BUSY_SHARE = 0.2  # of the time between two scrapes: an engine that computed for less is idle


@dataclass(slots=True, eq=False)
class ObservedEngine:
    """The engine of one pod and its metrics page."""

    pod: SimulatedPod
    replica: ReplicaSimulation
    engine_events: EngineEvents | None  # None: the engine counts nothing
    page: EnginePage
    request_s: float  # of a request outside of steps, part of its TTFT
    busy_s: float = 0.0  # at the last scrape
    idle_s: float = 0.0


class Scraper:
    """Scrapes each pod every interval, at a phase of its own, from the start of its engine to its end."""

    def __init__(self, prometheus: SimulatedPrometheus, events: EventQueue, seed: int) -> None:
        self.prometheus, self.events, self.seed = prometheus, events, seed
        self.engines: dict[SimulatedPod, ObservedEngine] = {}

    def add(self, pod: SimulatedPod, request_s: float, at: float) -> None:
        """Begin to scrape a pod whose engine has started."""
        if pod.replica is None:
            raise ValueError(f"pod {pod.name} has no engine")
        self.engines[pod] = ObservedEngine(pod, pod.replica, pod.replica.events, EnginePage(), request_s)
        phase = luck(self.seed, "scrape", pod.owner_uid, pod.shape, pod.ordinal)
        self.events.add(at + phase * self.prometheus.scrape_interval_s, partial(self._scrape, pod))

    def arrived(self, pod: SimulatedPod) -> None:
        """Count a request that reached an engine; one that has stopped counts nothing."""
        if pod.lost_at == float("inf"):
            self.engines[pod].page.arrived()

    def remove(self, pod: SimulatedPod, at: float) -> None:
        """End the scrapes of a pod."""
        if pod in self.engines:
            self.prometheus.forget(pod.name, at)

    def _scrape(self, pod: SimulatedPod, at: float) -> None:
        if at >= pod.gone_at:
            return
        if at >= pod.lost_at:
            self.prometheus.failed_scrape(pod.name, at)
        else:
            engine = self.engines[pod]
            engine.replica.advance(at)
            self._account(engine)
            if engine.engine_events is not None:
                _update(engine, engine.engine_events, at)
                self.prometheus.scrape(pod.name, engine.page, at)
        self.events.add(at + self.prometheus.scrape_interval_s, partial(self._scrape, pod))

    def _account(self, engine: ObservedEngine) -> None:
        busy_s = engine.replica.prefill_time + engine.replica.decode_time
        if busy_s - engine.busy_s < BUSY_SHARE * self.prometheus.scrape_interval_s:
            engine.idle_s += self.prometheus.scrape_interval_s
        engine.busy_s = busy_s


def _update(engine: ObservedEngine, events: EngineEvents, at: float) -> None:
    """Count on the page what happened up to `at`."""
    replica, page, request_s = engine.replica, engine.page, engine.request_s
    for event_at, kind, number, seconds in events.until(at):
        if kind is EngineEventKind.TOKEN_GAPS:
            page.token_gaps(number, seconds)
            continue
        request, arrival = replica.requests[number], replica.arrival[number]
        if kind is EngineEventKind.FIRST_TOKEN:
            page.first_token(event_at - arrival + request_s, request.input_tokens)
            continue
        gaps = request.output_tokens - 1
        tpot = (event_at - replica.first[number]) / gaps if gaps else 0.0
        e2e = event_at - arrival + request_s
        page.finished(tpot, request.input_tokens, request.output_tokens, e2e)
    gauges = replica.gauges(at)
    page.running, page.waiting = float(gauges.running), float(gauges.waiting)
    page.kv_usage = gauges.kv_usage
