"""What a careful person does: for each model its cheapest shape, the largest replicas first, best fit.

Where the cheapest shape of a model finds no room for all its replicas, the next cheapest is tried. The
marginal variant looks at what is open already. GPUs are cut as replicas need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from tangram.capacity.sizing import ServingShape
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing import Board, GPUState, Problem, board
from tangram.packing.geometry.layouts import Placement
from tangram.plan.offers.fleet_shapes import replicas


@dataclass(slots=True)
class _GPU:
    state: GPUState
    board: Board | None
    whole: bool = False
    placed: list[Placement] = field(default_factory=list)
    mask: int = 0

    @property
    def in_use(self) -> bool:
        return self.whole or bool(self.placed)

    def put(self, profile: str) -> Placement | None:
        """Cut a slice at the driver's choice of a start: the highest that is free."""
        if self.whole or self.board is None:
            return None
        for start, mask in _sites(self.state.sku, profile):
            if not mask & self.mask:
                if not self._within_caps(profile):
                    return None
                found = Placement(start, profile)
                self.placed.append(found)
                self.mask |= mask
                return found
        return None

    def take_back(self, slot: Placement | None) -> None:
        """Undo `put`, or free the whole GPU."""
        if slot is None:
            self.whole = False
            return
        self.placed.remove(slot)
        self.mask &= ~dict(_sites(self.state.sku, slot.profile))[slot.start]

    def _within_caps(self, profile: str) -> bool:
        assert self.board is not None
        needs = [_needs(self.state.sku, name) for name in (*(p.profile for p in self.placed), profile)]
        if sum(compute for compute, _ in needs) > self.board.compute_slices:
            return False
        return all(
            sum(engines.get(kind, 0) for _, engines in needs) <= cap for kind, cap in self.board.engine_caps
        )


@cache
def _sites(sku: str, profile: str) -> tuple[tuple[int, int], ...]:
    """(start, mask), the highest start first."""
    cut = board(sku)
    assert cut is not None
    return tuple(sorted(((o.start, o.mask) for o in cut.options if o.profile == profile), reverse=True))


@cache
def _needs(sku: str, profile: str) -> tuple[int, dict[str, int]]:
    """Compute slices and engines of one slice."""
    cut = board(sku)
    assert cut is not None
    option = next(o for o in cut.options if o.profile == profile)
    return option.compute, dict(option.engines)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything went."""

    placed: tuple[tuple[str, tuple[Placement, ...]], ...]  # GPU id, slices; a whole GPU: one named `gpu`
    in_use: frozenset[str]
    cost_per_hour: float
    unserved: tuple[str, ...]
    shapes: dict[str, ShapeKey]


def plan(problem: Problem, deployments: Sequence[AssessedShapes], *, marginal: bool = False) -> Layout:
    """Serve all of `deployments`, each by one shape, on an empty fleet.

    `marginal`: of all shapes the one that adds least to the cost of the GPUs in use, instead of the cheapest.
    """
    gpus = [_GPU(state, board(state.sku) if state.convertible else None) for state in problem.gpus]
    by_sku: dict[str, list[_GPU]] = {}
    for gpu in gpus:
        by_sku.setdefault(gpu.state.sku, []).append(gpu)
    shapes: dict[str, ShapeKey] = {}
    unserved = []
    for each in sorted(deployments, key=lambda d: (-_size(d.serving[0].key), d.requirements.id)):
        order = _by_addition(problem, by_sku, each) if marginal else each.serving  # cheapest first
        for offer in order:
            if (
                _place_all(by_sku.get(offer.key.sku, []), offer.key, replicas(each.requirements, offer))
                is not None
            ):
                shapes[each.requirements.id] = offer.key
                break
        else:
            unserved.append(each.requirements.id)
    used = [each for each in gpus if each.in_use]
    whole = (Placement(0, WHOLE_GPU),)
    return Layout(
        placed=tuple((g.state.id, tuple(g.placed) if g.placed else whole) for g in used),
        in_use=frozenset(g.state.id for g in used),
        cost_per_hour=sum(problem.price(g.state) for g in used),
        unserved=tuple(unserved),
        shapes=shapes,
    )


def _size(key: ShapeKey) -> float:
    """GPUs that one replica takes up."""
    cut = board(key.sku)
    if key.profile == WHOLE_GPU or cut is None:
        return key.gpus
    mask = _sites(key.sku, key.profile)[0][1]
    return max(_needs(key.sku, key.profile)[0] / cut.compute_slices, mask.bit_count() / cut.memory_slices)


def _by_addition(problem: Problem, by_sku: dict[str, list[_GPU]], each: AssessedShapes) -> list[ServingShape]:
    """Offers by what they would add to the cost of the GPUs in use; those without room are left out."""
    found = []
    for number, offer in enumerate(each.serving):
        gpus = by_sku.get(offer.key.sku, [])
        before = sum(gpu.in_use for gpu in gpus)
        done = _place_all(gpus, offer.key, replicas(each.requirements, offer))
        if done is not None:
            added = (sum(gpu.in_use for gpu in gpus) - before) * problem.price(gpus[0].state)
            found.append((added, number, offer))
            for gpu, slot in done:
                gpu.take_back(slot)
    return [offer for *_, offer in sorted(found, key=lambda f: f[:2])]


def _place_all(gpus: list[_GPU], key: ShapeKey, count: int) -> list[tuple[_GPU, Placement | None]] | None:
    """Place all replicas of one deployment and return where, or place none."""
    done: list[tuple[_GPU, Placement | None]] = []
    for _ in range(count):
        made = _gang(gpus, key.gpus) if key.profile == WHOLE_GPU else _slice(gpus, key.profile)
        if not made:
            for gpu, slot in done:
                gpu.take_back(slot)
            return None
        done += made
    return done


def _slice(gpus: list[_GPU], profile: str) -> list[tuple[_GPU, Placement | None]]:
    for gpu in sorted((g for g in gpus if not g.whole), key=lambda g: -g.mask.bit_count()):
        slot = gpu.put(profile)
        if slot is not None:
            return [(gpu, slot)]
    return []


def _gang(gpus: list[_GPU], count: int) -> list[tuple[_GPU, Placement | None]]:
    """Whole GPUs of the node with the fewest free ones that suffice."""
    nodes: dict[str, list[_GPU]] = {}
    for gpu in gpus:
        if not gpu.in_use:
            nodes.setdefault(gpu.state.node, []).append(gpu)
    fitting = [(len(free), node) for node, free in nodes.items() if len(free) >= count]
    if not fitting:
        return []
    chosen = nodes[min(fitting)[1]][:count]
    for gpu in chosen:
        gpu.whole = True
    return [(gpu, None) for gpu in chosen]
