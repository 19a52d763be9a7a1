"""The best packing of a tiny fleet without any solver: every legal state of every node, one after the other.

Checks the integer program of `packing_optimum`, and what product and program have in common: the solver.
Growing pools and move budgets of pools are not understood.
"""

import itertools
import math
from collections import Counter, defaultdict

from .oracle import FULL
from .packing_facts import MONEY, UNMET, ProblemFacts, board, options, per_node

MOST = 10_000  # states of one GPU or of all: more take seconds


class TooMany(Exception):
    """There are too many states to look at."""


def enumerated(problem):
    """The values of the stages, as `optimum` has them; None: there are too many states."""
    try:
        return Enumeration(ProblemFacts(problem)).best()
    except TooMany:
        return None


class Enumeration:
    """States are (replicas by demand, shape and place; replicas that stay), each at its least dollars."""

    def __init__(self, facts):
        self.facts, self.problem = facts, facts.problem
        assert not self.problem.growable, "growing pools are not enumerated"
        assert not self.problem.move_budgets, "move budgets of single pools are not enumerated"
        self.takers = defaultdict(list)
        for terms in facts.terms:
            for shape in terms.shapes:
                self.takers[shape].append(terms.id)
        rated = [terms for terms in facts.terms if terms.priority is not None]
        self.prices = {t.id: t.prices(facts.hourly) for t in rated if not t.is_request}
        self.reachable = {t.id: t.reachable_unmet(facts.hourly) for t in rated}
        self.runs = {(r.gpus, r.start, r.shape): r for terms in facts.terms for r in terms.runs}

    def best(self):
        """The stages of the best of all states."""
        found = None
        for (taken, stays), dollars in self._states().items():
            worth = self._worth(Counter(dict(taken)), Counter(dict(stays)), dollars)
            if worth is not None and (found is None or worth < found):
                found = worth
        *unmet, dollars, share = found
        return [*(each / UNMET for each in unmet[::2]), dollars / MONEY, share / MONEY]

    # ---- states

    def _states(self):
        nodes = defaultdict(list)
        for gpu in self.problem.gpus:
            nodes[gpu.node].append(gpu)
        states = {(frozenset(), frozenset()): 0}
        for gpus in nodes.values():
            states = _product(states, self._node(gpus))
        return states

    def _node(self, gpus):
        """Every state of one node, at its least dollars."""
        found = {}
        free = [gpu for gpu in gpus if gpu.convertible]
        for to_mig in itertools.product((False, True), repeat=len(free)):
            mig = {gpu.id for gpu, put in zip(free, to_mig, strict=True) if put}
            partial = {(frozenset(), frozenset()): 0}
            groups = defaultdict(list)
            for gpu in gpus:
                if gpu.id in mig or (gpu.mig_enabled and not gpu.convertible):
                    partial = _product(partial, self._cut(gpu))
                else:
                    groups[gpu.sku, self.facts.price(gpu), gpu.pool, gpu.nvlink_gpus].append(gpu)
            for alike in groups.values():
                partial = _product(partial, self._whole(alike, len(gpus)))
            for key, dollars in partial.items():
                found[key] = min(found.get(key, dollars), dollars)
        return found

    def _cut(self, gpu):
        """Every choice of slices in use, and of the owner of each."""
        foreign = [(i.profile, i.start) for i in self.facts.foreign(gpu)]
        there = {(i.profile, i.start) for i in gpu.instances} - set(foreign)
        names = {shape[1] for shape in self.takers if shape[0] == gpu.sku and shape[1] != FULL}
        places = [site for site in options(gpu.sku, names) if site not in foreign]
        manager = gpu.backend == "mig-manager" and (not gpu.convertible or bool(gpu.instances))
        found = {}
        for cleared in (False, True) if manager and gpu.cuttable and not foreign else (False,):
            fixed = not gpu.cuttable or (manager and not cleared)
            here = [site for site in places if not fixed or site in there]
            for chosen in self._layouts(gpu.sku, here, foreign):
                self._owned(gpu, chosen, found, stays=not cleared, used=bool(chosen or foreign))
        return found

    def _layouts(self, sku, places, chosen):
        """Every legal set of places beside what is chosen already."""
        yield []
        for n, site in enumerate(places):
            if board(sku).wrong([*chosen, site]) is None:
                for more in self._layouts(sku, places[n + 1 :], [*chosen, site]):
                    yield [site, *more]

    def _owned(self, gpu, chosen, found, *, stays, used):
        place = (gpu.node, gpu.pool, gpu.zone)
        dollars = self.facts.money(gpu) if used else 0
        if math.prod(len(self.takers[gpu.sku, profile, 1]) for profile, _ in chosen) + len(found) > MOST:
            raise TooMany
        for owners in itertools.product(*(self.takers[gpu.sku, profile, 1] for profile, _ in chosen)):
            taken, kept = Counter(), Counter()
            for owner, (profile, start) in zip(owners, chosen, strict=True):
                shape = (gpu.sku, profile, 1)
                taken[owner, shape, place] += 1
                replica = self.runs.get(((gpu.id,), start, shape))
                if stays and replica is not None and replica.owner == owner:
                    kept[replica] += 1
            found[_key(taken), _key(kept)] = dollars

    def _whole(self, gpus, size):
        """Every choice of gangs that stay, and of new ones on what is left."""
        first, ids = gpus[0], {gpu.id for gpu in gpus}
        place, price = (first.node, first.pool, first.zone), self.facts.money(first)
        foreign = sum(bool(self.facts.foreign(gpu)) for gpu in gpus)
        mine = [r for r in self.runs.values() if set(r.gpus) <= ids and r.owner in self.takers[r.shape]]
        mine = [r for r in mine if r.shape[1] == FULL]
        shapes = [s for s in self.takers if s[:2] == (first.sku, FULL)]
        legal = [s for s in shapes if s[2] <= first.nvlink_gpus or s[2] == size]
        found = {}
        for staying in itertools.product((False, True), repeat=len(mine)):
            kept = [replica for replica, stays in zip(mine, staying, strict=True) if stays]
            taken = Counter((r.owner, r.shape, place) for r in kept)
            left = len(gpus) - foreign - sum(r.shape[2] for r in kept)
            for more in self._new([(owner, s) for s in legal for owner in self.takers[s]], left):
                every = taken + Counter((owner, shape, place) for owner, shape in more)
                used = foreign + sum(shape[2] * n for (_, shape, _), n in every.items())
                found[_key(every), _key(Counter(kept))] = price * used
        return found

    def _new(self, kinds, left):
        yield []
        for n, (owner, shape) in enumerate(kinds):
            if shape[2] <= left:
                for more in self._new(kinds[n:], left - shape[2]):
                    yield [(owner, shape), *more]

    # ---- what a state is worth

    def _worth(self, taken, stays, dollars):
        """The stages of one state; None: no legal packing."""
        unmet, ends, share, moved = Counter(), Counter(), 0, 0
        for terms in self.facts.terms:
            mine = Counter({key[1:]: n for key, n in taken.items() if key[0] == terms.id})
            counts = Counter()
            for (shape, _), n in mine.items():
                counts[shape] += n
            if not self._legal(terms, counts, mine):
                return None
            found = self._moved(terms, counts, stays)
            if found is None:
                return None
            moved, dollars = moved + found[0], dollars + found[1]
            share += sum(round(self.facts.hourly(shape) * MONEY) * n for shape, n in counts.items())
            if terms.priority is not None:
                unmet[terms.priority] += terms.unmet(counts)
                ends[terms.priority] += self._ends(terms, counts)
        if self.problem.move_budget is not None and moved > self.problem.move_budget:
            return None
        stages = [
            (unmet[p], ends[p]) for p in sorted({d.priority for d in self.problem.demands}, reverse=True)
        ]
        return [*itertools.chain(*stages), dollars, share]

    def _ends(self, terms, counts):
        """Running replicas that end although their demand goes short of what some fleet would serve."""
        if terms.is_request:
            here = min(terms.wanted, sum(terms.held[shape] for shape in terms.shapes))
            return max(0, here - counts.total())
        if terms.unmet(counts) <= self.reachable[terms.id]:
            return 0
        return max(0, len(terms.runs) - counts.total())

    def _legal(self, terms, counts, mine):
        if terms.priority is None:
            return counts == terms.held
        pinned = Counter({s: n for s, n in terms.pinned.items() if s in terms.shapes})
        if terms.is_request:
            kept = pinned <= counts
            if pinned.total() > terms.wanted:
                kept = counts.total() == terms.wanted and counts <= pinned
            return counts.total() <= terms.wanted and kept and self._spread(terms, counts, mine)
        serves, prices, alone = terms.serves, self.prices[terms.id], bool(pinned) and counts == pinned
        if any(n > pinned[shape] for shape, n in counts.items() if not serves[shape]):
            return False  # what may move and serves nothing does not go on
        if not pinned <= counts and (terms.unmet(counts) or not counts <= terms.held):
            return False
        paid = sum(prices[shape] * n for shape, n in counts.items())
        if terms.budget is not None and paid > terms.budget and dict(counts) not in terms.protected:
            return False
        if not alone and sum(n for shape, n in counts.items() if serves[shape]) > terms.most:
            return False
        return (alone or not terms.demand.uniform or len(counts) <= 1) and self._spread(terms, counts, mine)

    def _spread(self, terms, counts, mine):
        pinned = Counter()
        for replica in terms.runs:
            if replica.pinned:
                gpu = self.facts.gpus[replica.gpus[0]]
                pinned[replica.shape, (gpu.node, gpu.pool, gpu.zone)] += 1
        if terms.demand.pools:
            outside = {key: n for key, n in mine.items() if key[1][1] not in terms.demand.pools}
            if any(n > pinned[key] for key, n in outside.items()):
                return False
        for share, at in ((terms.demand.spread.node, 0), (terms.demand.spread.zone, 2)):
            here, still = Counter(), Counter()
            for (_, place), n in mine.items():
                here[place[at]] += n
            for (_, place), n in pinned.items():
                still[place[at]] += n
            most = per_node(share, counts.total())
            if share < 1 and any(n > max(most, still[name]) for name, n in here.items()):
                return False
        return True

    def _moved(self, terms, counts, stays):
        """Moves and their dollars; None: a replica moves that must not."""
        moved, cost, left, given_up = 0, 0, [], 0
        for shape, running in terms.held.items():
            last, mine = min(running, counts[shape]), [r for r in terms.runs if r.shape == shape]
            pins = sum(r.pinned for r in mine)
            staying = [r for r in mine if stays[r]]
            if len(staying) > last or sum(r.pinned for r in staying) < min(pins, counts[shape]):
                return None
            gone = sorted(r.cost for r in mine if not stays[r] and not r.pinned)
            moved, cost = moved + last - len(staying), cost + sum(gone[: last - len(staying)])
            left += gone[last - len(staying) :]
            given_up += max(0, pins - counts[shape])
        stopped = sum(max(0, n - counts[shape]) for shape, n in terms.held.items()) - given_up
        started = [s for s, n in counts.items() for _ in range(max(0, n - terms.held[s]))]
        changed = min(stopped, len(started))
        costs = sorted(left) if terms.own_costs else sorted(terms.unit[shape] for shape in started)
        return moved + changed, cost + sum(costs[:changed])


def _product(left, right):
    if len(left) * len(right) > MOST:
        raise TooMany
    found = {}
    for ((t1, k1), d1), ((t2, k2), d2) in itertools.product(left.items(), right.items()):
        key = _key(Counter(dict(t1)) + Counter(dict(t2))), _key(Counter(dict(k1)) + Counter(dict(k2)))
        found[key] = min(found.get(key, d1 + d2), d1 + d2)
    return found


def _key(counts):
    return frozenset((item, n) for item, n in counts.items() if n)
