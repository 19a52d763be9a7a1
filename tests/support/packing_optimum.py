"""The best packing of a small fleet, by one Boolean per GPU and place of a slice: slow and plain.

It shares no code with the product but the classes that state a problem. Stages as in docs/packing.md: unmet
demand by priority and, of equals, the fewest running replicas that end; dollars; the share of GPUs in use.
"""

from collections import defaultdict
from dataclasses import dataclass

from ortools.sat.python import cp_model

from .cp_solver import cp_solver
from .oracle import FULL
from .packing_facts import FINE, MONEY, UNMET, ProblemFacts, board, options, per_node

ENDS = "ends"  # the stage between unmet and dollars; plans do not state it


@dataclass(frozen=True)
class KnownStage:
    """A stage: nothing better than `bound` exists, and `value` is that of a legal packing."""

    name: str
    value: float
    bound: float

    @property
    def proved(self):
        """Whether it is the optimum."""
        return self.value == self.bound


@dataclass(frozen=True)
class Location:
    """Where a replica stands, as far as spread and pools matter."""

    node: str
    pool: str
    zone: str


def optimum(problem, seconds=None):
    """Minimise in stages, each in `seconds` of deterministic time: the first unproved one is the last."""
    return PerGPU(ProblemFacts(problem)).solve(seconds)


