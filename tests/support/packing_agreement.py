"""Where a packing, its own figures and the best known packing disagree, one line each.

Shares no code with the product: `Audit` counts from the layouts alone, `optimum` has a model of its own.
"""

from .oracle import FULL
from .packing_audit import Audit, improvable, near
from .packing_facts import MONEY, UNMET, board

IN_DOLLARS = ("dollars", "share")  # stages


def disagreements(problem, packing, best=()):
    """What is wrong with a packing, given the stages of `optimum` as far as they are known; none: nothing."""
    audit = Audit(problem, packing)
    room = improvable(problem, packing)
    return [
        *audit.violations(),
        *_layouts(audit),
        *_stages(audit),
        *_dollars(audit),
        *_demands(audit),
        *_moves(audit),
        *compared(packing, best),
        *(f"{owner}: one more {shape} fits on {gpus}" for owner, shape, gpus in room),
    ]


# ---- the figures of a packing


def _layouts(audit):
    """GPUs that are listed twice, and where the slices of a GPU change although it says otherwise."""
    if len(audit.layouts) < len(audit.packing.layouts):
        yield "a GPU is listed twice"
    for layout in audit.packing.layouts:
        gpu = audit.facts.gpus.get(layout.id)
        before = {(i.profile, i.start) for i in (gpu.instances if gpu else ()) if i.profile != FULL}
        after = {(i.profile, i.start) for i in layout.instances if i.profile != FULL}
        whole = any(i.profile == FULL for i in layout.instances)
        leaves_mig = whole and gpu is not None and gpu.mig_enabled
        if layout.recut != (before != after or leaves_mig):
            yield f"{layout.id}: re-cut is {layout.recut}"


def _stages(audit):
    packing, values = audit.packing, audit.values()
    names = [stage.name for stage in packing.stages]
    foreign = _foreign(audit)
    if names[: len(values) + len(foreign)] != [*foreign, *_in_order(values)]:
        yield f"stages are {names}"
    values |= dict.fromkeys(foreign, 0)
    for stage in packing.stages:
        money = stage.name in IN_DOLLARS
        # Budgets of pools may leave only dearer replicas to move than the audit assumes.
        dearer = stage.name == "dollars" and audit.problem.move_budgets and stage.value > values["dollars"]
        if stage.name in values and not dearer and not near(stage.value, values[stage.name], money):
            yield f"{stage.name} is {values[stage.name]}, not {stage.value}"
        if stage.bound > stage.value and not near(stage.bound, stage.value, money):
            yield f"{stage.name}: bound {stage.bound} is above its value {stage.value}"
        if stage.proved and not near(stage.bound, stage.value, money):
            yield f"{stage.name} is proved, with bound {stage.bound} for {stage.value}"
    if packing.status == "FALLBACK":
        yield "no stage has a solution"
    if packing.status == "OPTIMAL" and not all(stage.proved for stage in packing.stages):
        yield "OPTIMAL, but not every stage is proved"


def _foreign(audit):
    """The stage of movable owners without a demand, above all others: each of their replicas goes on."""
    if all(terms.priority is not None for terms in audit.facts.terms):
        return []
    return [f"unmet[{max((d.priority for d in audit.problem.demands), default=0) + 1}]"]


def _in_order(values):
    yield from sorted((name for name in values if name not in IN_DOLLARS), key=lambda name: -int(name[6:-1]))
    yield from IN_DOLLARS


def _dollars(audit):
    packing = audit.packing
    dollars = next(stage for stage in packing.stages if stage.name == "dollars")
    used = {layout.id for layout in packing.layouts if any(i.owner is not None for i in layout.instances)}
    grown = {layout.id for layout in packing.layouts} - set(audit.facts.gpus)
    prices = {gpu.id: audit.facts.price(gpu) for gpu in audit.problem.gpus}
    prices |= {gpu_id: audit.new[audit.pool(gpu_id)].price_per_gpu_hour for gpu_id in grown}
    paid = used | grown
    shares = {layout.id: _share(audit, layout) for layout in packing.layouts}
    gap = (dollars.value - dollars.bound) / dollars.value if dollars.value > 0 else 0
    figures = {
        "objective": (packing.objective, dollars.value),
        "bound": (packing.bound, dollars.bound),
        "dollars per hour": (packing.cost_per_hour, sum(prices[gpu_id] for gpu_id in paid)),
        "idle dollars": (packing.idle_per_hour, sum(prices[i] * max(0, 1 - shares[i]) for i in paid)),
        "move cost": (packing.move_cost, sum(move.cost for move in packing.moves)),
        "dollars": (packing.cost_per_hour * audit.problem.horizon_h + packing.move_cost, packing.objective),
    }
    yield from (f"{name}: {a}, not {b}" for name, (a, b) in figures.items() if not near(a, b, dollars=True))
    if abs(packing.gap - gap) > 1e-4 or (packing.status == "OPTIMAL" and packing.gap > 1e-6):
        yield f"gap: {packing.gap}, not {gap}"
    yield from (f"{g.id}: in use is {g.in_use}" for g in packing.layouts if g.in_use != (g.id in used))


