"""Random packing problems, small enough for oracles. Seeded: the same number gives the same problem."""

import random
from dataclasses import replace

from tangram.fleet import WHOLE_GPU
from tangram.packing import Demand, GPUState, Instance, Offer, Problem, Spread, slice_request
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import layouts

H100, A30 = "H100-80GB-SXM", "A30"
PRICES = ((A30, 0.7), (H100, 3.07))
SIZES = {H100: ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), A30: ("1g.6gb", "2g.12gb")}


def hourly(shape: tuple) -> float:
    sku, profile, size = shape
    price = dict(PRICES)[sku]
    if profile == WHOLE_GPU:
        return price * size
    cut = board(sku)
    option = next(o for o in cut.options if o.profile == profile)
    return price * max(option.compute / cut.compute_slices, option.mask.bit_count() / cut.memory_slices)


def offers(rng: random.Random, shapes) -> tuple[Offer, ...]:
    """Dollars per request differ by half: neither the largest nor the smallest shape is always best."""
    prices = {shape: hourly(shape) for shape in sorted(set(shapes))}
    return tuple(Offer(*shape, round(usd * rng.uniform(2, 4), 2), usd) for shape, usd in prices.items())


def small(seed: int) -> Problem:
    """A few nodes of everything: whole GPUs, gangs, slices, both backends, foreign and pinned pods."""
    rng = random.Random(seed)
    owners = [f"d{i}" for i in range(rng.randint(2, 6))]
    gpus: list[GPUState] = []
    for n in range(rng.randint(2, 5)):
        gpus += _node(rng, n, owners)
    demands = [_demand(rng, owner) for owner in owners]
    if rng.random() < 0.3:
        demands.append(slice_request("raw", rng.choice(SIZES[H100]), rng.randint(1, 12), sku=H100))
    return Problem(
        tuple(sorted(gpus)),
        tuple(sorted(demands, key=lambda d: d.id)),
        PRICES,
        move_budget=rng.choice((None, None, None, 0, 2)),
        horizon_h=rng.choice((0.2, 1.0, 8.0)),
    )


def linked_gpus(rng: random.Random, share: float = 0.7) -> int:
    """GPUs that one NVLink domain joins: all of a node (as often as `share` says), bridged pairs, or none."""
    drawn = rng.random()
    return 8 if drawn < share else 2 if drawn < (1 + share) / 2 else 1


def _node(rng: random.Random, n: int, owners: list[str]) -> list[GPUState]:
    sku = rng.choice((H100, H100, A30))
    size = rng.choice((1, 2, 4))
    style = rng.choice(("whole", "cut", "cut", "both"))
    backend = rng.choice(("nvml", "mig-manager"))
    linked = linked_gpus(rng)
    zone = f"z{n % 2}"
    found = [GPUState(f"n{n}-{i}", f"n{n}", sku, zone, nvlink_gpus=linked) for i in range(size)]
    who = [*owners, "stranger", None]
    if style == "cut":
        return [_sliced(rng, replace(g, mig_enabled=True, backend=backend), who) for g in found]
    if style == "both":
        return [_free(rng, g) for g in found]
    return _taken(rng, found, owners)


def _free(rng: random.Random, gpu: GPUState) -> GPUState:
    """Out of MIG mode, or in it with nothing or with free slices."""
    if rng.random() >= 0.5:
        return replace(gpu, convertible=True)
    aside = random.Random()  # what is drawn after this GPU does not depend on its slices
    aside.setstate(rng.getstate())
    layout = aside.choice(layouts(board(gpu.sku).only(frozenset(SIZES[gpu.sku]))))
    slices = tuple(Instance(p.profile, p.start) for p in layout if aside.random() < 0.5)
    return replace(gpu, convertible=True, mig_enabled=True, instances=slices)


def _sliced(rng: random.Random, gpu: GPUState, who: list) -> GPUState:
    if rng.random() < 0.4:
        return gpu
    layout = rng.choice(layouts(board(gpu.sku).only(frozenset(SIZES[gpu.sku]))))
    instances = []
    for p in layout:
        owner = rng.choice(who)
        movable = owner != "stranger" and rng.random() < 0.85
        instances.append(Instance(p.profile, p.start, owner, movable))
    return replace(gpu, instances=tuple(instances), cuttable=rng.random() < 0.8)


def _taken(rng: random.Random, gpus: list[GPUState], owners: list[str]) -> list[GPUState]:
    """Gangs that run; outside of an NVLink domain, single GPUs or the whole node."""
    found, i = list(gpus), 0
    while i < len(gpus):
        sizes = [k for k in (1, 2, 4) if i + k <= len(gpus) and (k <= gpus[0].nvlink_gpus or k == len(gpus))]
        size, owner = rng.choice(sizes), rng.choice([*owners, "stranger", None, None])
        if owner is not None:
            movable = owner != "stranger" and rng.random() < 0.85
            gang = f"{owner}/{gpus[i].id}" if size > 1 else None
            for j in range(i, i + size):
                found[j] = replace(found[j], instances=(Instance(WHOLE_GPU, 0, owner, movable, gang=gang),))
        i += size
    return found


def _demand(rng: random.Random, owner: str) -> Demand:
    shapes = []
    for _ in range(rng.randint(1, 5)):
        sku = rng.choice((H100, H100, A30))
        if rng.random() < 0.4:
            shapes.append((sku, WHOLE_GPU, rng.choice((1, 1, 2, 4))))
        else:
            shapes.append((sku, rng.choice(SIZES[sku]), 1))
    found = offers(rng, shapes)
    return Demand(
        owner,
        offers=found,
        rate=rng.choice((0.6, 1.3, 2.8)) * max(offer.rate for offer in found),
        priority=rng.choice((0, 1)),
        spread=Spread(node=rng.choice((1.0, 1.0, 0.5)), zone=rng.choice((1.0, 1.0, 0.6))),
        budget_per_hour=rng.choice((None, None, 6.0)),
        min_replicas=rng.choice((0, 1, 1, 3)),
        max_replicas=rng.choice((None, None, 4)),
        uniform=rng.random() < 0.2,
        start_h=rng.choice((0.0, 0.03, 0.5)),
    )
