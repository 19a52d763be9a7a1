"""How often the desired replicas turn back soon after they changed."""

from collections.abc import Iterable

from tangram.simulator.control.control_loop import ReplicaCount

SOON_S = 900.0


def reversals(counts: Iterable[ReplicaCount]) -> int:
    """Count changes of the desired replicas against the direction of a change 15 minutes before or less."""
    number, changed_at, direction = 0, float("-inf"), 0
    desired: int | None = None
    for count in counts:
        if desired is not None and count.desired != desired:
            turned = 1 if count.desired > desired else -1
            number += turned == -direction and count.at - changed_at <= SOON_S
            changed_at, direction = count.at, turned
        desired = count.desired
    return number
