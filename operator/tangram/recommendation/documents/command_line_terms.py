"""Prices, move costs and budgets from the command line: they replace those of documents."""

from dataclasses import replace

from tangram.catalog import InputError
from tangram.recommendation.documents.document_fields import HORIZON_RANGE_H, MOST_USD_OF_A_MOVE
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms


def with_command_line_terms(inputs: FleetInput, flags: PlanTerms) -> FleetInput:
    """Return `inputs` with the terms of the command line over its own. Raises `InputError`."""
    for flag, value, least, most in (
        ("--move-cost", flags.move_cost, 0, MOST_USD_OF_A_MOVE),
        ("--move-budget", flags.move_budget, 0, 10**9),
        ("--horizon", flags.horizon_h, *HORIZON_RANGE_H),
    ):
        if value is not None and not least <= value <= most:
            raise InputError(flag, f"must be between {least:g} and {most:g}, not {value:g}")
    return replace(inputs, terms=inputs.terms.overridden_by(flags))
