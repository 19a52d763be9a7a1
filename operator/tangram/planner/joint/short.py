"""Why a demand goes short, and the smallest changes that would serve it, each tried on the whole fleet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.catalog import InputError
from tangram.packing import Demand, Packing
from tangram.planner.joint.demands import demand
from tangram.planner.joint.problem import Joint
from tangram.planner.joint.shapes import sized

_LOOSER = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # of an objective, as factors


def short(asked: Joint, packing: Packing, who: str) -> dict[str, Any]:
    """Return `because` and `relaxations` of one demand; nothing where it is served whole."""
    if not any(u.demand == who and u.share > 0 for u in packing.unmet):
        return {}
    from tangram.packing.explain import core  # noqa: PLC0415 - loads the solver
    from tangram.packing.relax import relaxations  # noqa: PLC0415

    found = core(asked.problem, packing, who)
    eased = relaxations(asked.problem, packing, who, _knobs(asked, who))
    return {
        "because": [] if found is None else [str(binding) for binding in found.bindings],
        "relaxations": [
            {
                "dimension": each.dimension,
                "subject": each.subject,
                "value": each.value,
                "text": str(each),
                "fleetCostPerHour": round(each.cost_per_hour, 6),
            }
            for each in eased
        ],
    }


def _knobs(asked: Joint, who: str) -> list[Any]:
    from tangram.packing.relax import Knob  # noqa: PLC0415 - loads the solver

    each = asked.sized.get(who)
    if each is None:
        return []
    limits = (
        ("TTFT", "ttft_ms", each.wanted.request.ttft_ms),
        ("TPOT", "tpot_ms", each.wanted.request.tpot_ms),
    )
    return [
        Knob(name, "ms", tuple(round(limit * factor, 1) for factor in _LOOSER), _at(asked, who, field))
        for name, field, limit in limits
        if limit is not None
    ]


def _at(asked: Joint, who: str, field: str) -> Any:
    wanted, prices = asked.sized[who].wanted, asked.sized[who].assessed.prices
    skus = {gpu.sku for gpu in asked.problem.gpus} | {pool.sku for pool in asked.problem.growable}
    hourly: Mapping[str, float] = {sku: price for sku in skus if (price := prices.of(sku)) is not None}

    def demand_at(value: float) -> Demand:
        changes: dict[str, Any] = {field: value}
        looser = replace(wanted, request=replace(wanted.request, **changes))
        try:
            return demand(sized(looser, skus, hourly), asked.problem)
        except InputError as error:
            raise InputError(f"LLMDeployment {who}", f"{error.field} {error.problem}") from error

    return demand_at
