"""The replica with the fewest running requests. Pure. It stands in for `tangram.routing.pick`."""

from collections.abc import Collection

from tangram.routing.pick import Choice, Refusal, RefusalCause, ReplicaScore
from tangram.routing.replica import ReplicaLoads
from tangram.routing.request import RoutedRequest

RUNNERS_UP = 2


def pick(
    request: RoutedRequest, loads: ReplicaLoads, now: float, subset: Collection[str] | None = None
) -> Choice | Refusal:
    """Return the least loaded replica, the one that was used least recently among equals."""
    del request, now
    if not loads.replicas:
        return Refusal(RefusalCause.NO_REPLICA)
    allowed = [load for load in loads.replicas.values() if subset is None or load.address in subset]
    if not allowed:
        return Refusal(RefusalCause.SUBSET_IS_EMPTY)
    ranked = sorted(allowed, key=lambda load: (load.running, load.used_at, load.address))
    first, *others = [
        ReplicaScore(float(load.running), load.address, 0.0, 0.0, 0.0, meets_tpot=True)
        for load in ranked[: 1 + RUNNERS_UP]
    ]
    return Choice(first.address, 0.0, 0.0, 0.0, meets_tpot=True, runners_up=tuple(others))
