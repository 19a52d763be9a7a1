"""The way of requests to pods: a router, and a queue for requests that come while no pod is ready."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tangram.capacity.load.traffic import SimulatedRequest, uniforms
from tangram.simulator.cluster.simulated_pod import SimulatedPod
from tangram.simulator.serving.predicted_ttft import PredictedTtftRouter, RatesOfShape


class Router(StrEnum):
    """How a pod is picked."""

    RANDOM = "random"  # as kube-proxy does
    ROUND_ROBIN = "round robin"
    LEAST_OUTSTANDING = "least outstanding"  # of requests that were sent and have not finished
    PREDICTED_TTFT = "predicted ttft"  # as the gateway does (`tangram.routing`)


class SendFailure(StrEnum):
    """Why a request reached no engine."""

    NO_READY_POD = "no ready pod"
    TIMED_OUT = "timed out at the gateway"
    TOO_LONG = "too long"  # for the model, or for the KV cache of a replica


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request and where it went."""

    request: SimulatedRequest
    pod: SimulatedPod | None = None  # None: it waits at the gateway, or reached no engine
    number: int = -1  # in the pod's replica
    failure: SendFailure | None = None


class Gateway:
    """Sends the requests of one LLMDeployment to its endpoints.

    While there is none, requests wait for at most `max_wait_s`; 0: they are refused at once.
    """

    def __init__(
        self,
        endpoints: list[SimulatedPod],
        arrived: Callable[[SimulatedPod], None],
        max_tokens: int,
        router: Router,
        max_wait_s: float,
        seed: int,
        rates_of: RatesOfShape | None = None,
    ) -> None:
        self.endpoints, self.arrived, self.max_tokens = endpoints, arrived, max_tokens
        self.router, self.max_wait_s = router, max_wait_s
        self.sent: list[SentRequest] = []
        self.waiting: deque[SentRequest] = deque()
        self._random: Iterator[float] = uniforms(seed)
        self._turn = 0
        self._predicted: PredictedTtftRouter | None = None
        if router is Router.PREDICTED_TTFT:
            if rates_of is None:
                raise ValueError("predictions need the rates of each shape")
            self._predicted = PredictedTtftRouter(rates_of)

    def accept(self, request: SimulatedRequest, at: float) -> None:
        """Send a request that arrives now."""
        sent = SentRequest(request)
        self.sent.append(sent)
        if request.input_tokens + request.output_tokens > self.max_tokens:
            sent.failure = SendFailure.TOO_LONG
        elif self.endpoints:
            self._send(sent, at)
        elif self.max_wait_s > 0:
            self.waiting.append(sent)
        else:
            sent.failure = SendFailure.NO_READY_POD

    def flush(self, at: float) -> None:
        """Send the requests that wait, now that there is an endpoint."""
        while self.waiting and self.endpoints:
            sent = self.waiting.popleft()
            if at - sent.request.arrival_s > self.max_wait_s:
                sent.failure = SendFailure.TIMED_OUT
            else:
                self._send(sent, at)

    def close(self) -> None:
        """End the requests that still wait."""
        for sent in self.waiting:
            sent.failure = SendFailure.TIMED_OUT
        self.waiting.clear()

    def _send(self, sent: SentRequest, at: float) -> None:
        pod = self._pick(sent.request, at)
        if pod.replica is None:
            raise ValueError(f"pod {pod.name} is an endpoint without an engine")
        try:
            sent.number = pod.replica.send(sent.request, at)
        except ValueError:
            sent.failure = SendFailure.TOO_LONG
        else:
            sent.pod = pod
            self.arrived(pod)  # a request that is too long for the replica is no load
            if self._predicted is not None:
                self._predicted.sent(pod, sent.number, sent.request, at)

    def _pick(self, request: SimulatedRequest, at: float) -> SimulatedPod:
        endpoints = self.endpoints
        if self._predicted is not None:
            return self._predicted.pick(endpoints, request, at)
        if self.router is Router.RANDOM:
            return endpoints[int(next(self._random) * len(endpoints))]
        if self.router is Router.ROUND_ROBIN:
            self._turn += 1
            return endpoints[self._turn % len(endpoints)]
        for pod in endpoints:
            if pod.replica is not None and at < pod.lost_at:
                pod.replica.advance(at)
        return min(endpoints, key=_outstanding)


def _outstanding(pod: SimulatedPod) -> int:
    return pod.outstanding
