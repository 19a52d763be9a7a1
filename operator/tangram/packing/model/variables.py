"""The packing model's variables by meaning, and its objectives by name. Linear, on CP-SAT."""

from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUClasses, GPUKind
from tangram.packing.model.targets import OwnerTag
from tangram.packing.problem.prepared import PreparedDemand
from tangram.packing.problem.statement import GrowablePool

Place = str


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


@dataclass(slots=True)
class Grown:
    """A pool that can grow: new nodes, and what their GPUs become."""

    pool: GrowablePool
    kind: GPUKind
    nodes: cp_model.IntVar
    counts: list[cp_model.IntVar]  # GPUs by target


@dataclass(slots=True)
class MixTerms:
    """The variables of one demand's mix. The master problem knows it by columns: their values of these."""

    counts: dict[ShapeKey, cp_model.IntVar] = field(default_factory=dict)
    unmet: cp_model.IntVar | None = None
    lasting: dict[tuple[ShapeKey, int], cp_model.IntVar] = field(default_factory=dict)  # lesser of both
    exchanged: cp_model.IntVar | None = None  # replicas that change their shape
    always: list[cp_model.IntVar] = field(default_factory=list)  # whether it is a mix that is always allowed
    inner: set[int] = field(default_factory=set)  # indices of these and of every other variable of the mix


@dataclass(slots=True)
class Model:
    """The variables by meaning, and the objectives by name."""

    cp: cp_model.CpModel
    classes: GPUClasses
    demands: tuple[PreparedDemand, ...]
    counts: list[list[cp_model.IntVar]] = field(default_factory=list)  # [class][target] GPUs or nodes
    converted: list[list[cp_model.IntVar]] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)
    gangs: dict[tuple[GPUKind, int], cp_model.IntVar] = field(default_factory=dict)  # new gangs by size
    chosen: dict[str, list[cp_model.IntVar]] = field(default_factory=dict)  # demand -> one per column
    pieces: dict[tuple[str, int, ShapeKey], cp_model.IntVar] = field(default_factory=dict)  # of requests
    taken: dict[tuple[str, ShapeKey], Terms] = field(default_factory=dict)  # replicas by demand and shape
    mixes: dict[str, MixTerms] = field(default_factory=dict)  # of demands that have one
    keeps: dict[tuple[str, ShapeKey, OwnerTag], cp_model.IntVar] = field(default_factory=dict)
    spots: dict[tuple[str, ShapeKey, Place], cp_model.IntVar] = field(default_factory=dict)  # spread demands
    supply: dict[tuple[ShapeKey, Place], Terms] = field(default_factory=dict)
    idle: dict[str, Terms] = field(default_factory=dict)  # free whole GPUs and uncut MIG GPUs, by SKU
    may_leave_mig: dict[str, Terms] = field(default_factory=dict)  # idle GPUs in MIG mode, by SKU
    unmet: dict[int, Terms] = field(default_factory=dict)  # by priority
    drained: dict[int, Terms] = field(default_factory=dict)  # replicas that run, are wanted and stop
    dollars: Terms = field(default_factory=Terms)
    share: Terms = field(default_factory=Terms)
    moves: Terms = field(default_factory=Terms)
    leaving: dict[str, Terms] = field(default_factory=dict)  # moves away from guarded pools, by pool
    recut: Terms = field(default_factory=Terms)
    stranded: Terms = field(default_factory=Terms)
    headroom: Terms = field(default_factory=Terms)

    def inner(self, demand: str, most: int, name: str) -> cp_model.IntVar:
        """Return a variable from 0 to `most` that only the mix of one demand decides."""
        variable = self.cp.new_int_var(0, most, f"{name}.{demand}")
        self.mixes[demand].inner.add(variable.index)
        return variable

    def lesser(self, most: int, *expressions: Any) -> cp_model.IntVar:
        """Return a variable from 0 to `most` that is the least of `expressions`."""
        lesser = self.cp.new_int_var(0, most, "lesser")
        self.cp.add_min_equality(lesser, expressions)
        return lesser
