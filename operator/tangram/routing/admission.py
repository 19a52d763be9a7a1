"""Which request is sent next, which waits, and which is shed: tenants share GPU-seconds by weight.

Engines are first come, first served: what they queue, no policy orders any more. So requests wait here as
soon as the replica that they would go to has a queue of `QUEUE_S`, and leave by weighted deficits: each
GPU-second that one tenant is sent is a deficit of all that wait, by their shares, and the largest deficit is
served next. It is deficit round robin whose rounds are as short as can be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter

from tangram.routing.pick import RefusalCause, ReplicaChoice, RoutingRefusal, pick
from tangram.routing.replica import ReplicaLoad, ReplicaLoads, StartedRequest
from tangram.routing.tenants import HeldRequest, TenantPolicy, TenantShares, TenantUse, occupied_gpus

QUEUE_S = 0.1  # predicted prefill that a replica may have before it: enough that it never idles
MOST_TENANTS = 10_000  # that are remembered; the ones that used nothing for longest go first
MOST_HELD, MOST_HELD_BYTES = 2_000, 256 << 20  # of all tenants
_ROUNDED = 1e-6  # GPUs: sums of shares are rounded
# Tenants whose first requests are scored in one call: those with the largest deficits, and as many in turn,
# so that the first ones block none. It bounds the call.
_MOST_TRIED = 8
_MOST_DEFICIT_S = 30.0  # what a tenant has to its credit or owes is forgotten beyond


@dataclass(slots=True, eq=False)
class Dispatched:
    """A request that was sent; the caller passes it back when it ends."""

    held: HeldRequest
    choice: ReplicaChoice
    started: StartedRequest
    gpus: float  # that it occupies
    prefilling_gpus: float  # likewise until its first token, then 0


class AdmissionQueue:
    """Requests of one served model on their way to its replicas.

    After each `offer`, first token and end, the caller sends what `next` returns until it returns None.
    """

    def __init__(
        self,
        loads: ReplicaLoads,
        policies: Mapping[str, TenantPolicy] | None = None,
        default: TenantPolicy | None = None,
    ) -> None:
        self.loads, self.policies, self.default = loads, policies or {}, default or TenantPolicy()
        self.tenants: dict[str, TenantUse] = {}  # the one that used nothing for longest first
        self.held = self.held_bytes = 0
        self._waiting: dict[TenantUse, None] = {}
        self._prefilling: dict[Dispatched, None] = {}
        self.shares = TenantShares(self.tenants)

    def offer(self, held: HeldRequest, now: float) -> RoutingRefusal | None:
        """Take a request in, or return why not: too long, too many that wait, a deadline it would miss."""
        use = self._use(held.request.tenant)
        refusal = self._limit(held, use)
        if refusal is not None:
            return refusal
        choice = pick(held.request, self.loads, now)
        if isinstance(choice, ReplicaChoice):
            held.gpu_seconds = choice.gpu_seconds
            late_s = now + self._wait_s(use, now) + choice.ttft_s - held.deadline_at
            if late_s > 0:
                idle_ttft_s = choice.ttft_s - choice.wait_s
                helps = now + idle_ttft_s <= held.deadline_at
                return RoutingRefusal(RefusalCause.SHED, late_s if helps else None)
        if not use.is_active(now):
            use.deficit_s = 0.0  # a debt of another time
        use.held.append(held)
        self._waiting[use] = None
        use.held_bytes += held.size_bytes
        use.held_gpu_seconds += held.gpu_seconds
        use.used_at = now
        self.held += 1
        self.held_bytes += held.size_bytes
        return None

    def next(self, now: float) -> Dispatched | None:
        """Send the next request, if any may go now.

        Higher priorities go first. Within one, the largest deficit over weight does, of the tenants within
        their share of the fleet and their tokens in flight.
        """
        if not self.loads.sees_first_tokens:
            self.loads.let_time_pass(now)
            for dispatched in [d for d in self._prefilling if d.started.first_token_at is not None]:
                self._end_prefill(dispatched)
        waiting = sorted(self._waiting, key=_precedence)
        in_turn = nsmallest(_MOST_TRIED, waiting[_MOST_TRIED:], key=attrgetter("tried_at"))
        for use in waiting[:_MOST_TRIED] + sorted(in_turn, key=_precedence):
            choice = self._choice(use, now)
            if choice is not None:
                return self._dispatch(use, choice, waiting, now)
            use.tried_at = now
        return None

    def cancel(self, held: HeldRequest) -> None:
        """Forget a request that waits: its client is gone. One that was sent is left alone."""
        use = self.tenants.get(held.request.tenant)
        if use is not None and held in use.held:
            self._remove(use, held)

    def late(self, now: float) -> list[HeldRequest]:
        """Take out the requests whose deadlines have passed, and return them: they are to be refused."""
        late = [held for use in self._waiting for held in use.held if held.deadline_at <= now]
        for held in late:
            self.cancel(held)
        return late

    def first_token(self, dispatched: Dispatched, now: float) -> None:
        """Note that a request has its first token."""
        self._end_prefill(dispatched)
        self.loads.first_token(dispatched.started, now)

    def ended(self, dispatched: Dispatched, now: float, answer_tokens: int | None = None) -> None:
        """Note that a request has ended, however it did; charge what it took beyond its prediction."""
        started = dispatched.started
        if started.has_ended:
            return
        self._end_prefill(dispatched)
        use = self._use(dispatched.held.request.tenant)
        use.in_flight -= 1
        use.tokens_in_flight = use.tokens_in_flight - started.context_tokens if use.in_flight else 0.0
        use.occupied_gpus = use.occupied_gpus - dispatched.gpus if use.in_flight else 0.0
        use.used_at = now
        if answer_tokens is not None:
            expected = self.loads.answer_tokens(started.request)
            of_answer = dispatched.choice.answer_gpu_seconds
            use.deficit_s -= of_answer * (answer_tokens / expected - 1)
        self.loads.ended(started, now, answer_tokens)

    # -- limits --------------------------------------------------------------------------------------------

    def _limit(self, held: HeldRequest, use: TenantUse) -> RoutingRefusal | None:
        policy, request = use.policy, held.request
        context = request.prompt_tokens + request.most_tokens
        if context > _or_infinite(policy.most_context_tokens) or context > _or_infinite(
            policy.most_tokens_in_flight
        ):
            return RoutingRefusal(RefusalCause.TOO_LONG)
        if (
            len(use.held) >= policy.most_held
            or use.held_bytes + held.size_bytes > policy.most_held_bytes
            or self.held >= MOST_HELD
            or self.held_bytes + held.size_bytes > MOST_HELD_BYTES
        ):
            return RoutingRefusal(RefusalCause.HELD_LIMIT, retry_after_s=1.0)
        return None

    def _wait_s(self, use: TenantUse, now: float) -> float:
        """Seconds until what a tenant has waiting is sent, at its share of the fleet or at its last rate."""
        if not use.held:
            return 0.0
        at_share_s = use.held_gpu_seconds / (self.shares.of(use, now) * self.loads.gpus)
        at_last_rate_s = len(use.held) * use.interval_s if use.left_waiting else 0.0
        return max(at_share_s, at_last_rate_s)

    def _choice(self, use: TenantUse, now: float) -> ReplicaChoice | None:
        """Return where the first request of a tenant goes, None if it waits."""
        request = use.held[0].request
        context = self.loads.context_tokens(request)
        if use.tokens_in_flight + context > _or_infinite(use.policy.most_tokens_in_flight):
            return None
        choice = pick(request, self.loads, now)
        if isinstance(choice, RoutingRefusal):
            return None
        load = self.loads.replicas[choice.address]
        queue_s = QUEUE_S if use.policy.priority >= 0 else 0.0
        if load.running and (choice.wait_s > queue_s or not choice.meets_tpot):
            return None
        most_gpus = self.loads.gpus * self.shares.of(use, now) + _ROUNDED
        occupied = use.occupied_gpus + occupied_gpus(load, context, now)
        prefilling = use.prefilling_gpus + _prefilling_gpus(load, choice)
        is_over = (use.in_flight and occupied > most_gpus) or (use.prefilling_gpus and prefilling > most_gpus)
        return None if is_over else choice

    # -- state ---------------------------------------------------------------------------------------------

    def _dispatch(
        self, use: TenantUse, choice: ReplicaChoice, waiting: list[TenantUse], now: float
    ) -> Dispatched:
        held = use.held[0]
        self._remove(use, held)
        use.sent(now)
        self._charge(use, choice.gpu_seconds, waiting)
        held.gpu_seconds = choice.gpu_seconds
        started = self.loads.started(choice.address, held.request, now)
        gpus = occupied_gpus(started.load, started.context_tokens, now)
        prefilling_gpus = _prefilling_gpus(started.load, choice)
        use.in_flight += 1
        use.tokens_in_flight += started.context_tokens
        use.occupied_gpus += gpus
        use.prefilling_gpus += prefilling_gpus
        dispatched = Dispatched(held, choice, started, gpus, prefilling_gpus)
        self._prefilling[dispatched] = None
        return dispatched

    def _end_prefill(self, dispatched: Dispatched) -> None:
        use = self._use(dispatched.held.request.tenant)
        self._prefilling.pop(dispatched, None)
        use.prefilling_gpus = max(0.0, use.prefilling_gpus - dispatched.prefilling_gpus)
        dispatched.prefilling_gpus = 0.0

    def _charge(self, served: TenantUse, gpu_seconds: float, waiting: list[TenantUse]) -> None:
        """Divide a request's cost among the tenants of its priority that wait: what they are owed for it."""
        peers = [use for use in waiting if use.policy.priority == served.policy.priority]
        weights = sum(use.policy.weight for use in peers)
        for use in peers:
            use.deficit_s += gpu_seconds * use.policy.weight / weights
        served.deficit_s -= gpu_seconds
        for use in peers:
            use.deficit_s = min(_MOST_DEFICIT_S, max(-_MOST_DEFICIT_S, use.deficit_s))

    def _remove(self, use: TenantUse, held: HeldRequest) -> None:
        use.remove(held)
        self.held -= 1
        self.held_bytes -= held.size_bytes
        if not use.held:
            del self._waiting[use]
            use.deficit_s = min(0.0, use.deficit_s)  # what was not claimed is no credit

    def _use(self, tenant: str) -> TenantUse:
        """Return the use of a tenant, which is now the most recent."""
        use = self.tenants.pop(tenant, None)
        if use is None:
            use = TenantUse(self.policies.get(tenant, self.default))
            if len(self.tenants) >= MOST_TENANTS:
                idle = next((name for name, u in self.tenants.items() if not (u.held or u.in_flight)), None)
                self.tenants.pop(idle or tenant, None)  # busy ones are as few as requests
        self.tenants[tenant] = use
        return use


def _precedence(use: TenantUse) -> tuple[int, float]:
    """Order tenants: by priority, then by deficit over weight."""
    return -use.policy.priority, -use.deficit_s / use.policy.weight


def _prefilling_gpus(load: ReplicaLoad, choice: ReplicaChoice) -> float:
    """GPUs that a prompt keeps from taking others: a long one all of its replica."""
    prefill_s = (choice.gpu_seconds - choice.answer_gpu_seconds) / load.rates.gpus
    return load.rates.gpus * min(1.0, prefill_s / QUEUE_S)


def _or_infinite(tokens: int | None) -> float:
    return math.inf if tokens is None else tokens
