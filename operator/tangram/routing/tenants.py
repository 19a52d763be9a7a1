"""What tenants may use, and what they use: shares of a fleet by weight."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.routing.replica import ReplicaLoad
from tangram.routing.request import RoutedRequest

ACTIVE_S = 30.0  # a tenant keeps its share for so long after its last request: streams pause
_SUMS_S = 0.05
_NEW_INTERVAL = 0.05  # weight of a new interval in the mean
# Of the fleet that tenants of negative priority leave free for others.
BATCH_HEADROOM = 0.2


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What a tenant may use; None: no limit of its own."""

    weight: float = 1.0  # its share of the GPU-seconds, over the weights of all active tenants
    priority: int = 0  # higher goes first; negative: batch traffic, which fills what is left
    most_context_tokens: int | None = None  # of one request, prompt and answer
    most_tokens_in_flight: int | None = None
    most_held: int = 200  # requests, of one model
    most_held_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        """Raise `ValueError` for a weight that is no share."""
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight {self.weight} is not a positive number")


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that waits to be sent."""

    request: RoutedRequest
    size_bytes: int
    arrived_at: float
    deadline_at: float = math.inf  # of its first token
    gpu_seconds: float = 0.0  # as predicted, when it arrived and again when it was sent


@dataclass(slots=True, eq=False)
class TenantUse:
    """What a tenant uses of one model."""

    policy: TenantPolicy
    held: deque[HeldRequest] = field(default_factory=deque)
    held_bytes: int = 0
    held_gpu_seconds: float = 0.0
    deficit_s: float = 0.0  # GPU-seconds it was sent less than its share, among tenants that waited
    in_flight: int = 0
    tokens_in_flight: float = 0.0
    occupied_gpus: float = 0.0  # slots, KV blocks and step time of its requests in flight
    prefilling_gpus: float = 0.0  # that its prompts keep from taking others
    used_at: float = -math.inf
    tried_at: float = -math.inf  # its first request was scored, and had to wait
    sent_at: float = -math.inf
    left_waiting: bool = False  # others waited when the last one was sent
    interval_s: float = 0.0  # between requests sent while others waited, mean of the last ones

    def sent(self, now: float) -> None:
        """Note that a request was sent, and has been removed from those that wait."""
        if self.left_waiting:
            self.interval_s += (now - self.sent_at - self.interval_s) * _NEW_INTERVAL
        self.sent_at, self.left_waiting = now, bool(self.held)

    def is_active(self, now: float) -> bool:
        """Whether its share is its own; else others use it."""
        return bool(self.held or self.in_flight) or now - self.used_at < ACTIVE_S

    def remove(self, held: HeldRequest) -> None:
        """Take a request out of those that wait."""
        self.held.remove(held)
        self.held_bytes -= held.size_bytes
        self.held_gpu_seconds = self.held_gpu_seconds - held.gpu_seconds if self.held else 0.0


class TenantShares:
    """Shares of the fleet, from 0 to 1.

    Active tenants of one's priority or a higher one divide the fleet by weight; lower ones do not count.
    Sums are `_SUMS_S` old at most: with thousands of tenants they are not made for each request.
    """

    def __init__(self, tenants: Mapping[str, TenantUse]) -> None:
        self._tenants = tenants
        self._weights: dict[int, float] = {}  # of active tenants by priority
        self._summed_at = -math.inf

    def of(self, use: TenantUse, now: float) -> float:
        """Return the share that a tenant may take."""
        if not 0 <= now - self._summed_at < _SUMS_S:
            self._summed_at, self._weights = now, {}
            for other in self._tenants.values():
                if other.is_active(now):
                    priority = other.policy.priority
                    self._weights[priority] = self._weights.get(priority, 0.0) + other.policy.weight
        policy = use.policy
        weights = sum(weight for priority, weight in self._weights.items() if priority >= policy.priority)
        share = policy.weight / max(weights, policy.weight)
        return share * (1 - BATCH_HEADROOM) if policy.priority < 0 else share


def occupied_gpus(load: ReplicaLoad, context_tokens: float, now: float) -> float:
    """Return the GPUs that one request occupies on a replica while it runs.

    It is the largest of its shares of what ends first: slots, KV blocks, and the step time that the TPOT
    objective leaves.
    """
    rates = load.rates
    shares = [1 / rates.most_running]
    if rates.kv_tokens:
        shares.append(context_tokens / rates.kv_tokens)
    left_s = rates.tpot_objective_s / load.step_ratio.at(now) - rates.step_base_s
    if left_s < math.inf:
        own_s = rates.step_per_running_s + rates.step_per_context_token_s * context_tokens
        shares.append(own_s / left_s if left_s > own_s else 1.0)
    return rates.gpus * min(1.0, max(shares))
