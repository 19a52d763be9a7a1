"""Random packing problems of LLMDeployments and raw slices. Equal seeds, equal problems.

Offers are drawn, not sized. Their rates are those of slices as measured (1g : 2g : 3g : 4g : 7g as
0.8 : 2.1 : 3.3 : 4.4 : 7.9), with noise. Fleets run a random legal state, drawn without any solver.
"""

import random
from collections import Counter
from dataclasses import replace

from tangram.packing import (
    ANY_SKU,
    Demand,
    GPUState,
    GrowablePool,
    Instance,
    Offer,
    Part,
    Problem,
    Spread,
    slice_request,
)

from .oracle import BOARDS, FULL
from .packing_facts import options
from .packing_problems import linked_gpus

PRICES = {"A100-40GB-SXM": 1.3, "A30": 0.7, "H100-80GB-SXM": 3.07, "H200-141GB-SXM": 3.9, "L4": 0.55}
SPEED = {"A100-40GB-SXM": 0.52, "A30": 0.3, "H100-80GB-SXM": 1.0, "H200-141GB-SXM": 1.35, "L4": 0.16}
SERVES = {1: 0.8, 2: 2.1, 3: 3.3, 4: 4.4, 7: 7.9}  # by compute slices of eight-slice boards
POOLS = ("p0", "p1")
A30_SERVES = {1: 2.0, 2: 4.1, 4: 8.0}
KINDS = (
    "plenty",
    "shortage",
    "running",
    "running-short",
    "churned",
    "spread",
    "budgets",
    "uniform",
    "pinned",
    "growing",
    "gangs",
    "mig-manager",
    "move-budgets",
    "near-ties",
    "requests",
    "surplus",
    "pool-prices",
    "crowded",
    "several",
    "converting",
)
RUNNING = (
    "running",
    "running-short",
    "churned",
    "pinned",
    "mig-manager",
    "move-budgets",
    "surplus",
    "converting",
)


def instance(kind, seed, gpus=4):
    """One problem with at most so many GPUs (a third of them on nodes that may be added, in `growing`)."""
    rng = random.Random(f"{kind}/{seed}")
    if kind == "crowded":
        return _crowded(rng)
    kinds = rng.sample(KINDS[:-3], rng.randint(3, 6)) if kind == "several" else [kind]
    problem = _Draw(kinds, rng, gpus).problem()
    return _uneven(rng, problem) if kind == "several" else problem


def _crowded(rng):
    """Few nodes of whole GPUs, one or two demands to be spread: more replicas may allow more in one place."""
    sku, price = "H100-80GB-SXM", 3.0
    nodes = [(f"n{n}", f"z{n % rng.choice((1, 2, 3))}") for n in range(rng.randint(2, 4))]
    gpus = [
        GPUState(f"{node}-{i}", node, sku, zone=zone, cuttable=False)
        for node, zone in nodes
        for i in range(rng.randint(1, 4))
    ]
    demands = []
    for name in ("d0", "d1")[: rng.choice((1, 1, 2))]:
        spread = Spread(
            rng.choice((1.0, 0.2, 0.25, 0.3, 0.34, 0.4, 0.5)), rng.choice((1.0, 1.0, 0.34, 0.5, 0.6))
        )
        need = rng.randint(1, len(gpus))
        offer, most = Offer(sku, FULL, 1, 1.0, price), rng.choice((None, None, need + 1, need + 3))
        demands.append(Demand(name, offers=(offer,), rate=float(need), spread=spread, max_replicas=most))
    if rng.random() < 0.5:
        gpus = [_taken(rng, gpu, [demand.id for demand in demands]) for gpu in gpus]
    budget = rng.choice((None, None, 0, 1))
    return Problem(tuple(gpus), tuple(demands), ((sku, price),), move_budget=budget)


def _taken(rng, gpu, owners):
    if rng.random() < 0.5:
        return gpu
    return replace(gpu, instances=(Instance(FULL, 0, rng.choice(owners), movable=rng.random() < 0.9),))


