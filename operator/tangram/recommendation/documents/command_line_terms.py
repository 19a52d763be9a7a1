"""What flags say wins over what documents say."""

from dataclasses import replace

from tangram.catalog import InputError
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms

_MOST_HOURS = 8760.0
_MOST_USD = 1e6


def with_command_line_terms(inputs: FleetInput, flags: PlanTerms) -> FleetInput:
    """Return `given` with the terms that somebody said on the command line. Raises `InputError`."""
    _within("--move-cost", flags.move_cost, 0, _MOST_USD)
    _within("--move-budget", flags.move_budget, 0, 10**9)
    _within("--horizon", flags.horizon_h, 1e-6, _MOST_HOURS)
    document_terms = inputs.terms
    terms = PlanTerms(
        prices=tuple(sorted((dict(document_terms.prices) | dict(flags.prices)).items())),
        move_cost=document_terms.move_cost if flags.move_cost is None else flags.move_cost,
        move_budget=document_terms.move_budget if flags.move_budget is None else flags.move_budget,
        horizon_h=document_terms.horizon_h if flags.horizon_h is None else flags.horizon_h,
        reachable=document_terms.reachable,
    )
    return replace(inputs, terms=terms)


def _within(flag: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise InputError(flag, f"must be between {least:g} and {most:g}, not {value:g}")
