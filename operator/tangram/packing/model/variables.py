"""The packing model's variables by meaning. Linear, on CP-SAT."""

from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUClasses, GPUKind
from tangram.packing.model.objective import PackingObjective
from tangram.packing.model.targets import OwnerTag
from tangram.packing.model.terms import Terms
from tangram.packing.problem.prepared import PreparedDemand
from tangram.packing.problem.statement import GrowablePool

Place = str


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
    """The variables by meaning, and the objective."""

    cp: cp_model.CpModel
    classes: GPUClasses
    demands: tuple[PreparedDemand, ...]
    objective: PackingObjective
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
    leaving: dict[str, Terms] = field(default_factory=dict)  # moves away from guarded pools, by pool

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
