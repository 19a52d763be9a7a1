"""Random ends of transitions, made without the solver: fleets as full as boards allow, owners shuffled."""

import random
from collections import Counter
from dataclasses import replace

from tangram.packing import GPULayout, GPUState, GrowablePool, Instance, Packing, Placed, Problem
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import creation_order, layouts, maximal_layouts, multiset

H100 = "H100-80GB-SXM"
SLICES = frozenset(("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"))
PRICES = ((H100, 3.0),)


def packing_of(*layouts, grown=()) -> Packing:
    """A packing of which nothing but the layouts is of interest."""
    return Packing("OPTIMAL", 0, 0, 0, 0, 0, 0, (), (), tuple(sorted(layouts)), grown=grown)


def layout(gpu, *placed) -> GPULayout:
    instances = tuple(sorted(Placed(*p) if isinstance(p, tuple) else p for p in placed))
    return GPULayout(gpu, instances, in_use=True, recut=False)


def gpu(name, *instances, node=None, **more) -> GPUState:
    more = {"mig_enabled": True} | more
    return GPUState(
        name, node or f"node-{name}", H100, instances=tuple(Instance(*i) for i in instances), **more
    )


def problem_of(*gpus, growable=()) -> Problem:
    return Problem(tuple(sorted(gpus)), (), PRICES, growable=growable)


def random_ends(seed: int, *, full: float = 0.9, most_gpus: int = 4) -> tuple[Problem, Packing]:
    """The same replicas on other slices of the same few GPUs, or more or fewer of them."""
    rng = random.Random(seed)
    owners = [f"d{i}" for i in range(rng.randint(2, 4))]
    gpus, wanted = [], []
    for i in range(rng.randint(1, most_gpus)):
        backend = rng.choice(("nvml", "nvml", "mig-manager"))
        state = GPUState(f"g{i}", f"n{i // 2}", H100, mig_enabled=True, backend=backend)
        now = _slices(rng, backend)
        cuttable = rng.random() < 0.9
        then = now if not cuttable or rng.random() < 0.3 else _slices(rng, backend)
        instances = tuple(Instance(p, s, _owner(rng, owners, full)) for s, p in now)
        gpus.append(replace(state, cuttable=cuttable, instances=instances))
        if now == then and rng.random() < 0.7:  # the same slices for others: circles
            held = [x.owner for x in instances]
            rng.shuffle(held)
            placed = [Placed(s, p, o) for (s, p), o in zip(now, held, strict=True)]
        else:
            placed = [Placed(s, p, _owner(rng, owners, full)) for s, p in then]
        wanted.append(GPULayout(f"g{i}", tuple(placed), in_use=True, recut=now != then))
    for i in range(rng.choice((0, 0, 2, 4))):
        now, then = rng.choice([*owners, None]), rng.choice([*owners, None])
        instances = () if now is None else (Instance("gpu", 0, now),)
        gpus.append(GPUState(f"w{i}", "whole", H100, instances=instances))
        wanted.append(GPULayout(f"w{i}", () if then is None else (Placed(0, "gpu", then),), True, False))
    if rng.random() < 0.3:  # becomes slices
        now, backend = rng.choice([*owners, None]), rng.choice(("nvml", "mig-manager"))
        instances = () if now is None else (Instance("gpu", 0, now),)
        gpus.append(GPUState("c", rng.choice(("n0", "c")), H100, backend=backend, instances=instances))
        wanted.append(GPULayout("c", (Placed(4, "3g.40gb", rng.choice(owners)),), True, True))
    grown, growable = (), ()
    if rng.random() < 0.2:
        growable, grown = (GrowablePool("pool", H100, 1, 1, 3.0, mig_enabled=True),), (("pool", 1),)
        wanted.append(GPULayout("pool/new-0/0", (Placed(4, "3g.40gb", owners[0]),), True, True))
    return problem_of(*gpus, growable=growable), packing_of(*wanted, grown=grown)


def large_ends(seed: int, gpus: int) -> tuple[Problem, Packing]:
    """Many GPUs that are nearly full, before and after, of two hundred demands."""
    rng = random.Random(seed)
    owners = [f"d{i:03}" for i in range(200)]
    names = [f"g{i:05}" for i in range(gpus)]
    now = [[(p, s, _owner(rng, owners, 0.9)) for s, p in _slices(rng, "nvml")] for _ in names]
    then = [[(s, p, _owner(rng, owners, 0.9)) for s, p in _slices(rng, "nvml")] for _ in names]
    states = [
        gpu(name, *cut, node=f"n{i // 8:05}") for i, (name, cut) in enumerate(zip(names, now, strict=True))
    ]
    wanted = [layout(name, *cut) for name, cut in zip(names, then, strict=True)]
    return problem_of(*states), packing_of(*wanted)


def _slices(rng: random.Random, backend: str) -> list[tuple[int, str]]:
    cut = board(H100).only(SLICES)
    if backend == "nvml":
        return [(p.start, p.profile) for p in rng.choice(rng.choice((layouts, maximal_layouts))(cut))]
    order = creation_order(board(H100), multiset(rng.choice(layouts(cut))))
    return sorted((p.start, p.profile) for p in order or ())


def _owner(rng: random.Random, owners: list, full: float):
    return rng.choice(owners) if rng.random() < full else None


def limits(problem: Problem, packing: Packing) -> tuple[dict, dict]:
    """The fewest replicas of each demand that serve on the way, and the most that there are at once."""
    now = Counter(i.owner for g in problem.gpus for i in g.instances if i.owner and i.gang is None)
    now.update(o for o, _ in {(i.owner, i.gang) for g in problem.gpus for i in g.instances if i.gang})
    wanted = Counter(p.owner for w in packing.layouts for p in w.instances if p.owner and p.gang is None)
    wanted.update(
        o
        for o, *_ in {
            (p.owner, p.gang, w.id.rsplit("-", 1)[0]) for w in packing.layouts for p in w.instances if p.gang
        }
    )
    owners = now | wanted
    return {o: min(now[o], wanted[o]) for o in owners}, {o: max(now[o], wanted[o]) + 1 for o in owners}