def _uneven(rng, problem):
    """The same with demands that want nothing, hardly anything or far too much, and GPUs of one price."""
    demands = []
    for demand in problem.demands:
        more = {"rate": 0.0 if demand.slices else demand.rate * rng.choice((1, 1, 1, 0.001, 100))}
        if demand.offers and not demand.protected and rng.random() < 0.1:
            more |= {"min_replicas": 0, "max_replicas": 0}
        demands.append(replace(demand, **more))
    problem = replace(problem, demands=tuple(demands))
    if rng.random() < 0.3:
        problem = replace(problem, prices=tuple((sku, 2.0) for sku, _ in problem.prices))
    return problem


class _Draw:
    def __init__(self, kinds, rng, most):
        self.kinds, self.rng = kinds, rng
        self.skus = rng.sample(sorted(PRICES), rng.choice((1, 1, 2, 3)))
        self.count = rng.randint(1, most)
        loads = {"plenty": 0.5, "shortage": 1.8, "running-short": 1.8, "surplus": 0.2}
        self.load = self._of(loads, rng.choice((0.6, 1, 1.5)))
        self.prices = {sku: round(PRICES[sku] * rng.uniform(0.8, 1.2), 2) for sku in self.skus}

    def _of(self, values, otherwise):
        """Return the value of the first kind that has one."""
        return next((values[kind] for kind in self.kinds if kind in values), otherwise)

    def problem(self):
        rng, kinds = self.rng, self.kinds
        gpus = self._gpus()
        many = rng.randint(1, 4)
        room = sum(SPEED[gpu.sku] * 7.9 for gpu in gpus)
        demands = [self._demand(f"d{i}", room * self.load / many) for i in range(many)]
        if "requests" in kinds or rng.random() < 0.1:
            demands.append(self._request("raw", gpus))
        if {*RUNNING} & {*kinds} or (not {"plenty", "shortage"} & {*kinds} and rng.random() < 0.5):
            gpus = self._occupied(gpus, demands)
        if "pool-prices" in kinds:
            priced = {
                pool: {sku: round(PRICES[sku] * rng.uniform(0.5, 1.5), 2) for sku in self.skus}
                for pool in POOLS
            }
            gpus = [replace(gpu, price_per_hour=priced[gpu.pool].get(gpu.sku)) for gpu in gpus]
        if "surplus" in kinds:
            demands = [self._protected(demand, gpus) for demand in demands]
        problem = Problem(tuple(gpus), tuple(demands), tuple(sorted(self.prices.items())))
        if "growing" in kinds:
            problem = replace(problem, growable=self._pools())
        if "move-budgets" in kinds:
            pools = tuple((pool, rng.randint(0, 2)) for pool in POOLS if rng.random() < 0.5)
            problem = replace(problem, move_budget=rng.choice((0, 1, 2, None)), move_budgets=pools)
        return replace(problem, horizon_h=rng.choice((1.0, 1.0, 0.2, 8.0)))

    def _gpus(self):
        rng, found, node = self.rng, [], 0
        whole = 0.8 if "gangs" in self.kinds else 0.25
        while len(found) < self.count:
            sku = rng.choice(self.skus)
            size = min(
                rng.choice((1, 1, 2, 4) if "gangs" not in self.kinds else (2, 4)), self.count + 1 - len(found)
            )
            cut, style = BOARDS[sku].profiles, rng.random()
            backend = "mig-manager" if "mig-manager" in self.kinds and rng.random() < 0.8 else "nvml"
            gpu = GPUState(
                "",
                f"n{node}",
                sku,
                zone=f"z{node % 2}",
                pool=f"p{node % 2}",
                mig_enabled=bool(cut) and style > whole,
                convertible=bool(cut) and ("converting" in self.kinds or whole / 2 < style < whole + 0.15),
                backend=backend,
                nvlink_gpus=linked_gpus(rng),
            )
            found += [replace(gpu, id=f"n{node}-{i}") for i in range(size)]
            node += 1
        return found

    def _offers(self):
        """Some shapes, as a model's size and objectives leave them; whole GPUs a little faster than 7g."""
        rng, found, speed = self.rng, {}, self.rng.uniform(0.4, 1.6)
        noise = 0.002 if "near-ties" in self.kinds else 0.15
        for sku in self.skus:
            smallest = rng.choice((1, 1, 2, 3))
            for profile in BOARDS[sku].profiles.values():
                serves = (A30_SERVES if sku == "A30" else SERVES)[profile.compute] * SPEED[sku]
                if "+" in profile.name or profile.compute < smallest or rng.random() < 0.2:
                    continue
                if "near-ties" in self.kinds:
                    serves = 7.9 * SPEED[sku] * BOARDS[sku].share(profile.name)
                rate = round(serves * speed * rng.uniform(1 - noise, 1 + noise), 3)
                price = self.prices[sku] * BOARDS[sku].share(profile.name)
                found[sku, profile.name, 1] = Offer(sku, profile.name, 1, rate, price)
            for size in (1,) if "converting" in self.kinds else (1, 2, 4, 8):
                if rng.random() < (0.7 if "gangs" in self.kinds or not BOARDS[sku].profiles else 0.15):
                    rate = round(7.9 * SPEED[sku] * speed * size * rng.uniform(0.9, 1.05), 3)
                    found[sku, FULL, size] = Offer(sku, FULL, size, rate, self.prices[sku] * size)
        return tuple(sorted(found.values())) or self._offers()

    def _demand(self, name, rate):
        rng, kinds, more = self.rng, self.kinds, {}
        often = 0.7 if "budgets" in kinds else 0.12
        if rng.random() < often:
            more["min_replicas"] = rng.randint(1, 4)
        if rng.random() < often:
            more["max_replicas"] = rng.randint(more.get("min_replicas", 1), 6)
        if rng.random() < often:
            more["budget_per_hour"] = round(rng.uniform(0.3, 5), 2)
        if rng.random() < (0.8 if "spread" in kinds else 0.1):
            more["spread"] = Spread(rng.choice((1.0, 0.5, 0.34, 0.25)), rng.choice((1.0, 0.5, 0.6)))
        if rng.random() < 0.1:
            more["pools"] = (rng.choice(POOLS),)
        return Demand(
            name,
            offers=self._offers(),
            rate=0.0 if rng.random() < 0.07 else round(rate * rng.uniform(0.3, 1.7), 2),
            priority=rng.choice((0, 0, 0, 1)),
            uniform=rng.random() < self._of({"uniform": 0.8, "surplus": 0.5}, 0.1),
            start_h=rng.choice((1 / 30, 0.1, 0.5)),
            **more,
        )

    def _request(self, name, gpus):
        rng, cut = self.rng, [gpu.sku for gpu in gpus if BOARDS[gpu.sku].profiles]
        sku = rng.choice(cut or [gpus[0].sku])
        plain = [profile for profile in BOARDS[sku].profiles if "+" not in profile]
        profile = rng.choice([*plain, FULL])
        where = rng.choice((sku, ANY_SKU))
        return slice_request(name, profile, rng.randint(0, 6), sku=where, priority=rng.choice((0, 0, 1)))

    def _pools(self):
        rng, found = self.rng, []
        for name in ("a", "b")[: rng.randint(1, 2)]:
            sku = rng.choice(self.skus)
            price = round(self.prices[sku] * rng.uniform(0.9, 1.3), 2)
            mig, size = bool(BOARDS[sku].profiles) and rng.random() < 0.7, rng.choice((1, 2))
            found.append(GrowablePool(name, sku, size, rng.randint(1, 2), price, mig, zone=f"z{len(found)}"))
        return tuple(found)

    def _protected(self, demand, gpus):
        """The demand with running replicas of one shape protected, and a budget below their price."""
        if not demand.uniform or demand.slices:
            return demand
        held = Counter(
            (gpu.sku, i.profile, 1)
            for gpu in gpus
            for i in gpu.instances
            if i.owner == demand.id and not i.gang
        )
        offers = {(offer.sku, offer.profile, offer.tensor_parallel): offer for offer in demand.offers}
        shapes = sorted(held.keys() & offers.keys())
        if not shapes:
            return demand
        shape = self.rng.choice(shapes)
        count = self.rng.randint(1, min(held[shape], demand.max_replicas or held[shape]))
        budget = max(0.01, round(offers[shape].price_per_hour * count * self.rng.uniform(0.3, 0.95), 2))
        return replace(demand, protected=(Part(*shape, count),), min_replicas=count, budget_per_hour=budget)

    # ---- what runs

    def _occupied(self, gpus, demands):
        """A state that some plan of earlier may have left: every GPU filled at random, then thinned out."""
        rng, found = self.rng, []
        keep = self._of({"churned": 0.5, "running-short": 1.0}, rng.choice((0.7, 0.95)))
        owners = {}
        for demand in demands:
            parts = demand.slices or demand.offers
            for part in parts:
                for sku in self.skus if part.sku == ANY_SKU else (part.sku,):
                    owners.setdefault((sku, part.profile, part.tensor_parallel), []).append(demand.id)
        nodes = {}
        for gpu in gpus:
            nodes.setdefault(gpu.node, []).append(gpu)
        for alike in nodes.values():
            if alike[0].convertible and "converting" in self.kinds:
                fill = self._filled if alike[0].mig_enabled else self._taken_whole
                found += [_convertible(fill(gpu, owners, keep)) for gpu in alike]
            elif alike[0].convertible:
                found += alike
            elif alike[0].mig_enabled:
                found += [self._filled(gpu, owners, keep) for gpu in alike]
            else:
                found += self._ganged(alike, owners, keep)
        return found

    def _filled(self, gpu, owners, keep):
        rng, cut = self.rng, BOARDS[gpu.sku]
        names = {p for p in cut.profiles if "+" not in p or rng.random() < 0.05}
        places, chosen = options(gpu.sku, names), []
        wanted = [p for p in places if (gpu.sku, p[0], 1) in owners]
        rng.shuffle(places)
        rng.shuffle(wanted)
        for place in [*wanted, *places]:
            if rng.random() < 0.9 and not cut.wrong([*chosen, place]):
                chosen.append(place)
        held = [Instance(p, start, **self._owner((gpu.sku, p, 1), owners, keep)) for p, start in chosen]
        return replace(gpu, instances=tuple(sorted(held, key=lambda i: i.start)), cuttable=rng.random() < 0.9)

    def _owner(self, shape, owners, keep):
        rng = self.rng
        if rng.random() > keep:
            return {}
        named = owners.get(shape, [])
        if not named or rng.random() < 0.08:
            return {"owner": rng.choice(("job", "notebook")), "movable": rng.random() < 0.5}
        movable = rng.random() > self._of({"pinned": 0.4, "surplus": 0.3}, 0.08)
        cost = rng.choice((None, 0.01, 0.6)) if rng.random() < 0.2 else None
        return {"owner": rng.choice(named), "movable": movable, "move_cost": cost}

    def _taken_whole(self, gpu, owners, keep):
        held = self._owner((gpu.sku, FULL, 1), owners, keep)
        return replace(gpu, instances=(Instance(FULL, 0, **held),)) if held else gpu

    def _ganged(self, gpus, owners, keep):
        rng, found, i = self.rng, list(gpus), 0
        while i < len(gpus):
            legal = [
                k for k in (1, 2, 4) if i + k <= len(gpus) and (k <= gpus[0].nvlink_gpus or k == len(gpus))
            ]
            size = rng.choice([k for k in legal if k == 1 or (gpus[0].sku, FULL, k) in owners])
            held = self._owner((gpus[0].sku, FULL, size), owners, keep)
            if held:
                gang = f"{held['owner']}/{gpus[i].id}" if size > 1 else None
                for k in range(i, i + size):
                    found[k] = replace(found[k], instances=(Instance(FULL, 0, gang=gang, **held),))
            i += size
        return found


def _convertible(gpu):
    """The GPU, which may change its MIG mode where all that runs on it may move."""
    return replace(gpu, cuttable=True, convertible=all(i.owner is None or i.movable for i in gpu.instances))


def tiny(kind, seed):
    """One problem small enough to enumerate: at most two GPUs, and three shapes of each demand."""
    rng, problem = random.Random(f"tiny/{kind}/{seed}"), instance(kind, seed, gpus=2)
    demands = []
    for demand in problem.demands[-2:]:
        shapes = sorted(rng.sample(demand.offers, min(3, len(demand.offers))))
        demands.append(replace(demand, offers=tuple(shapes)))
    return replace(problem, gpus=problem.gpus[:2], demands=tuple(demands))
