"""The product's planner on the fleets of these benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.packing.online import Fleet, Site
from tangram.packing import GPUState, Instance, Packing, Problem, slice_request
from tangram.packing.solve import SolveLimits, solve

SKU = "H100-80GB-SXM"
NAMES = {"1g": "1g.10gb", "2g": "2g.20gb", "3g": "3g.40gb", "4g": "4g.40gb", "7g": "7g.80gb"}
SHORT = {name: short for short, name in NAMES.items()}
RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a move costs, in GPU-hours of which one is to be saved, and how many there may be."""

    move_cost: float
    move_budget: int | None = None
    gap: float = 0.0
    deterministic_s: float = 30.0


def problem(
    fleet: Fleet, new: Mapping[str, int], terms: Terms, priorities: Mapping[str, int] | None = None
) -> Problem:
    """The fleet as it is, all of it movable, and `new` requests."""
    gpus = tuple(
        GPUState(
            f"g{number:05}",
            f"n{number // 8:04}",
            SKU,
            mig_enabled=True,
            instances=tuple(
                Instance(NAMES[profile], start, RUNNING, move_cost=terms.move_cost)
                for start, profile in layout
            ),
        )
        for number, layout in enumerate(fleet.layouts())
    )
    demands = tuple(
        slice_request(f"new-{p}", NAMES[p], n, priority=(priorities or {}).get(p, 0))
        for p, n in sorted(new.items())
        if n
    )
    return Problem(gpus, demands, ((SKU, 1.0),), move_budget=terms.move_budget)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner would do."""

    packing: Packing
    moves: tuple[tuple[Site, Site], ...]
    placed: tuple[tuple[Site, str], ...]  # new ones

    @property
    def unmet(self) -> bool:
        return bool(self.packing.unmet)


def plan(
    fleet: Fleet, new: Mapping[str, int], terms: Terms, priorities: Mapping[str, int] | None = None
) -> Plan:
    """Ask the planner; the fleet is not changed."""
    limits = SolveLimits(deterministic_s=terms.deterministic_s, gap=terms.gap)
    packing = solve(problem(fleet, new, terms, priorities), limits)
    moves = tuple(
        ((_gpu(m.source.gpu), m.source.start), (_gpu(m.target.gpu), m.target.start)) for m in packing.moves
    )
    placed = tuple(
        ((_gpu(layout.id), instance.start), SHORT[instance.profile])
        for layout in packing.layouts
        for instance in layout.instances
        if instance.owner is not None and instance.owner.startswith("new-")
    )
    return Plan(packing, moves, placed)


def apply(fleet: Fleet, found: Plan) -> None:
    """Carry a plan out. Raises where it is not legal: slices overlap, or somebody was lost."""
    left = [(target, fleet.remove(source)) for source, target in found.moves]
    for site, profile in (*left, *found.placed):
        fleet.put(site, profile)
    wanted = {
        ((_gpu(layout.id), instance.start), SHORT[instance.profile])
        for layout in found.packing.layouts
        for instance in layout.instances
        if instance.owner is not None
    }
    if wanted != set(fleet.held.items()):
        raise ValueError("the plan's moves do not lead to the plan's layout")


def _gpu(name: str) -> int:
    return int(name[1:])
