"""The steps from the fleet as it is to a packing: direct moves, or what blocks them.

A replica moves directly where it starts on its new place before one that it replaces stops. No replica goes
to another place in between. One is restarted, which is downtime, only where that is asked for.

Which slice of its node a pod really gets, the scheduler and the device plugin decide; the steps are exact
about counts per node and profile, and about slices wherever the node agent picks the pod to remove.
"""

from collections.abc import Iterable, Iterator

from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Problem
from tangram.packing.transition.blockers import ArrivingReplica, arriving_replicas
from tangram.packing.transition.end_states import end_states
from tangram.packing.transition.gpu_operations import GPUOperations
from tangram.packing.transition.move_order import MOST_LOOKS, MoveOrder, move_order
from tangram.packing.transition.steps import BlockedMoves, Transition


def plan_steps(
    problem: Problem, packing: Packing, looks: int = MOST_LOOKS, *, restarts: bool = False
) -> Transition:
    """Return the ordered steps from `problem` as it is to what `packing` wants. Deterministic.

    Where they cannot end there, `blocked` names the replicas that do not arrive, and what holds the places
    that they need; the steps then bring the others to their places. `looks`: of the search for an order.
    `restarts`: replicas may be restarted where demands gain replicas by it, and no direct order serves them.
    """
    ends = end_states(problem, packing)
    arriving = arriving_replicas(problem, ends)
    order = move_order(ends, arriving, looks)
    if restarts and not ends.gaining.isdisjoint(a.replica.owner for a in _not_started(arriving, order)):
        with_resets = end_states(problem, packing, restarts=True)
        arriving_again = arriving_replicas(problem, with_resets)
        with_restarts = move_order(with_resets, arriving_again, looks, restarts=True)
        if with_restarts.restarted:
            ends, arriving, order = with_resets, arriving_again, with_restarts
    gpus = GPUOperations(problem, ends)
    for move in order.moves:
        if move.starts:
            gpus.start(move.replica)
        else:
            gpus.stop(move.replica, restarts=move.restarts)
    gpus.make_free_slices()
    restarted = tuple(map(str, order.restarted))
    return Transition(tuple(gpus.recorder.steps), _blocked(arriving, order), restarted)


def _not_started(arriving: Iterable[ArrivingReplica], order: MoveOrder) -> list[ArrivingReplica]:
    return [arrival for arrival in arriving if arrival.obstacles or arrival.replica in order.blockers]


def _blocked(arriving: Iterable[ArrivingReplica], order: MoveOrder) -> BlockedMoves | None:
    """Return the replicas that do not start, with reasons; None: all start."""
    blocked = _not_started(arriving, order)
    reasons = dict.fromkeys(text for arrival in blocked for text in _reasons(arrival, order))
    return (
        BlockedMoves(tuple(str(arrival.replica) for arrival in blocked), tuple(reasons)) if blocked else None
    )


def _reasons(arriving: ArrivingReplica, order: MoveOrder) -> Iterator[str]:
    if arriving.obstacles:
        yield from arriving.obstacles
        return
    in_the_way = " and ".join(map(str, order.blockers[arriving.replica]))
    text = f"{arriving.replica} (node {arriving.node}) waits for {in_the_way}"
    condition = "may stop only once a replacement serves"
    yield f"{text}, which {condition}" + ("" if order.proved else "; not every order was tried")
