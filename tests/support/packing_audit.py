"""Is a packing legal, is it worth what it claims, and could one more replica stand? Counted from its layouts.

Shares no code with the product: boards as published (`oracle`), the nouns of a problem (`packing_facts`).
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from .oracle import FULL
from .packing_facts import MONEY, UNMET, ProblemFacts, board, options, per_node


@dataclass(frozen=True)
class PlacedReplica:
    """One replica of a packing."""

    owner: str
    shape: tuple
    gpus: tuple
    start: int


class Audit:
    """A problem and a packing of it."""

    def __init__(self, problem, packing):
        self.problem, self.packing, self.facts = problem, packing, ProblemFacts(problem)
        self.new = {pool.name: pool for pool in problem.growable}
        self.layouts = {layout.id: layout for layout in packing.layouts}
        self.replicas = list(self._replicas())
        self.counts = defaultdict(Counter)
        for each in self.replicas:
            self.counts[each.owner][each.shape] += 1

    # ---- where things stand

    def pool(self, gpu_id):
        """The pool of a GPU, of one of a new node too."""
        return self.facts.gpus[gpu_id].pool if gpu_id in self.facts.gpus else gpu_id.partition("/new-")[0]

    def sku(self, gpu_id):
        """The SKU of a GPU."""
        return self.facts.gpus[gpu_id].sku if gpu_id in self.facts.gpus else self.new[self.pool(gpu_id)].sku

    def node(self, gpu_id):
        """The node of a GPU."""
        return self.facts.gpus[gpu_id].node if gpu_id in self.facts.gpus else gpu_id.rpartition("/")[0]

    def zone(self, gpu_id):
        """The zone of a GPU."""
        return self.facts.gpus[gpu_id].zone if gpu_id in self.facts.gpus else self.new[self.pool(gpu_id)].zone

    def _replicas(self):
        gangs = defaultdict(list)
        for layout in self.packing.layouts:
            gpu = self.facts.gpus.get(layout.id)
            foreign = {(i.profile, i.start, i.owner) for i in (self.facts.foreign(gpu) if gpu else ())}
            for i in layout.instances:
                if (i.profile, i.start, i.owner) in foreign:
                    continue
                if i.owner is not None and i.profile == FULL:
                    gangs[i.owner, i.gang or f"\0{layout.id}"].append(layout.id)
                elif i.owner is not None:
                    yield PlacedReplica(i.owner, (self.sku(layout.id), i.profile, 1), (layout.id,), i.start)
        for (owner, _), ids in gangs.items():
            yield PlacedReplica(owner, (self.sku(ids[0]), FULL, len(ids)), tuple(sorted(ids)), 0)

    def recut(self, gpu):
        """Whether the slices of a GPU that mig-manager cuts change: then it is cleared first."""
        before = {(i.profile, i.start) for i in gpu.instances}
        after = {(i.profile, i.start) for i in self.layouts[gpu.id].instances}
        return gpu.backend == "mig-manager" and not gpu.convertible and before != after

    def stays(self, terms):
        """The running replicas of a demand that go on where they are."""
        there = {(each.owner, each.shape, each.gpus, each.start) for each in self.replicas}
        return [
            each
            for each in terms.runs
            if (each.owner, each.shape, each.gpus, each.start) in there
            and not (each.shape[1] != FULL and self.recut(self.facts.gpus[each.gpus[0]]))
        ]

    # ---- legality

    def violations(self):
        """What no legal packing has, one line each."""
        return [
            *self._boards(),
            *self._gangs(),
            *(line for terms in self.facts.terms for line in self._demand(terms)),
            *self._budgets(),
        ]

    def _boards(self):
        named = {terms.id for terms in self.facts.terms}
        for layout in self.packing.layouts:
            slices = [(i.profile, i.start) for i in layout.instances]
            if len(set(slices)) < len(slices) or board(self.sku(layout.id)).wrong(slices):
                yield f"{layout.id}: {slices} is no layout"
            gpu, whole = self.facts.gpus.get(layout.id), any(profile == FULL for profile, _ in slices)
            if gpu is None:
                mig = self.new[self.pool(layout.id)].mig_enabled
                if slices and whole == mig:
                    yield f"{layout.id}: MIG mode of a new node"
                continue
            if slices and not gpu.convertible and whole == gpu.mig_enabled:
                yield f"{layout.id}: MIG mode is {gpu.mig_enabled}"
            before = {(i.profile, i.start) for i in gpu.instances}
            if gpu.mig_enabled and not gpu.convertible and not gpu.cuttable and before != set(slices):
                yield f"{layout.id}: must not be cut"
            after = {(i.profile, i.start): i.owner for i in layout.instances}
            for i in self.facts.foreign(gpu):
                if after.get((i.profile, i.start)) != i.owner or (i.profile != FULL and self.recut(gpu)):
                    yield f"{layout.id}: {i.owner} must stay"
            owners = {i.owner for i in layout.instances} - {None}
            if strange := owners - named - {i.owner for i in self.facts.foreign(gpu)}:
                yield f"{layout.id}: {strange} ask for nothing"
        grown = {layout.id for layout in self.packing.layouts} - set(self.facts.gpus)
        for name, pool in self.new.items():
            nodes = {self.node(gpu_id) for gpu_id in grown if self.pool(gpu_id) == name}
            most = dict(self.packing.grown).get(name, 0)
            if len(nodes) > most or most > pool.max_nodes:
                yield f"{name} grows by {len(nodes)} of {most} nodes"

    def _gangs(self):
        size = Counter(gpu.node for gpu in self.problem.gpus)
        stays = {gpu_id for terms in self.facts.terms for each in self.stays(terms) for gpu_id in each.gpus}
        for each in self.replicas:
            if len(each.gpus) == 1 or set(each.gpus) <= stays:
                continue
            nodes = {self.node(gpu_id) for gpu_id in each.gpus}
            known = [self.facts.gpus[gpu_id] for gpu_id in each.gpus if gpu_id in self.facts.gpus]
            pool = self.new.get(self.pool(each.gpus[0]))
            linked = min(gpu.nvlink_gpus for gpu in known) if known else pool.nvlink_gpus
            full = size[known[0].node] if known else pool.node_size
            if len(nodes) > 1 or (len(each.gpus) > linked and len(each.gpus) != full):
                yield f"{each.owner}: gang on {each.gpus}"
            if len({self.facts.price(gpu) for gpu in known}) > 1:
                yield f"{each.owner}: gang of GPUs of two prices"

    def _demand(self, terms):
        counts, stays = self.counts[terms.id], self.stays(terms)
        if terms.priority is None:
            if counts != terms.held:
                yield f"{terms.id}: ran {terms.held}, runs {counts}"
            return
        if not set(counts) <= set(terms.shapes):
            yield f"{terms.id}: {set(counts) - set(terms.shapes)} was not offered"
            return
        yield from self._pins(terms, counts, stays)
        alone = bool(terms.pinned) and counts == terms.pinned
        yield from self._limits(terms, counts, alone=alone)
        yield from self._places(terms, counts)

    def _pins(self, terms, counts, stays):
        still = Counter(each.shape for each in stays if each.pinned)
        for shape, n in terms.pinned.items():
            if shape in terms.shapes and still[shape] < min(n, counts[shape]):
                yield f"{terms.id}: {shape} must not move"
        given_up = any(counts[shape] < n for shape, n in terms.pinned.items() if shape in terms.shapes)
        if given_up and terms.is_request and counts.total() < terms.wanted:
            yield f"{terms.id}: gives up what must not move, and goes short"
        if given_up and not terms.is_request and (terms.unmet(counts) or counts - terms.held):
            yield f"{terms.id}: gives up what must not move"

    def _limits(self, terms, counts, *, alone):
        if terms.is_request:
            if counts.total() > terms.wanted:
                yield f"{terms.id}: more than it asks for"
            return
        serves, prices = terms.serves, terms.prices(self.facts.hourly)
        if any(n > terms.pinned[shape] for shape, n in counts.items() if not serves[shape]):
            yield f"{terms.id}: {counts}, of which some shapes are not offered"
        if not alone and sum(n for shape, n in counts.items() if serves[shape]) > terms.most:
            yield f"{terms.id}: more than {terms.most} replicas"
        if not alone and terms.demand.uniform and len(counts) > 1:
            yield f"{terms.id}: {len(counts)} shapes"
        paid = sum(prices[shape] * n for shape, n in counts.items())
        if terms.budget is not None and paid > terms.budget and dict(counts) not in terms.protected:
            yield f"{terms.id}: {paid} is above its budget"

    def _places(self, terms, counts):
        mine = [each for each in self.replicas if each.owner == terms.id]
        fixed = {(r.shape, r.gpus, r.start) for r in terms.runs if r.pinned}
        for each in mine:
            outside = terms.demand.pools and self.pool(each.gpus[0]) not in terms.demand.pools
            if outside and (each.shape, each.gpus, each.start) not in fixed:
                yield f"{terms.id}: stands in pool {self.pool(each.gpus[0])}"
        for share, place in ((terms.demand.spread.node, self.node), (terms.demand.spread.zone, self.zone)):
            here = Counter(place(each.gpus[0]) for each in mine)
            still = Counter(place(each.gpus[0]) for each in terms.runs if each.pinned)
            for name, n in here.items():
                if share < 1 and n > max(per_node(share, counts.total()), still[name]):
                    yield f"{terms.id}: {n} of {counts.total()} replicas on {name}"

    # ---- what it is worth

    def moves(self, terms, counts=None):
        """How many replicas of a demand move, and what that costs at least; `counts`: were there so many."""
        counts = self.counts[terms.id] if counts is None else counts
        stays = Counter(self.stays(terms))
        moved, cost, left = 0, 0, []
        for shape, running in terms.held.items():
            last = min(running, counts[shape])
            stay = sum(n for each, n in stays.items() if each.shape == shape)
            gone = sorted(r.cost for r in terms.runs if r.shape == shape and r not in stays and not r.pinned)
            moved, cost = moved + last - stay, cost + sum(gone[: last - stay])
            left += gone[last - stay :]
        given_up = sum(max(0, n - counts[shape]) for shape, n in terms.pinned.items())
        stopped = sum(max(0, n - counts[shape]) for shape, n in terms.held.items()) - given_up
        started = [s for s, n in counts.items() for _ in range(max(0, n - terms.held[s]))]
        changed = min(stopped, len(started))
        costs = sorted(left) if terms.own_costs else sorted(terms.unit[shape] for shape in started)
        return moved + changed, cost + sum(costs[:changed])

    def _budgets(self):
        moved = {terms.id: self.moves(terms)[0] for terms in self.facts.terms}
        listed = Counter(move.owner for move in self.packing.moves)
        if self.problem.move_budget is not None and sum(moved.values()) > self.problem.move_budget:
            yield f"{sum(moved.values())} moves"
        for owner, n in moved.items():
            if listed[owner] != n:
                yield f"{owner}: {listed[owner]} moves are listed, {n} there are"
        away = Counter(self.pool(move.source.gpu) for move in self.packing.moves)
        for pool, most in self.problem.move_budgets:
            if away[pool] > most:
                yield f"{away[pool]} moves from pool {pool}"

    def values(self):
        """The stages that the layouts are worth, by name."""
        found = defaultdict(float)
        for terms in self.facts.terms:
            if terms.priority is not None:
                found[f"unmet[{terms.priority}]"] += terms.unmet(self.counts[terms.id]) / UNMET
        dollars = sum(self.moves(terms)[1] for terms in self.facts.terms)
        for gpu in self.problem.gpus:
            if any(i.owner is not None for i in self.layouts[gpu.id].instances):
                dollars += self.facts.money(gpu)
        for name, nodes in self.packing.grown:
            pool = self.new[name]
            dollars += round(
                round(pool.price_per_gpu_hour * MONEY) * pool.node_size * nodes * self.problem.horizon_h
            )
        share = sum(round(self.facts.hourly(each.shape) * MONEY) for each in self.replicas)
        return dict(found) | {"dollars": dollars / MONEY, "share": share / MONEY}


# ---- maximal


def improvable(problem, packing):
    """(demand, shape, GPUs) of every replica that would lower what is unmet while all else stays as it is.

    It stands on GPUs that the packing leaves idle, re-cut as their backend and policy allow, on free slices,
    or on one more node of a pool that may still grow.
    """
    audit, found = Audit(problem, packing), []
    for terms in audit.facts.terms:
        if terms.priority is None or not terms.unmet(audit.counts[terms.id]):
            continue
        for shape in terms.shapes:
            more = audit.counts[terms.id] + Counter([shape])
            if _allowed(audit, terms, more) and terms.unmet(more) < terms.unmet(audit.counts[terms.id]):
                found += [(terms.id, shape, gpus) for gpus in _room(audit, terms, shape)]
    return found


def _allowed(audit, terms, counts):
    """Whether so many replicas keep every limit of a demand but those of its places."""
    held = terms.pinned
    if any(counts[shape] < n for shape, n in held.items() if shape in terms.shapes):
        return False
    more = audit.moves(terms, counts)[0] - audit.moves(terms)[0]
    budget = audit.problem.move_budget
    if more and (audit.problem.move_budgets or (budget is not None and len(audit.packing.moves) >= budget)):
        return False  # a replica that stops would move instead
    return not list(audit._limits(terms, counts, alone=False))


def _room(audit, terms, shape):
    """GPUs on which one more replica may stand."""
    free = defaultdict(list)
    for gpu in audit.problem.gpus:
        if gpu.sku != shape[0] or not _place_allows(audit, terms, gpu.id):
            continue
        there = audit.layouts[gpu.id].instances
        taken = any(i.owner is not None for i in there)
        if shape[1] == FULL:
            if not taken and (gpu.convertible or not gpu.mig_enabled):
                free[gpu.node, audit.facts.price(gpu), gpu.pool, gpu.nvlink_gpus].append(gpu.id)
        elif _slice_fits(audit, gpu, there, shape[1]):
            yield (gpu.id,)
    size = Counter(gpu.node for gpu in audit.problem.gpus)
    for (node, *_, linked), ids in free.items():
        if len(ids) >= shape[2] and (shape[2] <= linked or shape[2] == size[node]):
            yield tuple(ids[: shape[2]])
    yield from _new_nodes(audit, terms, shape)


def _new_nodes(audit, terms, shape):
    """Pools that may grow by one more node on which a replica may stand."""
    grown = dict(audit.packing.grown)
    for pool in audit.problem.growable:
        if pool.sku != shape[0] or grown.get(pool.name, 0) >= pool.max_nodes:
            continue
        if pool.mig_enabled:
            fits = shape[1] in board(pool.sku).profiles
        else:
            sizes = {*range(1, min(pool.nvlink_gpus, pool.node_size) + 1), pool.node_size}
            fits = shape[1] == FULL and shape[2] in sizes
        if fits and _place_allows(audit, terms, f"{pool.name}/new-{pool.max_nodes}/0"):
            yield (f"{pool.name}/new",)


def _slice_fits(audit, gpu, there, profile):
    """Whether a GPU has a free slice, or may be cut to have one, while its replicas stay."""
    if not (gpu.mig_enabled or gpu.convertible) or any(i.profile == FULL for i in there):
        return False
    cut, used = board(gpu.sku), [(i.profile, i.start) for i in there if i.owner is not None]
    before = [(i.profile, i.start) for i in gpu.instances]
    fits = [site for site in options(gpu.sku, {profile}) if not cut.wrong([*used, site])]
    if gpu.convertible and not gpu.mig_enabled:
        return bool(fits)
    if not gpu.cuttable:
        return any(site in before for site in fits)
    if gpu.backend == "mig-manager" and not gpu.convertible and used:
        # Cut anew it would be cleared: only what exists, or is made in any case, counts.
        now = [(i.profile, i.start) for i in there]
        return any(site in now for site in fits)
    return bool(fits)


def _place_allows(audit, terms, gpu_id):
    if terms.demand.pools and audit.pool(gpu_id) not in terms.demand.pools:
        return False
    mine = [each for each in audit.replicas if each.owner == terms.id]
    for share, place in ((terms.demand.spread.node, audit.node), (terms.demand.spread.zone, audit.zone)):
        here = sum(place(each.gpus[0]) == place(gpu_id) for each in mine)
        if share < 1 and here + 1 > per_node(share, len(mine) + 1):
            return False
    return True


def near(one, other, dollars=False):
    """Whether two values of a stage are one but for the rounding of prices and of floating point."""
    return math.isclose(one, other, abs_tol=3e-4 if dollars else 2e-6)
