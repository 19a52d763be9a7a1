"""Why a demand is not served whole: the smallest set of constraints that together rule it out, in words.

The solver's core of a question is thinned: a family whose absence changes nothing is dropped, so that each
one named is needed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tangram.catalog.reading.fields import shortened
from tangram.packing.explanation.question import (
    ExplanationBudget,
    Family,
    FeasibilityQuestion,
    Name,
    missed,
    named,
    shapes_of,
    skus_of,
)
from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Problem
from tangram.packing.problem.validate import validate

_SHOWN = 5  # names in one sentence


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """One family of constraints without which the demand could be served whole."""

    family: Family
    subject: str  # which SKU, how many dollars, which owners ...

    def __str__(self) -> str:
        return f"{self.family}: {self.subject}" if self.subject else self.family


@dataclass(frozen=True, slots=True)
class InfeasibleCore:
    """Why one demand is not served whole."""

    demand: str
    unmet: float  # share, 0..1
    bindings: tuple[Binding, ...]  # all of them together; each is needed
    proved: bool = True  # False: the time was over; fewer families may do

    def __str__(self) -> str:
        return (
            " and ".join(map(str, self.bindings))
            or "nothing forbids it: the search ended before it was found"
        )


def infeasible_core(
    problem: Problem, packing: Packing, demand_id: str, effort: ExplanationBudget | None = None
) -> InfeasibleCore | None:
    """Return why `packing` does not serve a demand whole; None: it does. Deterministic.

    Raises `InputError` for a demand that the problem does not have.
    """
    validate(problem)
    demand = named(problem, demand_id)
    unmet = missed(packing, demand)
    if unmet <= 0:
        return None
    question = FeasibilityQuestion(problem, packing, demand, effort or ExplanationBudget())
    needed, proved = _thin(question)
    bindings = tuple(
        Binding(family, sku if family == "gpus" else _SUBJECT[family](question))
        for family, sku in question.names
        if (family, sku) in needed
    )
    return InfeasibleCore(demand_id, unmet, bindings, proved)


def _thin(question: FeasibilityQuestion) -> tuple[frozenset[Name], bool]:
    answer = question.ask()
    if answer.feasible is not False:
        return frozenset(), answer.feasible is not None
    needed, proved = answer.core, True
    for name in question.names:
        if name not in needed:
            continue
        answer_without = question.ask(needed - {name})
        if answer_without.feasible is False:
            needed = answer_without.core
        proved = proved and answer_without.feasible is not None
    return needed, proved


def _immovable(question: FeasibilityQuestion) -> str:
    """The owners of instances that must not move, on the SKUs that the demand could use."""
    skus = skus_of(question.problem, question.demand)
    gpus = (gpu for gpu in question.problem.gpus if gpu.sku in skus)
    return f"instances of {_some(str(i.owner) for gpu in gpus for i in gpu.instances if not i.movable)}"


def _policy(question: FeasibilityQuestion) -> str:
    skus = skus_of(question.problem, question.demand)
    gpus = (gpu for gpu in question.problem.gpus if gpu.sku in skus)
    return f"must not be cut: {_some(gpu.id for gpu in gpus if not (gpu.cuttable and gpu.mig_enabled))}"


def _moves(question: FeasibilityQuestion) -> str:
    problem = question.problem
    everywhere = [] if problem.move_budget is None else [f"at most {problem.move_budget}"]
    return ", ".join(everywhere + [f"at most {n} in pool {pool}" for pool, n in problem.move_budgets])


def _spread(question: FeasibilityQuestion) -> str:
    share = question.demand.spread
    return f"at most {share.node:.0%} of the replicas on one node, {share.zone:.0%} in one zone"


def _gang(question: FeasibilityQuestion) -> str:
    sizes = sorted({shape.gpus for shape in shapes_of(question.demand)} - {1})
    return f"{' or '.join(map(str, sizes))} GPUs of one node"


def _priority(question: FeasibilityQuestion) -> str:
    """The demands served on the same SKUs that are as important or more."""
    skus = skus_of(question.problem, question.demand)
    rank = {demand.id: demand.priority for demand in question.problem.demands}
    rivals = (
        f"{choice.demand} ({rank[choice.demand]})"
        for choice in question.packing.choices
        if choice.demand != question.demand.id
        and rank[choice.demand] >= question.demand.priority
        and any(part.sku in skus for part in choice.parts)
    )
    return f"{question.demand.priority}, beside {_some(rivals)}"


def _some(names: Iterable[str]) -> str:
    return shortened(sorted(set(names)), _SHOWN)


_SUBJECT: Mapping[Family, Callable[[FeasibilityQuestion], str]] = {
    "shape": lambda _: "one for all replicas",
    "policy": _policy,
    "immovable": _immovable,
    "gang": _gang,
    "spread": _spread,
    "moves": _moves,
    "priority": _priority,
    "budget": lambda question: f"{question.demand.budget_per_hour:g} $/h",
}
