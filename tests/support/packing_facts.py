"""The meaning of a packing problem, worked out from its classes and the published boards alone.

Nothing of the product's model, search or geometry is imported: only the classes that state a problem.
Shapes are (SKU, profile, tensor parallelism); money counts hundred-thousandths of a dollar.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property

from tangram.packing import ANY_SKU, Demand, GPUState, Problem

from .oracle import BOARDS, FULL

MONEY = 100_000  # per dollar
UNMET = 720_720  # of one demand: what is unmet is rounded up to one of so many parts
FINE = 1024  # a replica serves whole numbers of so many parts of one of those, rounded up
NANO = 10**9  # per dollar: budgets are compared in these
REACHED = 1 + Fraction(1, 10**9)  # rates add up with the rounding of floating point
START_H = 2 / 60  # hours until a replica of an owner without a demand serves elsewhere


@dataclass(frozen=True)
class HeldReplica:
    """One replica that runs."""

    owner: str
    shape: tuple
    gpus: tuple  # ids, more than one of a gang
    start: int
    cost: int  # of moving it
    pinned: bool


@dataclass
class DemandTerms:
    """One demand, or the movable replicas of an owner that the problem does not name.

    What follows from the demand and its running replicas is computed once: thousands of states are judged.
    """

    id: str
    priority: int | None  # None: an owner without a demand, all of whose replicas go on
    demand: Demand | None
    shapes: tuple  # that its replicas may take
    runs: list = field(default_factory=list)
    own_costs: bool = False  # a replica that changes its shape costs its own move cost
    unit: dict = field(default_factory=dict)  # shape -> cost of starting one replica

    @cached_property
    def held(self):
        """How many replicas run, by shape."""
        return Counter(each.shape for each in self.runs)

    @cached_property
    def pinned(self):
        """How many of them must not move, by shape."""
        return Counter(each.shape for each in self.runs if each.pinned)

    @property
    def is_request(self):
        """Whether it asks for a number of slices, any of which may be left out."""
        return self.demand is None or bool(self.demand.slices)

    @property
    def wanted(self):
        """How many replicas a request asks for; of an owner without a demand, by shape."""
        return self.demand.slices[0].count

    @cached_property
    def serves(self):
        """Shape -> parts of the demand that one replica serves; pinned shapes without an offer serve none."""
        found = dict.fromkeys(self.pinned, 0)
        for offer in self.demand.offers:
            if self.demand.rate <= 0:
                found[shape_of(offer)] = UNMET * FINE
                continue
            part = Fraction(offer.rate) / Fraction(self.demand.rate) * REACHED
            found[shape_of(offer)] = min(UNMET * FINE, math.ceil(UNMET * FINE * part))
        return found

    def unmet(self, counts):
        """Units unmet by replicas: the missing share of the rate or of the minimum, whichever is larger."""
        if self.is_request:
            weight = max(1, UNMET // self.wanted) if self.wanted else 0
            return weight * (self.wanted - sum(counts.values()))
        serves = self.serves
        least = self.demand.min_replicas
        there = sum(n for shape, n in counts.items() if serves[shape])
        missing = UNMET * FINE - sum(serves[shape] * n for shape, n in counts.items())
        short = math.ceil(Fraction(missing, FINE)) if self.demand.rate > 0 else 0
        absent = math.ceil(Fraction(UNMET * (least - there), least)) if least else 0
        return max(0, short, absent)

    @cached_property
    def most(self):
        """Replicas at most."""
        most = self.demand.max_replicas
        return 10**6 if most is None else max(most, self.demand.min_replicas)

    def prices(self, hourly):
        """Shape -> billionths of a dollar per hour that one replica takes of the budget."""
        found = {shape: math.floor(hourly(shape) * NANO) for shape in self.pinned}
        return found | {shape_of(o): math.floor(o.price_per_hour * NANO) for o in self.demand.offers}

    @cached_property
    def budget(self):
        """The same of the whole demand; None: any."""
        budget = self.demand.budget_per_hour
        return None if budget is None else math.floor(budget * NANO) + 1

    @cached_property
    def protected(self):
        """Counts that may cost more than the budget: of one shape, or all that must not move."""
        kept = [dict(self.pinned)] if self.pinned else []
        return kept + [{shape_of(part): part.count} for part in self.demand.protected]

    def reachable_unmet(self, hourly):
        """Units that no fleet could serve: above it, replicas that end are counted."""
        if self.is_request:
            return 0
        serves, prices = self.serves, self.prices(hourly)
        rated = {shape: n for shape, n in serves.items() if n}
        if self.demand.rate <= 0:
            return 0 if rated or not self.demand.min_replicas else UNMET
        best = max(rated.values(), default=0) * self.most
        if self.budget is not None and not self.protected and all(prices[shape] for shape in rated):
            dense = max((Fraction(n, prices[shape]) for shape, n in rated.items()), default=0)
            best = min(best, math.floor(dense * self.budget))
        return max(0, math.ceil(Fraction(UNMET * FINE - best, FINE)))


def shape_of(part):
    """The shape of an offer or a part."""
    return (part.sku, part.profile, part.tensor_parallel)


def board(sku):
    """The board as its maker publishes it; without profiles where MIG cannot cut it."""
    return BOARDS[sku]


@cache
def per_node(share, replicas):
    """How many of so many replicas may stand in one place."""
    return max(1, math.ceil(Fraction(repr(share)) * replicas))


class ProblemFacts:
    """A problem's prices, replicas and terms."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.gpus: dict[str, GPUState] = {gpu.id: gpu for gpu in problem.gpus}
        self.named = {demand.id for demand in problem.demands}
        pooled = {}
        known = [(g.sku, g.price_per_hour) for g in problem.gpus]
        for sku, price in [*known, *((p.sku, p.price_per_gpu_hour) for p in problem.growable)]:
            if price is not None:
                pooled[sku] = min(price, pooled.get(sku, price))
        self.by_sku = pooled | dict(problem.prices)
        self.terms = self._terms()

    def price(self, gpu):
        """Dollars per hour of a GPU."""
        return dict(self.problem.prices)[gpu.sku] if gpu.price_per_hour is None else gpu.price_per_hour

    def money(self, gpu):
        """The same over the horizon."""
        return round(round(self.price(gpu) * MONEY) * self.problem.horizon_h)

    def hourly(self, shape):
        """Dollars per hour of one replica: its dominant share of a GPU, or its GPUs."""
        sku, profile, size = shape
        return self.by_sku[sku] * (size if profile == FULL else board(sku).share(profile))

    def foreign(self, gpu):
        """Instances that stay as they are: their owner has no demand, and they must not move."""
        return [
            i for i in gpu.instances if i.owner is not None and i.owner not in self.named and not i.movable
        ]

    def _replicas(self):
        hours = {demand.id: demand.start_h for demand in self.problem.demands}
        gangs = defaultdict(list)
        for gpu in self.problem.gpus:
            for i in gpu.instances:
                if i.owner is None or (i.owner not in self.named and not i.movable):
                    continue
                if i.profile == FULL:
                    gangs[i.owner, i.gang or f"\0{gpu.id}"].append((gpu, i))
                    continue
                shape = (gpu.sku, i.profile, 1)
                cost = (
                    self.hourly(shape) * hours.get(i.owner, START_H) if i.move_cost is None else i.move_cost
                )
                yield HeldReplica(i.owner, shape, (gpu.id,), i.start, round(cost * MONEY), not i.movable)
        for (owner, _), members in gangs.items():
            sku = members[0][0].sku
            each = self.by_sku[sku] * hours.get(owner, START_H)
            cost = round(sum(each if i.move_cost is None else i.move_cost for _, i in members) * MONEY)
            ids = tuple(sorted(gpu.id for gpu, _ in members))
            pinned = not all(i.movable for _, i in members)
            yield HeldReplica(owner, (sku, FULL, len(members)), ids, 0, cost, pinned)

    def _terms(self):
        runs = defaultdict(list)
        for replica in self._replicas():
            runs[replica.owner].append(replica)
        priced = {i.owner for g in self.problem.gpus for i in g.instances if i.move_cost is not None}
        found = []
        for demand in self.problem.demands:
            shapes, mine = self._shapes(demand), runs.pop(demand.id, [])
            mine = DemandTerms(demand.id, demand.priority, demand, shapes, mine)
            if not demand.slices:
                mine.shapes = tuple(sorted({*mine.shapes, *mine.pinned}))
            mine.own_costs = bool(demand.slices) or demand.id in priced
            mine.unit = {s: round(self.hourly(s) * demand.start_h * MONEY) for s in mine.shapes}
            found.append(mine)
        for owner, theirs in runs.items():
            shapes = tuple(sorted({each.shape for each in theirs}))
            found.append(DemandTerms(owner, None, None, shapes, theirs, own_costs=True))
        return sorted(found, key=lambda each: each.id)

    def _shapes(self, demand):
        if not demand.slices:
            return tuple(sorted({shape_of(offer) for offer in demand.offers}))
        (part,) = demand.slices
        if part.sku != ANY_SKU:
            return (shape_of(part),)
        skus = {gpu.sku for gpu in self.problem.gpus} | {pool.sku for pool in self.problem.growable}
        has = [sku for sku in skus if part.profile == FULL or part.profile in board(sku).profiles]
        return tuple((sku, part.profile, part.tensor_parallel) for sku in sorted(has))


def options(sku, names):
    """(profile, start) of every slice of these names that a board can have."""
    cut = board(sku)
    return [
        (name, start) for name in sorted(names & set(cut.profiles)) for start in cut.profiles[name].starts
    ]
