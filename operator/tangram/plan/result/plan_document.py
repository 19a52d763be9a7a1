"""A packing as the document that `tangram plan -o json` prints. Its JSON Schema is cli/plan/schema.json."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tangram.catalog.lookup import required_gpu
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import Shape, ShapeKey
from tangram.packing import Choice, GPULayout, GPUState, Move, Packing, Placed, Site
from tangram.packing.problem.result import unmet_stage
from tangram.plan.explanation.alternatives import alternatives, shape_document
from tangram.plan.explanation.unmet_reason import unmet_reason
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.place.best.packing_problem import FleetProblem
from tangram.plan.place.best.replica_bounds import ReplicaBounds

_DIGITS = 6  # decimal places of USD
_PAUSED = "paused: its replicas stay as they are"
_NO_REPLICAS = "spec.replicas is 0: no replica runs"


def plan_document(fleet: FleetProblem, packing: Packing) -> dict[str, Any]:
    """Return the plan document. It holds no durations: equal inputs give equal plans."""
    inputs, problem = fleet.inputs, fleet.problem
    gpus = {gpu.id: gpu for gpu in problem.gpus}
    growing = {pool.name: pool.sku for pool in problem.growable}
    choices = {choice.demand: choice for choice in packing.choices}
    bounds = fleet.bounds
    proved = packing.status == "OPTIMAL"
    return {
        "objective": _round(packing.objective),
        "bound": _round(packing.bound),
        "gap": _round(packing.gap),
        "status": packing.status,
        "gpusInUse": packing.gpus_in_use,
        "costPerHour": _round(packing.cost_per_hour),
        "idlePerHour": _round(packing.idle_per_hour),
        "moveCost": _round(packing.move_cost),
        "horizonHours": problem.horizon_h,
        "stages": _stages(fleet, packing),
        "gpus": [_gpu(layout, gpus.get(layout.id), inputs, growing) for layout in packing.layouts],
        "newNodes": [{"pool": pool, "count": count} for pool, count in packing.grown],
        "deployments": [_deployment(d, fleet, choices, bounds, proved) for d in inputs.deployments],
        "requests": _requests(inputs, packing),
        "moves": [_move(move) for move in packing.moves],
        "unmet": _unmet(fleet, packing, bounds),
        "notes": list(inputs.notes),
    }


def _round(value: float) -> float:
    return round(value, _DIGITS)


def _stages(fleet: FleetProblem, packing: Packing) -> list[dict[str, Any]]:
    demands = Counter(unmet_stage(demand.priority) for demand in fleet.problem.demands)
    return [
        {"name": s.name, "value": _round(s.value), "bound": _round(s.bound), "proved": s.proved}
        | ({"demands": demands[s.name]} if s.name in demands else {})
        for s in packing.stages
    ]


def _gpu(
    layout: GPULayout, state: GPUState | None, fleet_input: FleetInput, growing: dict[str, str]
) -> dict[str, Any]:
    node = state.node if state else layout.id.rsplit("/", 1)[0]
    return {
        "id": layout.id,
        "node": node,
        "sku": state.sku if state else growing[node.rsplit("/", 1)[0]],
        "inUse": layout.in_use,
        "recut": layout.recut,
        "inferred": layout.id in fleet_input.inferred,
        "instances": [_instance(placed) for placed in layout.instances if placed.owner is not None],
        "free": [{"profile": p.profile, "start": p.start} for p in layout.instances if p.owner is None],
    }


def _instance(placed: Placed) -> dict[str, Any]:
    document = {"profile": placed.profile, "start": placed.start, "owner": placed.owner}
    return document | {"gang": placed.gang} if placed.gang is not None else document


def _site(site: Site) -> dict[str, Any]:
    return {"gpu": site.gpu, "profile": site.profile, "start": site.start}


def _move(move: Move) -> dict[str, Any]:
    return {
        "owner": move.owner,
        "from": _site(move.source),
        "to": _site(move.target),
        "cost": _round(move.cost),
    }


def _deployment(
    requirements: ServingRequirements,
    fleet: FleetProblem,
    choices: Mapping[str, Choice],
    bounds: ReplicaBounds,
    proved: bool,
) -> dict[str, Any]:
    assessed, choice = fleet.assessed.get(requirements.id), choices.get(requirements.id)
    document: dict[str, Any] = {
        "name": requirements.intent.name,
        "namespace": requirements.intent.namespace,
        "model": requirements.architecture.name,
    }
    if assessed is None or choice is None:
        return document | {
            "chosen": [],
            "costPerHour": 0.0,
            "unmet": 0.0,
            "alternatives": [],
            "notes": [_PAUSED if requirements.intent.paused else _NO_REPLICAS],
        }
    return document | {
        "chosen": [_chosen(part.shape, part.count, assessed) for part in choice.parts],
        "costPerHour": _round(choice.price_per_hour),
        "unmet": _round(choice.unmet),
        "alternatives": alternatives(assessed, choice, bounds, proved=proved),
        "notes": [*requirements.notes, *_notes(requirements, choice)],
    }


def _chosen(shape: ShapeKey, count: int, assessed: AssessedShapes) -> dict[str, Any]:
    offer = assessed.offer(shape)
    if offer is None:  # it runs now, though no assessment says that it serves
        return shape_document(Shape(*shape, precision="unknown"), count)
    return shape_document(offer.shape, count) | {
        "requestsPerSecond": float(f"{offer.rate * count:.4g}"),
        "unverified": list(offer.unverified),
    }


def _notes(requirements: ServingRequirements, choice: Choice) -> list[str]:
    count, notes = sum(part.count for part in choice.parts), []
    gangs = (part for part in choice.parts if part.tensor_parallel > 1)
    if any(not required_gpu(gang.sku).nvlink_joins(gang.tensor_parallel) for gang in gangs):
        notes.append("its replicas are predicted over PCIe: NVLink does not join all GPUs of a node")
    if requirements.most is None and count > requirements.least:
        notes.append(
            f"set scaling.maxReplicas to {count} or more: without it the operator keeps {requirements.least}"
        )
    return notes


def _requests(fleet_input: FleetInput, packing: Packing) -> list[dict[str, Any]]:
    choices = {choice.demand: choice for choice in packing.choices}
    return [
        {
            "name": request.name,
            "profile": request.profile,
            "count": request.count,
            "placed": sum(part.count for part in choices[request.name].parts),
        }
        for request in fleet_input.requests
    ]


def _unmet(fleet: FleetProblem, packing: Packing, bounds: ReplicaBounds) -> list[dict[str, Any]]:
    counts = {request.name: request.count for request in fleet.inputs.requests}
    priorities = {d.id: d.intent.priority for d in fleet.inputs.deployments}
    return [
        {
            "name": item.demand,
            "priority": priorities.get(item.demand, item.priority),
            "share": _round(item.share),
            **({"count": round(item.share * counts[item.demand])} if item.demand in counts else {}),
            "reason": unmet_reason(fleet, item, packing, bounds),
        }
        for item in packing.unmet
    ]
