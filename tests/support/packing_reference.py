"""Two oracles of packings that know no columns: one Boolean per GPU and option, and brute force.

Both return the first stages of the objective: unmet demand per priority (high first), dollars, share of GPUs.
Money is in hundred-thousandths of a dollar, unmet demand in units that small counts divide: equals are equal.
"""

import itertools
import math
from collections import Counter, defaultdict

from ortools.sat.python import cp_model

from tangram.fleet import WHOLE_GPU
from tangram.packing import ANY_SKU, Demand, Problem
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import layouts

MONEY, UNMET = 100_000, 720_720


def dominant(sku, profile):
    cut = board(sku)
    option = next(o for o in cut.options if o.profile == profile)
    return max(option.compute / cut.compute_slices, option.mask.bit_count() / cut.memory_slices)


class Terms:
    """What demands hold now and would pay, worked out from the documentation of the nouns."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.price = dict(problem.prices)
        self.held = defaultdict(list)  # demand -> [(shape, gpus, start, cost, pinned)]
        # Demands whose replicas have a cost of moving of their own, whatever they move to.
        self.own = {d.id for d in problem.demands if d.divisible} | {
            i.owner for g in problem.gpus for i in g.instances if i.move_cost is not None
        }
        gangs = defaultdict(list)
        starts = {d.id: d.start_h for d in problem.demands}
        for gpu in problem.gpus:
            for i in gpu.instances:
                if i.owner not in starts:
                    continue
                shape = (gpu.sku, i.profile, 1)
                if i.profile == WHOLE_GPU:
                    gangs[i.owner, i.gang or gpu.id].append((gpu, i))
                    continue
                cost = self.hourly(shape) * starts[i.owner] if i.move_cost is None else i.move_cost
                self.held[i.owner].append((shape, (gpu.id,), i.start, round(cost * MONEY), not i.movable))
        for (owner, _), members in gangs.items():
            sku = members[0][0].sku
            shape = (sku, WHOLE_GPU, len(members))
            each = self.price[sku] * starts[owner]
            cost = sum(each if i.move_cost is None else i.move_cost for _, i in members)
            pinned = not all(i.movable for _, i in members)
            ids = tuple(sorted(gpu.id for gpu, _ in members))
            self.held[owner].append((shape, ids, 0, round(cost * MONEY), pinned))

    def hourly(self, shape):
        sku, profile, size = shape
        return self.price[sku] * (size if profile == WHOLE_GPU else dominant(sku, profile))

    def unit(self, demand: Demand, shape):
        """Cost of starting one replica where none runs."""
        return round(self.hourly(shape) * demand.start_h * MONEY)

    def bundles(self, demand: Demand):
        """(parts as a dict, price, unmet) of every bundle that may be chosen, the empty one included."""
        found = []
        held = self.held[demand.id]
        running, pinned = Counter(h[0] for h in held), Counter(h[0] for h in held if h[4])
        for bundle in demand.bundles:
            parts = {(p.sku, p.profile, p.tensor_parallel): p.count for p in bundle.parts if p.count}
            if demand.budget_per_hour is not None and bundle.price_per_hour > demand.budget_per_hour + 1e-9:
                continue
            price, unmet = round(bundle.price_per_hour * MONEY), math.ceil(bundle.unmet * UNMET - 1e-6)
            found.append((parts, price, unmet))
        if pinned:  # given up only by who is served as well as can be without it, and starts nothing instead
            best = min((unmet for *_, unmet in found), default=UNMET)
            asked = {s for parts, _, _ in found for s in parts}
            beside = {s: n for s, n in pinned.items() if s not in asked}  # it stays, and serves nothing
            more = round(sum(self.hourly(s) * n for s, n in beside.items()) * MONEY)
            if beside:
                found += [(parts | beside, price + more, unmet) for parts, price, unmet in found]
            found = [
                (parts, price, unmet)
                for parts, price, unmet in found
                if all(parts.get(s, 0) >= n for s, n in pinned.items())
                or (unmet == best != UNMET and all(n <= running[s] for s, n in parts.items()))
            ]
            hourly = round(sum(self.hourly(s) * n for s, n in pinned.items()) * MONEY)
            if not any(all(n <= pinned[s] for s, n in parts.items()) for parts, _, _ in found):
                found.append((dict(pinned), hourly, UNMET))
        elif not any(not parts for parts, _, _ in found):
            found.append(({}, 0, UNMET))
        return found

    def drained(self, demand: Demand, bundles, parts, unmet):
        """Replicas that run and go although more is wanted than the bundle serves."""
        least = min(each[2] for each in bundles)
        return max(0, len(self.held[demand.id]) - sum(parts.values())) if unmet > least else 0

    def exchanged(self, demand: Demand, parts):
        """(replicas, cost) of running shapes given up for shapes that do not run yet.

        As many move as both stop and start. Each costs what it says itself, which is not counted here, or
        what one of the new ones costs: the cheapest are charged. What is pinned and stops is surplus.
        """
        held = self.held[demand.id]
        running, pinned = Counter(h[0] for h in held), Counter(h[0] for h in held if h[4])
        surplus = (pinned - Counter(parts)).total()
        stopped = (running - Counter(parts)).total() - surplus
        started = sorted(self.unit(demand, shape) for shape in (Counter(parts) - running).elements())
        moves = min(stopped, len(started))
        return moves, 0 if demand.id in self.own else sum(started[:moves])


def boolean_optimum(problem: Problem, *, drains: bool = False):
    """Solve `problem` (divisible demands of one SKU each; no growth, no headroom) GPU by GPU.

    `drains`: who runs may go for who does not and is as important.
    """
    return _Boolean(problem).solve(drains=drains)


class _Boolean:
    def __init__(self, problem: Problem):
        self.problem, self.terms, self.m = problem, Terms(problem), cp_model.CpModel()
        self.taken = defaultdict(list)  # (demand, shape) -> Booleans/integers
        self.at = defaultdict(list)  # (demand, node) -> the same
        self.kept = defaultdict(list)  # demand -> [(shape, site, variable, cost)]
        self.pins = defaultdict(list)  # (demand, shape) -> kept pinned
        self.dollars, self.share, self.moves, self.unmet = [], [], [], defaultdict(list)
        self.drained = defaultdict(list)  # by priority: replicas that run, are wanted and go

    def solve(self, *, drains):
        self.shapes = self._shapes()
        nodes = defaultdict(list)
        for gpu in self.problem.gpus:
            nodes[gpu.node].append(gpu)
        for name, gpus in sorted(nodes.items()):
            self._node(name, gpus)
        for demand in self.problem.demands:
            self._demand(demand)
        if self.problem.move_budget is not None:
            self.m.add(sum(self.moves) <= self.problem.move_budget)
        stages = []
        for priority in sorted(self.unmet, reverse=True):
            stages += [(self.unmet[priority], True)]
            stages += [] if drains else [(self.drained[priority], False)]
        found = []
        for stage, told in (*stages, (self.dollars, True), (self.share, True)):
            self.m.minimize(sum(stage))
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = 1
            solver.parameters.max_deterministic_time = 60
            assert solver.solve(self.m) == cp_model.OPTIMAL
            least = round(solver.objective_value)
            self.m.add(sum(stage) <= least)
            if told:
                found.append(least)
        return found

    def _shapes(self):
        found = {}
        for d in self.problem.demands:
            mine = {(p.sku, p.profile, p.tensor_parallel) for b in d.bundles for p in b.parts}
            found[d.id] = mine | {held[0] for held in self.terms.held[d.id]}
        return found

    def _node(self, name, gpus):
        size, hours = len(gpus), self.problem.horizon_h
        for sku in sorted({g.sku for g in gpus}):
            whole = [g for g in gpus if g.sku == sku and not g.mig_enabled and not g.convertible]
            cut = [g for g in gpus if g.sku == sku and g.mig_enabled and not g.convertible]
            both = [g for g in gpus if g.sku == sku and g.convertible]
            price = round(round(self.terms.price[sku] * MONEY) * hours)
            for g in cut:
                self.dollars.append(price * self._slices(g, True))
            given = []
            for g in both:
                mig = self.m.new_bool_var("mig")
                self.dollars.append(price * self._slices(g, mig))
                given.append(mig)
            self._gangs(name, sku, whole, size, price, len(both), given, gpus[0].nvlink)

    def _slices(self, gpu, mig):  # noqa: C901 - one model, read top to bottom
        """Booleans per option and demand; returns whether the GPU is in use."""
        cut, used = board(gpu.sku), self.m.new_bool_var("used")
        owners = {d.id for d in self.problem.demands}
        strangers = [i for i in gpu.instances if i.owner is not None and i.owner not in owners]
        there = {(i.start, i.profile): i for i in gpu.instances}
        if strangers:
            self.m.add(used == 1)
        cleared = self.m.new_bool_var("cleared")  # mig-manager: what was there is gone
        if gpu.backend != "mig-manager" or not gpu.cuttable or strangers:
            self.m.add(cleared == 0)
        takers = []
        for option in cut.options:
            here = []
            for d in self.problem.demands:
                shape = (gpu.sku, option.profile, 1)
                if shape not in self.shapes[d.id]:
                    continue
                a = self.m.new_bool_var("a")
                here.append(a)
                self.taken[d.id, shape].append(a)
                self.at[d.id, gpu.node].append(a)
                instance = there.get((option.start, option.profile))
                if instance is None:
                    if not gpu.cuttable:
                        self.m.add(a == 0)
                    elif gpu.backend == "mig-manager":
                        self.m.add_implication(a, cleared)
                elif instance in strangers:
                    self.m.add(a == 0)
                elif instance.owner == d.id:
                    self._keep(d, shape, gpu.id, option.start, a, cleared)
            takers.append((option, here))
            for a in here:
                self.m.add(a <= used)
                self.m.add(a <= mig)
        blocked = [cut.option(i.profile, i.start) for i in strangers]
        for q in range(cut.memory_slices):
            over = [a for o, here in takers if o.mask >> q & 1 for a in here]
            self.m.add(sum(over) + sum(o.mask >> q & 1 for o in blocked) <= 1)
        for kind, most in cut.engine_caps:
            fixed = sum(dict(o.engines).get(kind, 0) for o in blocked)
            rest = [dict(o.engines).get(kind, 0) * a for o, here in takers for a in here]
            self.m.add(sum(rest) + fixed <= most)
        return used

    def _keep(self, d, shape, gpu, start, a, cleared):
        for held, gpus, at, cost, pinned in self.terms.held[d.id]:
            if (held, gpus, at) == (shape, (gpu,), start):
                k = self.m.new_bool_var("keep")
                self.m.add(k <= a)
                self.m.add(k + cleared <= 1)
                self.kept[d.id].append((shape, (gpus, at), k, cost))
                if pinned:
                    self.pins[d.id, shape].append(k)

    def _gangs(self, node, sku, whole, size, price, spare, given, nvlink):
        owners = {d.id for d in self.problem.demands}
        room = sum(not (g.instances and g.instances[0].owner not in owners) for g in whole)
        self.dollars.append(price * (len(whole) - room))
        busy, ids = [], {g.id for g in whole}
        for d in self.problem.demands:
            for shape in sorted(self.shapes[d.id]):
                if shape[0] != sku or shape[1] != WHOLE_GPU:
                    continue
                k = shape[2]
                mine = [h for h in self.terms.held[d.id] if h[0] == shape and set(h[1]) <= ids]
                stay = [self.m.new_bool_var("stay") for _ in mine]
                fresh = self.m.new_int_var(0, size // k, "fresh")
                if not nvlink and k not in {1, size}:
                    self.m.add(fresh == 0)
                for s, (_, gpus, at, cost, pinned) in zip(stay, mine, strict=True):
                    self.kept[d.id].append((shape, (gpus, at), s, cost))
                    if pinned:
                        self.pins[d.id, shape].append(s)
                self.taken[d.id, shape] += [*stay, fresh]
                self.at[d.id, node] += [*stay, fresh]
                busy += [k * v for v in (*stay, fresh)]
        self.m.add(sum(busy) <= room + spare - sum(given))
        self.dollars += [price * v for v in busy]

    def _demand(self, d):
        if d.divisible:
            wanted = self._divide(d)
            y = bundles = None
        else:
            bundles = self.terms.bundles(d)
            y = [self.m.new_bool_var("y") for _ in bundles]
            self.m.add_exactly_one(y)
            changed = []
            for v, (parts, price, unmet) in zip(y, bundles, strict=True):
                n, cost = self.terms.exchanged(d, parts)
                self.unmet[d.priority].append(unmet * v)
                self.drained[d.priority].append(self.terms.drained(d, bundles, parts, unmet) * v)
                self.share.append(price * v)
                self.moves.append(n * v)
                self.dollars.append(cost * v)
                changed.append(n * v)
            self._spread(d, y, bundles)
        going = []
        for shape in sorted(self.shapes[d.id]):
            running = sum(held[0] == shape for held in self.terms.held[d.id])
            pins = self.pins[d.id, shape]
            if d.divisible:
                lasting = self._lesser(running, wanted[shape])
                least = self._lesser(len(pins), wanted[shape])
            else:
                pairs = [(v, parts.get(shape, 0)) for v, (parts, _, _) in zip(y, bundles, strict=True)]
                self.m.add(sum(self.taken[d.id, shape]) == sum(n * v for v, n in pairs))
                lasting = sum(min(running, n) * v for v, n in pairs)
                least = sum(min(len(pins), n) * v for v, n in pairs)
            if pins:
                self.m.add(sum(pins) >= least)
            going += self._last(d, shape, lasting)
        if d.id in self.terms.own and not d.divisible:
            self.m.add(sum(going) == sum(changed))

    def _last(self, d, shape, lasting):
        """Each replica that runs stays, moves, or stops for good or for another shape. Returns the latter.

        As many stay or move as last.
        """
        going_on, going = [], []
        pinned = {(h[1], h[2]) for h in self.terms.held[d.id] if h[0] == shape and h[4]}
        for key, site, keep, cost in [k for k in self.kept[d.id] if k[0] == shape]:
            assert key == shape
            if site in pinned:
                going_on.append(keep)
                continue
            move = self.m.new_bool_var("move")
            going.append(self._goes(cost))
            self.m.add(keep + move + going[-1] <= 1)
            self.dollars.append(cost * move)
            self.moves.append(move)
            going_on += [keep, move]
        there = [h for h in self.terms.held[d.id] if h[0] == shape]
        kept = {(k[0], k[1]) for k in self.kept[d.id]}
        for held, gpus, start, cost, pin in there:
            if (held, (gpus, start)) not in kept and not pin:
                move = self.m.new_bool_var("move")
                going.append(self._goes(cost))
                self.m.add(move + going[-1] <= 1)
                self.dollars.append(cost * move)
                self.moves.append(move)
                going_on.append(move)
        self.m.add(sum(going_on) == lasting)
        return going

    def _goes(self, cost):
        """A Boolean: stops here and starts in another shape. Only where such a move has a cost of its own."""
        goes = self.m.new_bool_var("goes")
        self.dollars.append(cost * goes)
        return goes

    def _divide(self, d):
        """A divisible demand of one shape: what is placed."""
        (part,) = d.bundles[0].parts
        assert part.sku != ANY_SKU
        shape = (part.sku, part.profile, part.tensor_parallel)
        assert self.shapes[d.id] == {shape}
        mine = sum(self.taken[d.id, shape])
        self.m.add(mine <= part.count)
        self.m.add(mine >= min(part.count, sum(h[4] for h in self.terms.held[d.id] if h[0] == shape)))
        self.unmet[d.priority].append(max(1, UNMET // part.count) * (part.count - mine))
        held = min(part.count, sum(held[0] == shape for held in self.terms.held[d.id]))
        self.drained[d.priority].append(held - self._lesser(held, mine))
        self.share.append(round(self.terms.hourly(shape) * MONEY) * mine)
        return {shape: mine}

    def _spread(self, d, y, bundles):
        zones = {gpu.node: gpu.zone for gpu in self.problem.gpus}
        for share, places in ((d.spread.node, {n: {n} for n in zones}), (d.spread.zone, self._zones(zones))):
            if share >= 1:
                continue
            for nodes in places.values():
                ids = {gpu.id for gpu in self.problem.gpus if gpu.node in nodes}
                pinned = sum(h[4] and h[1][0] in ids for h in self.terms.held[d.id])
                most = sum(
                    max(1, pinned, math.ceil(share * sum(parts.values()) - 1e-9)) * v
                    for v, (parts, _, _) in zip(y, bundles, strict=True)
                )
                self.m.add(sum(v for n in nodes for v in self.at[d.id, n]) <= most)

    @staticmethod
    def _zones(zones):
        found = defaultdict(set)
        for node, zone in zones.items():
            found[zone].add(node)
        return found

    def _lesser(self, constant, expression):
        v = self.m.new_int_var(0, constant, "lesser")
        self.m.add_min_equality(v, [constant, expression])
        return v


def brute_force_optimum(problem: Problem):
    """Try every bundle of every demand with every legal layout of every GPU: NVML, all GPUs in MIG mode."""
    terms = Terms(problem)
    choices = [terms.bundles(d) for d in problem.demands]
    most = Counter()  # more slices than this are never asked for
    for bundles in choices:
        most.update(
            {
                s: max(parts.get(s, 0) for parts, _, _ in bundles)
                for s in set().union(*(b[0] for b in bundles))
            }
        )
    states = {((), ()): 0}
    for gpu in problem.gpus:
        states = _combine(states, _gpu_states(problem, terms, gpu), most)
    best = None
    supplies = [(Counter(dict(s)), dict(k), n) for (s, k), n in states.items()]
    priorities = sorted({d.priority for d in problem.demands}, reverse=True)
    for combination in itertools.product(*choices):
        need = Counter()
        for parts, _, _ in combination:
            need.update(parts)
        pairs = list(zip(problem.demands, combination, strict=True))
        unmet = []
        for p in priorities:
            mine = [(d, parts, short) for d, (parts, _, short) in pairs if d.priority == p]
            gone = (terms.drained(d, terms.bundles(d), parts, short) for d, parts, short in mine)
            unmet += [sum(short for *_, short in mine), sum(gone)]
        if best is not None and unmet > best[: len(unmet)]:
            continue
        share = sum(c[1] for c in combination)
        for supply, kept, used in supplies:
            if all(supply[shape] >= n for shape, n in need.items()):
                cost, moves = _cost(problem, terms, combination, kept, used)
                if problem.move_budget is None or moves <= problem.move_budget:
                    found = [*unmet, cost, share]
                    best = found if best is None else min(best, found)
    assert best is not None  # nobody gets anything: that is always possible
    return [*best[: 2 * len(priorities) : 2], *best[2 * len(priorities) :]]


def _cost(problem, terms, combination, kept, used):
    total, moved = used, 0
    for d, (parts, _, _) in zip(problem.demands, combination, strict=True):
        changed, cost = terms.exchanged(d, parts)
        left, same = (
            [],
            0,
        )  # costs of those that leave their place; how many get the same shape
        for shape in {held[0] for held in terms.held[d.id]}:
            running = [c for s, *_, c, _ in terms.held[d.id] if s == shape]
            stay = [c for (o, s, c), m in kept.items() for _ in range(m) if (o, s) == (d.id, shape)]
            last = min(len(running), parts.get(shape, 0))
            stay = sorted(stay)[max(0, len(stay) - last) :]
            rest = sorted((Counter(running) - Counter(stay)).elements())
            n = last - len(stay)
            same, cost, left = same + n, cost + sum(rest[:n]), left + rest[n:]
        if d.id in terms.own:
            cost += sum(sorted(left)[:changed])
        total, moved = total + cost, moved + same + changed
    return total, moved


def _gpu_states(problem, terms, gpu):
    """What each legal layout offers, which replicas may stay on it, and its cost."""
    names = {p.profile for d in problem.demands for b in d.bundles for p in b.parts if p.sku == gpu.sku}
    names |= {i.profile for i in gpu.instances if i.owner is not None}
    price = round(round(dict(problem.prices)[gpu.sku] * MONEY) * problem.horizon_h)
    held = {
        (at, shape[1]): (owner, shape, cost)
        for owner, mine in terms.held.items()
        for shape, gpus, at, cost, _ in mine
        if gpus == (gpu.id,)
    }
    found = {((), ()): 0}
    for layout in layouts(board(gpu.sku).only(frozenset(names))):
        if layout:
            supply = Counter((gpu.sku, p.profile, 1) for p in layout)
            stay = Counter(held[p.start, p.profile] for p in layout if (p.start, p.profile) in held)
            found[_key(supply), _key(stay)] = price
    return found


def _combine(left, right, most):
    """Every pair of states; of equal ones the cheapest. Slices nobody could ask for are forgotten."""
    found = {}
    for ((s1, k1), n1), ((s2, k2), n2) in itertools.product(left.items(), right.items()):
        supply, kept = Counter(dict(s1)), Counter(dict(k1))
        supply.update(dict(s2))
        kept.update(dict(k2))
        key = _key(Counter({s: min(n, most[s]) for s, n in supply.items()})), _key(kept)
        found[key] = min(found.get(key, n1 + n2), n1 + n2)
    return found


def _key(counts):
    return tuple(sorted((item, n) for item, n in counts.items() if n))
