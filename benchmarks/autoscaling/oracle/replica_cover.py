"""The cheapest number of replicas over time that covers a known need, where starting replicas are paid.

A cover costs its replicas over time and a fixed amount for each start. Such a cost separates by levels:
replica k is on while the need is k or more, and between two such times it stays on if that costs no more than
to stop and start it again. So each level is solved by itself, and the cover is exact (Lin, Wierman, Andrew,
Thereska: Dynamic right-sizing for power-proportional data centers, INFOCOM 2011). Replicas are ordered as
long before they are needed as they take to start; a gap that is too short for that is always bridged, as a
start costs at least that time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class ReplicaCover:
    """Replicas by time bin, and what they cost."""

    bin_s: float
    ready: tuple[int, ...]  # replicas that serve
    ordered: tuple[int, ...]  # those and the ones that start: what spec.replicas is
    starts: int
    replica_s: float  # paid: serving, starting, stopping

    def cost(self, price_per_hour: float) -> float:
        """Return what the cover costs at the price of one replica."""
        return self.replica_s / 3600 * price_per_hour


def clairvoyant_cover(
    need: Sequence[int],
    *,
    bin_s: float,
    start_s: float,
    stop_s: float = 0.0,
    min_replicas: int = 0,
    initial: int | None = None,
) -> ReplicaCover:
    """Return the cheapest cover of `need`, the replicas that each time bin needs.

    `start_s` and `stop_s`: for how long a replica is paid before and after it serves, at most until the end
    of the trace. `initial` replicas are ready at the start (None: as many as the first bin needs); what must
    be ready sooner than it starts was ordered before the trace, and is paid.
    """
    start, stop = math.ceil(start_s / bin_s), math.ceil(stop_s / bin_s)
    levels = [max(count, min_replicas) for count in need]
    if not levels:
        return ReplicaCover(bin_s, (), (), 0, 0.0)
    initial = levels[0] if initial is None else initial
    ready_changes, ordered_changes = [0] * (len(levels) + 1), [0] * (len(levels) + 1)
    starts = paid = 0
    for level in range(1, max(*levels, initial) + 1):
        is_ready = level <= initial
        for begin, end in _spans(levels, level, is_ready=is_ready, bridged=start + stop):
            is_started = not (is_ready and begin == 0)
            lead = start if is_started else 0
            starts += is_started
            paid += lead + end - begin + min(stop, len(levels) - end)
            ready_changes[begin] += 1
            ordered_changes[max(0, begin - lead)] += 1
            ready_changes[end] -= 1
            ordered_changes[end] -= 1
    ready = tuple(accumulate(ready_changes[:-1]))
    return ReplicaCover(bin_s, ready, tuple(accumulate(ordered_changes[:-1])), starts, paid * bin_s)


def _spans(levels: Sequence[int], level: int, *, is_ready: bool, bridged: int) -> list[tuple[int, int]]:
    """Return the spans of bins, begin and end, in which the replica of a level is on.

    Gaps of at most `bridged` bins are bridged. A replica that is ready at the start is on until its first
    span, or stopped at once.
    """
    spans: list[tuple[int, int]] = [(0, 0)] if is_ready else []
    begin = None
    for place, count in enumerate([*levels, 0]):
        if count >= level and begin is None:
            begin = place
        elif count < level and begin is not None:
            if spans and begin - spans[-1][1] <= bridged:
                spans[-1] = spans[-1][0], place
            else:
                spans.append((begin, place))
            begin = None
    return spans
