"""The mix of a demand in the model: integer counts of its shapes, what they leave unmet, and their limits."""

from typing import Any

from tangram.catalog.prices import Prices
from tangram.fleet import ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import MixTerms, Model
from tangram.packing.problem.mix import SCALE, UNMET, MixLimits
from tangram.packing.problem.prepared import PreparedDemand, units


def add_mix(model: Model, prices: Prices, demand: PreparedDemand, limits: MixLimits) -> None:
    """Add the counts, and what is unmet: the missing share of the rate or of the least replicas."""
    mix_terms = model.mixes[demand.id] = MixTerms()
    served, alive, every = Terms(), Terms(), Terms()
    for item in limits.items:
        count = model.inner(demand.id, item.most, f"{item.shape}")
        mix_terms.counts[item.shape] = count
        model.taken.setdefault((demand.id, item.shape), Terms()).add(count)
        model.objective.share.add(count, units(prices.required_replica_hour(*item.shape)))
        every.add(count)
        if item.serves:
            served.add(count, item.serves)
            alive.add(count)
    unmet = mix_terms.unmet = model.inner(demand.id, UNMET, "unmet")
    model.objective.unmet[demand.priority].add(unmet)
    if limits.rated:
        model.cp.add(SCALE * unmet + served.expression >= UNMET * SCALE)
    if limits.least:
        model.cp.add(limits.least * unmet + UNMET * alive.expression >= UNMET * limits.least)
    if demand.held:
        short, gone = _flag(model, demand, "short"), model.inner(demand.id, len(demand.held), "gone")
        model.cp.add(unmet <= demand.least_unmet).only_enforce_if(short.negated())
        model.cp.add(gone + every.expression >= len(demand.held)).only_enforce_if(short)
        model.objective.stopped_of(demand.priority).add(gone)


def limit_mix(model: Model, demand: PreparedDemand, limits: MixLimits) -> None:
    """Add what limits the counts, but for the mixes that are always allowed."""
    mix_terms = model.mixes[demand.id]
    always = mix_terms.always = [_flag(model, demand, "always") for _ in limits.always]
    for flag, counts in zip(always, limits.always, strict=True):
        exact = dict(counts)
        for shape, count in mix_terms.counts.items():
            model.cp.add(count == exact.get(shape, 0)).only_enforce_if(flag)
    if len(always) > 1:
        model.cp.add(cp_model.LinearExpr.sum(always) <= 1)
    limited = [flag.negated() for flag in always]
    serving = [mix_terms.counts[item.shape] for item in limits.items if item.serves]
    model.cp.add(cp_model.LinearExpr.sum(serving) <= limits.most).only_enforce_if(*limited)
    limit_budget(model, demand, limits)
    if limits.uniform and len(limits.items) > 1:
        used = []
        for item in limits.items:
            flag = _flag(model, demand, "used")
            model.cp.add(mix_terms.counts[item.shape] <= item.most * flag)
            used.append(flag)
        model.cp.add(cp_model.LinearExpr.sum(used) <= 1).only_enforce_if(*limited)
    if limits.pinned:
        _pin(model, demand, limits, limited)


def limit_budget(model: Model, demand: PreparedDemand, limits: MixLimits, *literals: cp_model.IntVar) -> None:
    """Keep the price of a mix within its budget where all of `literals` hold, unless it is always allowed."""
    if limits.budget is not None:
        mix_terms, price = model.mixes[demand.id], Terms()
        for item in limits.items:
            price.add(mix_terms.counts[item.shape], item.price)
        limited = (*literals, *(flag.negated() for flag in mix_terms.always))
        model.cp.add(price.expression <= limits.budget).only_enforce_if(*limited)


def _pin(model: Model, demand: PreparedDemand, limits: MixLimits, limited: list[Any]) -> None:
    """What must not move stays, unless the demand is served as well by fewer of what runs."""
    mix_terms, fewer = model.mixes[demand.id], _flag(model, demand, "fewer")
    for shape, n in limits.pinned:
        model.cp.add(mix_terms.counts[shape] >= n).only_enforce_if(fewer.negated(), *limited)
    running = demand.running
    assert mix_terms.unmet is not None  # noqa: S101 - made with the counts
    model.cp.add(mix_terms.unmet == 0).only_enforce_if(fewer, *limited)
    for shape, count in mix_terms.counts.items():
        model.cp.add(count <= running.get(shape, 0)).only_enforce_if(fewer, *limited)


def lasting(model: Model, demand: PreparedDemand, shape: ShapeKey, most: int) -> cp_model.IntVar:
    """Return a variable: replicas of a shape that run now and are wanted, the lesser of both."""
    mix_terms = model.mixes[demand.id]
    key = shape, most
    if key not in mix_terms.lasting:
        lesser = model.inner(demand.id, most, "lasting")
        model.cp.add_min_equality(lesser, [most, mix_terms.counts[shape]])
        mix_terms.lasting[key] = lesser
    return mix_terms.lasting[key]


def exchange(model: Model, demand: PreparedDemand) -> cp_model.IntVar:
    """Return a variable: replicas that change their shape, as many as both stop and start.

    The cheapest starts are charged, as many as there are exchanges. The charges are variables of the whole
    model, not of the mix: so the dual value of an exchange prices them, and mixes stay cheap to price.
    """
    mix_terms, running, pinned = model.mixes[demand.id], demand.running, demand.pinned
    stopped, started, charges = Terms(), Terms(), Terms()
    stopped.constant = sum(not held.pinned for held in demand.held)
    for shape, count in mix_terms.counts.items():
        running_count = running.get(shape, 0)
        new = Terms()
        new.add(count)
        if running_count:
            last = lasting(model, demand, shape, running_count)
            stopped.add(last, -1)
            if pinned[shape]:  # a pinned replica stops only as surplus: that is no move
                stopped.add(lasting(model, demand, shape, pinned[shape]))
            new.add(last, -1)
        started.extend(new)
        if not demand.pays_move_cost:
            charged = model.cp.new_int_var(0, len(demand.held), f"charged.{demand.id}")
            model.cp.add(charged <= new.expression)
            charges.add(charged)
            model.objective.dollars.add(charged, demand.unit[shape])
    moved = mix_terms.exchanged = model.inner(demand.id, len(demand.held), "exchanged")
    model.cp.add_min_equality(moved, [stopped.expression, started.expression])
    if not demand.pays_move_cost:
        model.cp.add(charges.expression == moved)
    return moved


def _flag(model: Model, demand: PreparedDemand, name: str) -> cp_model.IntVar:
    variable = model.cp.new_bool_var(f"{name}.{demand.id}")
    model.mixes[demand.id].inner.add(variable.index)
    return variable