def _share(audit, layout):
    """How much of a GPU replicas take up; slices together may claim more than all."""
    taken = [i.profile for i in layout.instances if i.owner is not None]
    return 1 if FULL in taken else sum(board(audit.sku(layout.id)).share(profile) for profile in taken)


def _demands(audit):
    """Choices and what is unmet, against what stands."""
    choices = {choice.demand: choice for choice in audit.packing.choices}
    short = {each.demand: (each.priority, each.share) for each in audit.packing.unmet}
    if len(short) < len(audit.packing.unmet) or not short.keys() <= audit.facts.named:
        yield f"unmet are {[each.demand for each in audit.packing.unmet]}"
    if set(choices) != audit.facts.named:
        yield f"choices are of {set(choices)}"
        return
    for terms in audit.facts.terms:
        if terms.priority is None:
            continue
        choice, counts = choices[terms.id], audit.counts[terms.id]
        parts = {(p.sku, p.profile, p.tensor_parallel): p.count for p in choice.parts}
        if parts != dict(counts):
            yield f"{terms.id}: {dict(counts)} stand, {parts} are chosen"
        share = terms.unmet(counts) / UNMET
        if not near(choice.unmet, share):
            yield f"{terms.id}: {share} is unmet, not {choice.unmet}"
        if short.get(terms.id) != ((terms.priority, choice.unmet) if choice.unmet else None):
            yield f"{terms.id}: {choice.unmet} is unmet, listed is {short.get(terms.id)}"
        price = sum(audit.facts.hourly(shape) * n for shape, n in counts.items())
        if not near(choice.price_per_hour, price, dollars=True):
            yield f"{terms.id}: costs {price}, not {choice.price_per_hour}"


def _moves(audit):
    """Each listed move starts at a replica that does not stay, ends at one that did not run there, and costs
    what the replica's move costs, or the start of one of another shape.
    """
    staying = {(r.owner, r.gpus, r.start) for terms in audit.facts.terms for r in audit.stays(terms)}
    by_owner = {terms.id: terms for terms in audit.facts.terms}
    runs = [r for terms in audit.facts.terms for r in terms.runs]
    leaves, arrives = (
        {(r.owner, r.gpus[0], r.start): r for r in replicas if (r.owner, r.gpus, r.start) not in staying}
        for replicas in (runs, audit.replicas)
    )
    for move in audit.packing.moves:
        source = (move.owner, move.source.gpu, move.source.start)
        target = (move.owner, move.target.gpu, move.target.start)
        left, new = leaves.pop(source, None), arrives.pop(target, None)
        if left is None or new is None:
            yield f"{move.owner}: no move from {source} to {target}"
            continue
        terms = by_owner[move.owner]
        cost = left.cost if terms.own_costs or left.shape == new.shape else terms.unit[new.shape]
        if not near(move.cost, cost / MONEY, dollars=True):
            yield f"{move.owner}: the move from {source} costs {cost / MONEY}, not {move.cost}"


# ---- against the best that is known


def compared(packing, best):
    """Where value and bound contradict the optimiser's: the first stage that differs ends the comparison."""
    stages = {stage.name: stage for stage in packing.stages}
    for known in best:
        ours = stages[known.name]
        blur = 3e-4 if known.name in IN_DOLLARS else 2e-6
        if ours.value < known.bound - blur:
            yield f"{known.name}: {ours.value} is below what is possible, {known.bound}"
        elif ours.bound > known.value + blur:
            yield f"{known.name}: bound {ours.bound} is above a legal packing, {known.value}"
        if abs(ours.value - known.value) > blur:
            return


def worse(packing, best):
    """The first stage in which a packing is worse than what the optimiser has, if any."""
    stages = {stage.name: stage for stage in packing.stages}
    for known in best:
        blur = 3e-4 if known.name in IN_DOLLARS else 2e-6
        if stages[known.name].value > known.value + blur:
            return f"{known.name}: {stages[known.name].value}, where {known.value} is possible"
        if stages[known.name].value < known.value - blur:
            return None
    return None
