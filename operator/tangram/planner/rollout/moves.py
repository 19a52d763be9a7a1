"""A move to another shape: what stays of the old one while replicas of the new one arrive.

Each available replica of the new shape takes over its share of the load, and as much of the old shape may
go. So the available capacity never falls below what is wanted, whatever the order in which pods become
ready or fail; where there is no room for the new shape as a whole, a move proceeds piece by piece.
"""

import math
from collections.abc import Mapping

from tangram.fleet import Workload, replicas_for
from tangram.planner.placement.targets import Case, PlacementTarget
from tangram.planner.shapes.judge import rate

_EPSILON = 1e-9


def kept_replicas(case: Case, target: PlacementTarget, mine: Workload | None) -> Mapping[str, int]:
    """Return how many replicas each Deployment of another shape than `mine` keeps, by UID; 0: it may go.

    A new replica carries 1/n of the load, where n of them are wanted; of an old shape of which m replicas
    would carry all of it, each carries 1/m. A Deployment of which nothing is available, on a shape that may
    not be used any more, keeps nothing: it carries no load and only holds room.
    """
    arrived = mine.available if mine is not None and mine.settled else 0
    missing = max(0.0, 1 - arrived / target.desired) if target.desired else 0.0
    short = max(0, case.intent.min_replicas - arrived)
    usable = {candidate.shape for candidate in case.usable if case.most(candidate.shape) > 0}
    kept: dict[str, int] = {}
    for old in sorted(
        (w for w in case.present if w is not mine), key=lambda w: (-w.available, w.name, w.uid)
    ):
        if old.available == 0 and old.shape not in usable:
            kept[old.uid] = 0
            continue
        whole = _whole_load(case, old)
        load = old.replicas if whole is None and missing else math.ceil(missing * (whole or 0) - _EPSILON)
        # What is in back-off there never came to be, and its room is given to others.
        kept[old.uid] = min(old.replicas, case.most(old.shape), max(load, short))
        carried = min(old.available, kept[old.uid])
        missing = max(0.0, missing - (carried / whole if whole else 0.0))
        short = max(0, short - carried)
    return kept


def _whole_load(case: Case, old: Workload) -> int | None:
    """Return how many replicas of an old shape carry all of the load; None: that is not known."""
    if old.shape == case.reference:
        return case.desired
    if case.reference is None or (case.desired <= case.intent.min_replicas):
        return case.desired
    one, wanted = (rate(case.facts, shape, case.request) for shape in (old.shape, case.reference))
    return None if one is None or wanted is None else replicas_for(case.desired * wanted, one)
