"""Prices, move costs and budgets from the command line: they replace those of documents."""

from dataclasses import replace

from tangram.catalog import InputError
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms

_MOST_HOURS = 8760.0
_MOST_USD = 1e6


def with_command_line_terms(inputs: FleetInput, flags: PlanTerms) -> FleetInput:
    """Return `inputs` with the terms of the command line over its own. Raises `InputError`."""
    _within("--move-cost", flags.move_cost, 0, _MOST_USD)
    _within("--move-budget", flags.move_budget, 0, 10**9)
    _within("--horizon", flags.horizon_h, 1e-6, _MOST_HOURS)
    return replace(inputs, terms=inputs.terms.overridden_by(flags))


def _within(flag: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise InputError(flag, f"must be between {least:g} and {most:g}, not {value:g}")
