"""Which replica a request is sent to, and what runs where. No I/O: the clock is passed in."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tangram.gateway import answers
from tangram.gateway.answers import GatewayAnswer
from tangram.gateway.published_models import PublishedModel, PublishedModels
from tangram.gateway.request_head import RequestHead, read_head, with_model
from tangram.kube.kinds import Key
from tangram.routing.pick import RoutingRefusal, pick
from tangram.routing.replica import ReplicaLoads, ReplicaRates, StartedRequest
from tangram.routing.request import BLOCK_BYTES, MOST_BLOCKS, RoutedRequest, prefix_blocks

# Of every replica alike: a 7B model on half an H100. They weigh a queue against a cached prefix.
EQUAL_RATES = ReplicaRates(prefill_tokens_per_s=8000.0, step_base_s=0.02, step_per_running_s=0.0005)
MAX_PREFIX_ENTRIES = 1 << 18  # over all models
BEYOND_MAX_REQUEST_S = 30.0  # in which the end of a request that the engine cut is reported


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: the replica, then those that Envoy tries where it cannot connect."""

    addresses: tuple[str, ...]
    body: bytes
    request_number: int  # by which Envoy reports its end


@dataclass(slots=True, eq=False)
class _Running:
    loads: ReplicaLoads
    sent: StartedRequest
    overdue_at: float


@dataclass(slots=True, eq=False)
class RequestRouter:
    """The models, their replicas and the running requests of one picker.

    A cache: a picker that starts anew knows no running request, and is right again when those have ended.
    """

    clock: Callable[[], float]
    models: PublishedModels = field(default_factory=PublishedModels)
    is_synced: bool = False
    _loads: dict[Key, ReplicaLoads] = field(default_factory=dict)
    _running: dict[int, _Running] = field(default_factory=dict)
    _last_number: int = 0

    def update(self, models: PublishedModels, replicas: Mapping[Key, Collection[str]]) -> None:
        """Replace the models and their ready replicas. Replicas that stay keep their loads."""
        keys = {model.key for model in models.by_qualified_name.values()}
        for key in self._loads.keys() - keys:
            del self._loads[key]
        entries = MAX_PREFIX_ENTRIES // max(1, len(keys))
        for key in keys:
            loads = self._loads.setdefault(key, ReplicaLoads(sees_first_tokens=False))
            loads.prefixes.most_entries = entries  # also of models that came when there were fewer
            loads.set_replicas(dict.fromkeys(sorted(replicas.get(key, ())), EQUAL_RATES))
        self.models, self.is_synced = models, True

    def route(self, body: bytes, subset: Collection[str] | None = None) -> Route | GatewayAnswer:
        """Return the route of a request, which is running from now on, or the answer to it."""
        if not self.is_synced:
            return answers.not_ready()
        if isinstance(head := read_head(body), GatewayAnswer):
            return head
        if isinstance(model := self.models.find(head.model), GatewayAnswer):
            return model
        if head.model != model.served_name:
            rewritten = with_model(body, head.model, model.served_name)
            if isinstance(rewritten, GatewayAnswer):
                return rewritten
            body = rewritten
        request = _routed(head, model)
        loads, now = self._loads[model.key], self.clock()
        choice = pick(request, loads, now, subset)
        if isinstance(choice, RoutingRefusal):
            return answers.no_replica(head.model)
        sent = loads.started(choice.address, request, now)
        number = self._note(_Running(loads, sent, now + model.max_request_s + BEYOND_MAX_REQUEST_S))
        others = (score.address for score in choice.runners_up)
        return Route((choice.address, *others), body, number)

    def end(self, number: int) -> None:
        """Note that a request has ended. Unknown numbers are those of a picker before this one."""
        if (running := self._running.pop(number, None)) is not None:
            running.loads.ended(running.sent, self.clock())

    def end_overdue(self) -> None:
        """End the requests that can no longer run: the report of their end was lost."""
        now = self.clock()
        for number in [number for number, request in self._running.items() if request.overdue_at <= now]:
            self.end(number)

    @property
    def running(self) -> int:
        """Number of requests that run, as far as this picker knows."""
        return len(self._running)

    @property
    def replicas(self) -> int:
        """Number of ready replicas of all models."""
        return sum(len(loads.replicas) for loads in self._loads.values())

    def _note(self, running: _Running) -> int:
        self._last_number += 1
        self._running[self._last_number] = running
        return self._last_number


def _routed(head: RequestHead, model: PublishedModel) -> RoutedRequest:
    blocks = prefix_blocks(bytes(head.prompt_json[: BLOCK_BYTES * MOST_BLOCKS]), model.qualified)
    return RoutedRequest(model.qualified, head.prompt_tokens, head.most_tokens, blocks)
