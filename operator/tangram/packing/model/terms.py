"""Linear expressions over the variables of CP-SAT, in whole numbers."""

from dataclasses import dataclass, field
from typing import Any

from tangram.packing.model import cp_model


@dataclass(slots=True)
class Terms:
    """A linear expression that grows."""

    variables: list[cp_model.IntVar] = field(default_factory=list)
    factors: list[int] = field(default_factory=list)
    constant: int = 0

    def add(self, variable: cp_model.IntVar, factor: int = 1) -> None:
        """Add `factor` times `variable`."""
        if factor:
            self.variables.append(variable)
            self.factors.append(factor)

    def extend(self, other: "Terms", factor: int = 1) -> None:
        """Add `factor` times `other`."""
        self.variables += other.variables
        self.factors += [factor * f for f in other.factors]
        self.constant += factor * other.constant

    @property
    def expression(self) -> Any:
        """The same for CP-SAT."""
        return cp_model.LinearExpr.weighted_sum(self.variables, self.factors) + self.constant

    @property
    def most(self) -> int:
        """An upper bound."""
        # A negative index into the compiled list of a domain reads past its end.
        domains = (list(variable.proto.domain) for variable in self.variables)
        pairs = zip(self.factors, domains, strict=True)
        return self.constant + sum(f * int(domain[-1] if f > 0 else domain[0]) for f, domain in pairs)

    def value(self, solution: list[int]) -> int:
        """Return what it is worth in a solution."""
        pairs = zip(self.variables, self.factors, strict=True)
        return self.constant + sum(solution[v.index] * f for v, f in pairs)