class PerGPU:
    """One integer program."""

    def __init__(self, facts):
        self.facts, self.problem = facts, facts.problem
        self.m = cp_model.CpModel()
        self.supply = defaultdict(list)  # (shape, place) -> replicas that stand there
        self.stay = {}  # replica -> Boolean: it goes on where it is
        self.at = {}  # (demand, shape, place) -> replicas
        self.moves, self.leaving = [], defaultdict(list)
        self.dollars, self.share = [], []
        self.unmet, self.ends = defaultdict(list), defaultdict(list)
        self.unmet_of = {}  # demand -> units
        self.runs = {}  # (GPU, start) -> replica
        for terms in facts.terms:
            for replica in terms.runs:
                self.runs |= {(gpu, replica.start): replica for gpu in replica.gpus}
        self.shapes = {shape for terms in facts.terms for shape in terms.shapes}
        cares = (t.demand for t in facts.terms if t.demand is not None)
        self.pools_matter = any(d.pools for d in self.problem.demands)
        self.places_matter = self.pools_matter or any(min(d.spread.node, d.spread.zone) < 1 for d in cares)
        self._nodes()
        self._growth()
        for terms in facts.terms:
            self._place(terms)
        self._supplied()
        for terms in facts.terms:
            self._terms(terms)
        self._move_budgets()

    # ---- what GPUs become

    def _where(self, node, pool, zone):
        return Location(node, pool, zone) if self.places_matter else Location("", "", "")

    def _nodes(self):
        nodes = defaultdict(list)
        for gpu in self.problem.gpus:
            nodes[gpu.node].append(gpu)
        for node, gpus in sorted(nodes.items()):
            groups = defaultdict(list)
            for gpu in gpus:
                if gpu.mig_enabled and not gpu.convertible:
                    used = self._slices(gpu, 1, self._where(node, gpu.pool, gpu.zone))
                    self.dollars.append((self.facts.money(gpu), used))
                else:
                    key = (
                        gpu.sku,
                        self.facts.price(gpu),
                        gpu.pool if self.pools_matter else "",
                        gpu.nvlink_gpus,
                    )
                    groups[key].append(gpu)
            for alike in groups.values():
                self._whole(node, len(gpus), alike)

    def _names(self, sku):
        return {profile for of, profile, _ in self.shapes if of == sku and profile != FULL}

    def _slices(self, gpu, mig, place):
        """Booleans of the slices that replicas stand on; returns whether the GPU is in use."""
        cut, used = board(gpu.sku), self.m.new_bool_var("used")
        there = {(i.profile, i.start): i for i in gpu.instances}
        foreign = {(i.profile, i.start) for i in self.facts.foreign(gpu)}
        cleared = self.m.new_bool_var("cleared")  # by mig-manager: nothing on it goes on
        if gpu.backend != "mig-manager" or not gpu.cuttable or foreign:
            self.m.add(cleared == 0)
        cells, engines = defaultdict(list), defaultdict(list)
        known = {site for site in there if site not in foreign}
        for profile, start in {*options(gpu.sku, self._names(gpu.sku)), *foreign}:
            if (profile, start) in foreign:
                taken = 1
                self.m.add(used == 1)
            else:
                taken = self.m.new_bool_var(f"{gpu.id}.{profile}@{start}")
                self.m.add_implication(taken, used)
                self.m.add(taken <= mig)
                self.supply[(gpu.sku, profile, 1), place].append(taken)
                if (profile, start) not in known and not gpu.cuttable:
                    self.m.add(taken == 0)
                elif (profile, start) not in known and gpu.backend == "mig-manager" and not gpu.convertible:
                    self.m.add_implication(taken, cleared)
                replica = self.runs.get((gpu.id, start))
                if replica is not None and replica.shape[1] == profile:
                    stay = self.stay[replica] = self.m.new_bool_var("stay")
                    self.m.add_implication(stay, taken)
                    self.m.add(stay + cleared <= 1)
            for cell in cut.cells(profile, start):
                cells[cell].append(taken)
            for kind, n in enumerate(cut.profiles[profile].engines):
                engines[kind].append(n * taken)
        for here in cells.values():
            self.m.add(sum(here) <= 1)
        for kind, here in engines.items():
            self.m.add(sum(here) <= cut.engines[kind])
        return used

    def _whole(self, node, size, gpus):
        """GPUs of one node that gangs take, some of which may be put into MIG mode."""
        first, price = gpus[0], self.facts.money(gpus[0])
        place, to_mig = self._where(node, first.pool, first.zone), []
        foreign = sum(bool(self.facts.foreign(gpu)) for gpu in gpus)
        self.dollars.append((price, foreign))
        if board(first.sku).profiles:
            for gpu in gpus:
                if gpu.convertible:
                    to_mig.append(self.m.new_bool_var("mig"))
                    self.dollars.append((price, self._slices(gpu, to_mig[-1], place)))
        taken = self._gangs(first.sku, size, len(gpus), first.nvlink_gpus, place)
        replicas = {self.runs[g.id, 0] for g in gpus if not g.mig_enabled and (g.id, 0) in self.runs}
        for replica in sorted(replicas, key=lambda each: each.gpus):
            stay = self.stay[replica] = self.m.new_bool_var("stay")
            self.supply[replica.shape, place].append(stay)
            taken.append(replica.shape[2] * stay)
        self.m.add(sum(taken) + sum(to_mig) <= len(gpus) - foreign)
        self.dollars.append((price, sum(taken)))

    def _gangs(self, sku, size, count, linked, place):
        taken = []
        for shape in sorted(self.shapes):
            k = shape[2]
            if shape[:2] == (sku, FULL) and k <= count and (k <= linked or k == size):
                fresh = self.m.new_int_var(0, count // k, "gangs")
                self.supply[shape, place].append(fresh)
                taken.append(k * fresh)
        return taken

    def _growth(self):
        for pool in self.problem.growable:
            price = round(round(pool.price_per_gpu_hour * MONEY) * pool.node_size * self.problem.horizon_h)
            last = 1
            for number in range(pool.max_nodes):
                new = self.m.new_bool_var(f"{pool.name}/{number}")
                self.m.add(new <= last)
                self.dollars.append((price, new))
                last, place = new, self._where(f"+{pool.name}/{number}", pool.name, pool.zone)
                if pool.mig_enabled:
                    for _ in range(pool.node_size):
                        self._slices(_Fresh(pool.sku), new, place)
                else:
                    taken = self._gangs(pool.sku, pool.node_size, pool.node_size, pool.nvlink_gpus, place)
                    self.m.add(sum(taken) <= pool.node_size * new)

    # ---- what demands take

    def _place(self, terms):
        still = defaultdict(int)
        for each in terms.runs:
            if each.pinned:
                gpu = self.facts.gpus[each.gpus[0]]
                still[each.shape, self._where(gpu.node, gpu.pool, gpu.zone)] += 1
        pools = terms.demand.pools if terms.demand is not None else ()
        for (shape, place), supply in self.supply.items():
            if shape in terms.shapes:
                most = sum(1 if v.proto.domain[1] == 1 else v.proto.domain[1] for v in supply)
                allowed = most if not pools or place.pool in pools else still[shape, place]
                self.at[terms.id, shape, place] = self.m.new_int_var(0, min(most, allowed), "at")

    def _supplied(self):
        taken, stays = defaultdict(list), defaultdict(list)
        for (_, shape, place), n in self.at.items():
            taken[shape, place].append(n)
        for key, supply in self.supply.items():
            self.m.add(sum(taken[key]) == sum(supply))
        for replica, stay in self.stay.items():
            gpu = self.facts.gpus[replica.gpus[0]]
            stays[replica.owner, replica.shape, self._where(gpu.node, gpu.pool, gpu.zone)].append(stay)
        for key, staying in stays.items():
            self.m.add(sum(staying) <= self.at.get(key, 0))

    def _terms(self, terms):
        counts = dict.fromkeys(terms.shapes, 0)
        for (owner, shape, _), n in self.at.items():
            if owner == terms.id:
                counts[shape] += n
        if terms.priority is None:
            for shape, n in counts.items():
                self.m.add(n == terms.held[shape])
        elif terms.is_request:
            self._request(terms, counts)
        else:
            self._mix(terms, counts)
        self.share += [(round(self.facts.hourly(shape) * MONEY), n) for shape, n in counts.items()]
        if terms.demand is not None:
            self._spread(terms, counts)
        self._keep(terms, counts)

    def _request(self, terms, counts):
        wanted, placed = terms.wanted, sum(counts.values())
        weight = max(1, UNMET // wanted) if wanted else 0
        self.m.add(placed <= wanted)
        self.unmet_of[terms.id] = weight * (wanted - placed)
        self.unmet[terms.priority].append(self.unmet_of[terms.id])
        here = min(wanted, sum(terms.held[shape] for shape in counts))
        self.ends[terms.priority].append(self._positive(here - placed, here))
        pinned = {shape: n for shape, n in terms.pinned.items() if shape in counts}
        if sum(pinned.values()) > wanted:
            self.m.add(placed == wanted)
        for shape, n in counts.items():
            if sum(pinned.values()) > wanted:
                self.m.add(n <= pinned.get(shape, 0))
            else:
                self.m.add(n >= pinned.get(shape, 0))

    def _mix(self, terms, counts):
        demand, serves, prices = terms.demand, terms.serves, terms.prices(self.facts.hourly)
        unmet = self.m.new_int_var(0, UNMET, "unmet")
        for shape, n in counts.items():
            if not serves[shape]:  # it is not offered: what must not move may stay
                self.m.add(n <= terms.pinned[shape])
        there = sum(n for shape, n in counts.items() if serves[shape])
        if demand.rate > 0:
            served = sum(serves[shape] * n for shape, n in counts.items())
            self.m.add(FINE * unmet + served >= UNMET * FINE)
        if demand.min_replicas:
            self.m.add(demand.min_replicas * unmet + UNMET * there >= UNMET * demand.min_replicas)
        self.unmet_of[terms.id] = unmet
        self.unmet[terms.priority].append(unmet)
        if terms.runs:
            short = self.m.new_bool_var("short")
            self.m.add(unmet <= terms.reachable_unmet(self.facts.hourly)).only_enforce_if(~short)
            ending = self.m.new_int_var(0, len(terms.runs), "ends")
            self.m.add(ending >= len(terms.runs) - sum(counts.values())).only_enforce_if(short)
            self.ends[terms.priority].append(ending)
        self._limits(terms, counts, unmet, there, prices)

    def _limits(self, terms, counts, unmet, there, prices):
        exempt = []
        for kept in terms.protected:
            exempt.append(self.m.new_bool_var("protected"))
            for shape, n in counts.items():
                self.m.add(n == kept.get(shape, 0)).only_enforce_if(exempt[-1])
        free = [~each for each in exempt]
        if terms.budget is not None:
            paid = sum(prices[shape] * n for shape, n in counts.items())
            self.m.add(paid <= terms.budget).only_enforce_if(*free)
        stays = exempt[:1] if terms.pinned else []  # what must not move may go on alone, whatever the limits
        others = [~each for each in stays]
        self.m.add(there <= terms.most).only_enforce_if(*others)
        if terms.demand.uniform:
            used = []
            for n in counts.values():
                used.append(self.m.new_bool_var("uses"))
                self.m.add(n == 0).only_enforce_if(~used[-1])
            self.m.add(sum(used) <= 1).only_enforce_if(*others)
        if terms.pinned:
            surplus, held = self.m.new_bool_var("surplus"), terms.held
            self.m.add(unmet == 0).only_enforce_if(surplus)
            for shape, n in counts.items():
                self.m.add(n <= held[shape]).only_enforce_if(surplus)
                self.m.add(n >= terms.pinned[shape]).only_enforce_if(~surplus)

    def _spread(self, terms, counts):
        for share, key in ((terms.demand.spread.node, "node"), (terms.demand.spread.zone, "zone")):
            if share >= 1:
                continue
            here = defaultdict(list)
            for (owner, _, place), n in self.at.items():
                if owner == terms.id:
                    here[getattr(place, key)].append(n)
            total, many = sum(counts.values()), sum(v.proto.domain[1] for n in here.values() for v in n)
            caps = [per_node(share, n) for n in range(many + 1)]
            most = self.m.new_int_var(0, caps[-1], "cap")
            whole = self.m.new_int_var(0, many, "replicas")
            self.m.add(whole == total)
            self.m.add_element(whole, caps, most)
            for name, replicas in here.items():
                still = sum(
                    each.pinned and getattr(self.facts.gpus[each.gpus[0]], key) == name for each in terms.runs
                )
                if still:
                    more = self.m.new_int_var(0, max(caps[-1], still), "cap")
                    self.m.add_max_equality(more, [most, still])
                    self.m.add(sum(replicas) <= more)
                else:
                    self.m.add(sum(replicas) <= most)

    # ---- what goes on where it is, and what moves

    def _keep(self, terms, counts):
        """A running replica stays, moves to an equal shape, ends, or is replaced by one of another shape."""
        held, going, lasting, staying, surplus = terms.held, {}, [], [], []
        for shape, running in held.items():
            n = counts.get(shape, 0)
            last = self._lesser(running, n)
            mine = [replica for replica in terms.runs if replica.shape == shape]
            stay = [self.stay.get(replica, 0) for replica in mine]
            move = [0 if r.pinned else self._moves(r, s, going) for r, s in zip(mine, stay, strict=True)]
            self.m.add(sum(stay) + sum(move) == last)
            pinned = [s for replica, s in zip(mine, stay, strict=True) if replica.pinned]
            if pinned:
                least = self._lesser(len(pinned), n)
                self.m.add(sum(pinned) >= least)
                surplus.append(len(pinned) - least)
            lasting.append(last)
            staying += stay
        if not held:
            return
        stopped = sum(held.values()) - sum(lasting) - sum(surplus)
        started = sum(counts.values()) - sum(lasting)
        most = sum(held.values())
        changed = self.m.new_int_var(0, most, "changed")
        self.m.add_min_equality(changed, [stopped, started])
        self.moves.append(sum(lasting) - sum(staying) + changed)
        if terms.own_costs:
            self.m.add(sum(goes for _, goes in going.values()) == changed)
        else:
            self._starts(terms, counts, changed, most)
        self._leave(terms, sum(lasting) - sum(staying) + changed, going)

    def _moves(self, replica, stay, going):
        """A Boolean: it moves to an equal shape. `going`: that, and its change to another shape."""
        move, goes = self.m.new_bool_var("moves"), self.m.new_bool_var("goes")
        self.m.add(stay + move + goes <= 1)
        self.dollars += [(replica.cost, move), (replica.cost, goes)]
        going[replica] = move, goes
        return move

    def _starts(self, terms, counts, changed, most):
        """Replicas of new shapes are charged, the cheapest first, as many as replace another."""
        charged = []
        for shape, n in counts.items():
            new = self._positive(
                n - terms.held[shape], sum(v.proto.domain[1] for v in self._all(terms, shape))
            )
            charged.append(self.m.new_int_var(0, most, "charged"))
            self.m.add(charged[-1] <= new)
            self.dollars.append((terms.unit[shape], charged[-1]))
        self.m.add(sum(charged) == changed)

    def _all(self, terms, shape):
        return [n for (owner, of, _), n in self.at.items() if (owner, of) == (terms.id, shape)]

    def _leave(self, terms, moves, going):
        """From which pools a demand's moves are: of replicas that have no cost of their own, any that end."""
        if not self.problem.move_budgets:
            return
        split, pools = [], defaultdict(list)
        for replica in going:
            pools[self.facts.gpus[replica.gpus[0]].pool].append(replica)
        for pool, here in pools.items():
            split.append(self.m.new_int_var(0, len(here), "from"))
            costly = [sum(going[each]) if terms.own_costs else going[each][0] for each in here]
            self.m.add(split[-1] >= sum(costly))
            self.m.add(split[-1] <= sum(1 - self.stay.get(each, 0) for each in here))
            self.leaving[pool].append(split[-1])
        self.m.add(sum(split) >= moves)

    def _move_budgets(self):
        if self.problem.move_budget is not None:
            self.m.add(sum(self.moves) <= self.problem.move_budget)
        for pool, most in self.problem.move_budgets:
            self.m.add(sum(self.leaving[pool]) <= most)

    def _lesser(self, constant, expression):
        least = self.m.new_int_var(0, constant, "lesser")
        self.m.add_min_equality(least, [constant, expression])
        return least

    def _positive(self, expression, most):
        part = self.m.new_int_var(0, max(0, most), "positive")
        self.m.add_max_equality(part, [0, expression])
        return part

    # ---- stage after stage

    def solve(self, seconds):
        """The stages up to the first that is not proved."""
        goals = []
        for priority in sorted(self.unmet, reverse=True):
            goals.append((f"unmet[{priority}]", [(1, n) for n in self.unmet[priority]], UNMET))
            goals.append((ENDS, [(1, n) for n in self.ends[priority]], 1))
        goals += [("dollars", self.dollars, MONEY), ("share", self.share, MONEY)]
        found, solver = [], cp_solver(seconds or 600)
        for name, terms, scale in goals:
            goal = sum(factor * n for factor, n in terms)
            self.m.minimize(goal)
            status = solver.solve(self.m)
            assert status in {cp_model.OPTIMAL, cp_model.FEASIBLE} or seconds, solver.status_name(status)
            if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
                return found
            value, bound = (
                round(solver.objective_value),
                min(round(solver.objective_value), round(solver.best_objective_bound)),
            )
            if name != ENDS:
                found.append(KnownStage(name, value / scale, bound / scale))
            if status != cp_model.OPTIMAL:
                assert seconds, name
                return found
            self.m.add(goal <= value)
            self.m.clear_hints()
            for index, each in enumerate(solver.response_proto.solution):
                self.m.add_hint(self.m.get_int_var_from_proto_index(index), each)
        return found


@dataclass(frozen=True)
class _Fresh:
    """A GPU of a node that does not exist yet."""

    sku: str
    id: str = ""
    backend: str = "nvml"
    cuttable: bool = True
    convertible: bool = False
    instances: tuple = ()
