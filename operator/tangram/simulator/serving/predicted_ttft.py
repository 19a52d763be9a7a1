"""The picker of a gateway in a simulation: it hears of first tokens and ends when the next request comes."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.fleet import Shape
from tangram.routing.pick import RoutingRefusal, pick
from tangram.routing.replica import ReplicaLoads, ReplicaRates, StartedRequest
from tangram.routing.request import RoutedRequest
from tangram.simulator.cluster.simulated_pod import SimulatedPod

RatesOfShape = Callable[[Shape], ReplicaRates]


@dataclass(slots=True, eq=False)
class SentToPod:
    """Requests of one pod, by their numbers in its engine."""

    without_token: deque[tuple[int, StartedRequest]] = field(default_factory=deque)  # as they were sent
    in_flight: dict[int, StartedRequest] = field(default_factory=dict)
    ended: int = 0


class PredictedTtftRouter:
    """Picks by `tangram.routing`, over the pods of one LLMDeployment."""

    def __init__(self, rates_of: RatesOfShape) -> None:
        self.rates_of, self.loads = rates_of, ReplicaLoads()
        self._sent: dict[SimulatedPod, SentToPod] = {}

    def pick(self, endpoints: Sequence[SimulatedPod], request: SimulatedRequest, at: float) -> SimulatedPod:
        """Return one of the endpoints, of which there is at least one."""
        if self._sent.keys() != set(endpoints):
            self.loads.set_replicas({pod.name: self.rates_of(pod.shape) for pod in endpoints})
            self._sent = {pod: self._sent.get(pod) or SentToPod() for pod in endpoints}
        for pod, of_pod in self._sent.items():
            if pod.replica is not None and at < pod.lost_at:
                pod.replica.advance(at)
                self._report(pod.replica, of_pod, at)
        choice = pick(_routed(request), self.loads, at)
        if isinstance(choice, RoutingRefusal):
            raise TypeError(f"no endpoint: {choice.cause}")
        return next(pod for pod in endpoints if pod.name == choice.address)

    def sent(self, pod: SimulatedPod, number: int, request: SimulatedRequest, at: float) -> None:
        """Note that a pod took a request, under a number of its engine."""
        started = self.loads.started(pod.name, _routed(request), at)
        self._sent[pod].in_flight[number] = started
        self._sent[pod].without_token.append((number, started))

    def _report(self, replica: ReplicaSimulation, of_pod: SentToPod, at: float) -> None:
        waiting = of_pod.without_token  # prompts are computed in their order
        while waiting and (replica.first[waiting[0][0]] <= at or replica.last[waiting[0][0]] <= at):
            number, started = waiting.popleft()
            if replica.first[number] <= at:  # else it expired
                self.loads.first_token(started, replica.first[number])
        if replica.finished == of_pod.ended:
            return
        for number in [number for number in of_pod.in_flight if replica.last[number] <= at]:
            started = of_pod.in_flight.pop(number)
            self.loads.ended(started, replica.last[number], replica.requests[number].output_tokens)
            of_pod.ended += 1


def _routed(request: SimulatedRequest) -> RoutedRequest:
    return RoutedRequest("", request.input_tokens, request.output_tokens)
