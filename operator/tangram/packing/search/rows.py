"""The linear constraints of a model as rows of a linear program."""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.packing.model import cp_model

_ENDLESS = 2**61  # CP-SAT's bounds beyond this stand for none


@dataclass(frozen=True, slots=True)
class Row:
    """One linear constraint."""

    variables: Sequence[int]
    factors: Sequence[int]
    low: int | None
    high: int | None


def rows_of(cp: cp_model.CpModel) -> list[Row]:
    """Return the constraints that are linear and always hold. Without the others the bound is lower."""
    rows = []
    for constraint in cp.proto.constraints:
        if constraint.has_exactly_one():
            literals = list(constraint.exactly_one.literals)
            rows.append(Row(literals, [1] * len(literals), 1, 1))
        elif constraint.has_linear() and not constraint.enforcement_literal:
            linear = constraint.linear
            domain = list(linear.domain)
            low, high = domain[0], domain[-1]
            factors: dict[int, int] = {}
            for i, factor in zip(linear.vars, linear.coeffs, strict=True):
                factors[i] = factors.get(i, 0) + factor
            rows.append(
                Row(
                    list(factors),
                    list(factors.values()),
                    low if low > -_ENDLESS else None,
                    high if high < _ENDLESS else None,
                )
            )
    return rows
