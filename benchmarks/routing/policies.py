"""Policies that deal requests: ours, and the published ones that it is compared with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import itemgetter

from benchmarks.routing.fleet import Engine, Policy
from tangram.capacity.load.traffic import uniforms
from tangram.routing.pick import RoutingRefusal, pick
from tangram.routing.prefix_index import PrefixIndex
from tangram.routing.replica import ReplicaLoads, StartedRequest
from tangram.routing.request import RoutedRequest


class CountingPolicy:
    """Counts the requests in flight of each replica, which most policies look at."""

    def __init__(self, engines: Sequence[Engine], seed: int) -> None:
        self.engines, self.random = list(engines), uniforms(seed)
        self.in_flight = {engine.address: 0 for engine in engines}
        self.address_of: dict[int, str] = {}

    def pick(self, number: int, request: RoutedRequest, now: float) -> str:
        """Count the request where `choose` sends it."""
        address = self.choose(request, now)
        self.in_flight[address] += 1
        self.address_of[number] = address
        return address

    def choose(self, request: RoutedRequest, now: float) -> str:
        """Return the address for a request."""
        raise NotImplementedError

    def first_token(self, number: int, now: float) -> None:
        """Nothing is learned from it."""

    def ended(self, number: int, now: float, answer_tokens: int) -> None:
        """Count it no more."""
        self.in_flight[self.address_of.pop(number)] -= 1

    def drawn(self, addresses: Sequence[str]) -> str:
        """Return one of them at random."""
        return addresses[int(next(self.random) * len(addresses))]


class RoundRobin(CountingPolicy):
    """Each replica in turn."""

    turn = 0

    def choose(self, request: RoutedRequest, now: float) -> str:
        """Return the next."""
        self.turn += 1
        return self.engines[self.turn % len(self.engines)].address


class LeastLoad(CountingPolicy):
    """The replica with the fewest requests in flight, ties at random: KubeAI's default, and SMG's fallback."""

    def choose(self, request: RoutedRequest, now: float) -> str:
        """Return the least loaded."""
        least = min(self.in_flight.values())
        return self.drawn([address for address, count in self.in_flight.items() if count == least])


class BoundedPrefixHash(CountingPolicy):
    """Consistent hashing of the prompt's beginning with bounded loads (CHWBL), with KubeAI's defaults.

    The next replica of the ring (256 places each) whose load stays within 125 % of the mean.
    """

    def __init__(self, engines: Sequence[Engine], seed: int) -> None:
        super().__init__(engines, seed)
        self.ring = sorted(
            (_hash64(f"{engine.address}/{copy}"), engine.address)
            for engine in self.engines
            for copy in range(256)
        )

    def choose(self, request: RoutedRequest, now: float) -> str:
        """Return the first of the ring from the prefix on that has room."""
        key = request.blocks[0] if request.blocks else int(next(self.random) * (1 << 62))
        start = bisect_left(self.ring, (_hash64(str(key)), ""))
        most = (sum(self.in_flight.values()) + 1) / len(self.engines) * 1.25
        for step in range(len(self.ring)):
            address = self.ring[(start + step) % len(self.ring)][1]
            if self.in_flight[address] + 1 <= max(1.0, most):
                return address
        return self.engines[0].address


class ScorerSum(CountingPolicy):
    """llm-d's scorers with their default weights: queue 2, KV cache 2, prefix 3; ties at random.

    Queue lengths and KV use are scraped every 50 ms; of prefixes the last 31,250 blocks of 64 tokens are known.
    """

    def __init__(self, engines: Sequence[Engine], seed: int) -> None:
        super().__init__(engines, seed)
        self.prefixes = PrefixIndex(len(engines) * 31_250 * 64 // 512)
        for place in range(len(engines)):
            self.prefixes.add(place)
        self.scraped_at, self.scraped = -1.0, [(0, 0.0)] * len(engines)

    def choose(self, request: RoutedRequest, now: float) -> str:
        """Return the highest sum."""
        if now - self.scraped_at >= 0.05:
            gauges = [engine.replica.gauges(now) for engine in self.engines]
            self.scraped_at, self.scraped = now, [(g.waiting, g.kv_usage) for g in gauges]
        queues = [waiting for waiting, _ in self.scraped]
        shortest, longest = min(queues), max(queues)
        matched = self.prefixes.matched_blocks(request.blocks)
        scores = []
        for place, (waiting, usage) in enumerate(self.scraped):
            queue = (longest - waiting) / (longest - shortest) if longest > shortest else 1.0
            prefix = matched.get(place, 0) / max(1, len(request.blocks))
            scores.append((2 * queue + 2 * (1 - usage) + 3 * prefix, place))
        best = max(scores, key=itemgetter(0))[0]
        address = self.drawn([self.engines[place].address for score, place in scores if score > best - 1e-9])
        place = next(place for place, engine in enumerate(self.engines) if engine.address == address)
        self.prefixes.store(place, request.blocks)
        return address


class PredictedTtft:
    """Ours."""

    def __init__(self, engines: Sequence[Engine], seed: int) -> None:
        self.loads = ReplicaLoads()
        self.loads.set_replicas({engine.address: engine.rates for engine in engines})
        self.started: dict[int, StartedRequest] = {}

    def pick(self, number: int, request: RoutedRequest, now: float) -> str:
        """Return the replica of `routing.pick`."""
        choice = pick(request, self.loads, now)
        if isinstance(choice, RoutingRefusal):
            raise TypeError(choice.cause)
        self.started[number] = self.loads.started(choice.address, request, now)
        return choice.address

    def first_token(self, number: int, now: float) -> None:
        """Report it."""
        self.loads.first_token(self.started[number], now)

    def ended(self, number: int, now: float, answer_tokens: int) -> None:
        """Report it."""
        self.loads.ended(self.started.pop(number), now, answer_tokens)


class SeveralPickers:
    """Pickers side by side, each of which sees its part of the requests alone."""

    def __init__(self, pickers: Sequence[Policy]) -> None:
        self.pickers = pickers

    def pick(self, number: int, request: RoutedRequest, now: float) -> str:
        """Ask the picker whose turn it is."""
        return self._of(number).pick(number, request, now)

    def first_token(self, number: int, now: float) -> None:
        """Tell the picker of the request."""
        self._of(number).first_token(number, now)

    def ended(self, number: int, now: float, answer_tokens: int) -> None:
        """Tell the picker of the request."""
        self._of(number).ended(number, now, answer_tokens)

    def _of(self, number: int) -> Policy:
        return self.pickers[number % len(self.pickers)]


POLICIES: dict[str, Callable[[Sequence[Engine], int], Policy]] = {
    "round robin": RoundRobin,
    "least load": LeastLoad,
    "prefix hash, bounded": BoundedPrefixHash,
    "scorer sum": ScorerSum,
    "tangram": PredictedTtft,
}


def _hash64(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
