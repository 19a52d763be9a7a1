"""A packing as the document that people and programs read. Its JSON Schema is cli/plan/schema.json."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tangram.capacity.hardware import hardware
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.packing import Choice, GPULayout, GPUState, Move, Packing, Placed, Site
from tangram.recommendation.documents.document_fields import has_nvlink
from tangram.recommendation.documents.fleet_input import FleetInput
from tangram.recommendation.explanation.alternatives import alternatives, shape_document
from tangram.recommendation.explanation.unmet_reason import unmet_reason
from tangram.recommendation.problem.problem import FleetProblem
from tangram.recommendation.problem.replica_bounds import ReplicaBounds

_DIGITS = 6  # of USD: a millionth of a dollar is below every price


def plan_document(asked: FleetProblem, packing: Packing) -> dict[str, Any]:
    """Return the plan, key by key as the schema says. No durations: equal inputs give equal plans."""
    given, problem = asked.given, asked.problem
    gpus = {gpu.id: gpu for gpu in problem.gpus}
    growing = {pool.name: pool.sku for pool in problem.growable}
    choices, rooms = (
        {choice.demand: choice for choice in packing.choices},
        ReplicaBounds(problem, asked.sized),
    )
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
        "stages": _stages(asked, packing),
        "gpus": [_gpu(layout, gpus.get(layout.id), given, growing) for layout in packing.layouts],
        "newNodes": [{"pool": pool, "count": count} for pool, count in packing.grown],
        "deployments": [_deployment(wanted, asked, choices, rooms, proved) for wanted in given.deployments],
        "requests": _requests(given, packing),
        "moves": [_move(move) for move in packing.moves],
        "unmet": _unmet(asked, packing, rooms),
        "notes": list(given.notes),
    }


def _round(value: float) -> float:
    return round(value, _DIGITS)


def _stages(asked: FleetProblem, packing: Packing) -> list[dict[str, Any]]:
    demands = Counter(f"unmet[{demand.priority}]" for demand in asked.problem.demands)
    return [
        {"name": s.name, "value": _round(s.value), "bound": _round(s.bound), "proved": s.proved}
        | ({"demands": demands[s.name]} if s.name in demands else {})
        for s in packing.stages
    ]


def _gpu(
    layout: GPULayout, state: GPUState | None, given: FleetInput, growing: dict[str, str]
) -> dict[str, Any]:
    node = state.node if state else layout.id.rsplit("/", 1)[0]
    return {
        "id": layout.id,
        "node": node,
        "sku": state.sku if state else growing[node.rsplit("/", 1)[0]],
        "inUse": layout.in_use,
        "recut": layout.recut,
        "inferred": layout.id in given.inferred,
        "instances": [_instance(placed) for placed in layout.instances if placed.owner is not None],
        "free": [{"profile": p.profile, "start": p.start} for p in layout.instances if p.owner is None],
    }


def _instance(placed: Placed) -> dict[str, Any]:
    found = {"profile": placed.profile, "start": placed.start, "owner": placed.owner}
    return found | {"gang": placed.gang} if placed.gang is not None else found


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
    wanted: ServingRequirements,
    asked: FleetProblem,
    choices: Mapping[str, Choice],
    rooms: ReplicaBounds,
    proved: bool,
) -> dict[str, Any]:
    each, choice = asked.sized.get(wanted.id), choices.get(wanted.id)
    found: dict[str, Any] = {
        "name": wanted.name,
        "namespace": wanted.namespace,
        "model": wanted.architecture.name,
    }
    if each is None or choice is None:
        return found | {
            "chosen": [],
            "costPerHour": 0.0,
            "unmet": 0.0,
            "alternatives": [],
            "notes": [
                "paused: it keeps what it has" if wanted.paused else "spec.replicas is 0: nothing of it runs"
            ],
        }
    return found | {
        "chosen": [_chosen(part.shape, part.count, each) for part in choice.parts],
        "costPerHour": _round(choice.price_per_hour),
        "unmet": _round(choice.unmet),
        "alternatives": alternatives(each, choice, rooms, proved=proved),
        "notes": [*wanted.notes, *_notes(wanted, choice)],
    }


def _chosen(shape: Any, count: int, each: AssessedShapes) -> dict[str, Any]:
    offer = each.offer(shape)
    if offer is None:  # what runs now, though nothing says that it serves
        return {
            "sku": shape.sku,
            "profile": shape.profile,
            "tensorParallel": shape.tensor_parallel,
            "precision": "unknown",
            "replicas": count,
        }
    return shape_document(offer.shape, count) | {
        "requestsPerSecond": float(f"{offer.rate * count:.4g}"),
        "unverified": list(offer.unverified),
    }


def _notes(wanted: ServingRequirements, choice: Choice) -> list[str]:
    count, found = sum(part.count for part in choice.parts), []
    spanning = [p for p in choice.parts if p.tensor_parallel > 1 and not has_nvlink(p.sku)]
    if spanning:
        bridged = [hardware(p.sku, ranks=p.tensor_parallel).nvlink for p in spanning]
        links = {"an NVLink bridge" if each else "PCIe" for each in bridged}
        found.append(f"tensor parallelism over {' and '.join(sorted(links))}: its replicas take whole nodes")
    if wanted.most is None and count > wanted.least:
        found.append(
            f"set scaling.maxReplicas to {count} or more: without it the operator keeps {wanted.least}"
        )
    return found


def _requests(given: FleetInput, packing: Packing) -> list[dict[str, Any]]:
    choices = {choice.demand: choice for choice in packing.choices}
    return [
        {
            "name": request.name,
            "profile": request.profile,
            "count": request.count,
            "placed": sum(part.count for part in choices[request.name].parts),
        }
        for request in given.requests
    ]


def _unmet(asked: FleetProblem, packing: Packing, rooms: ReplicaBounds) -> list[dict[str, Any]]:
    counts = {request.name: request.count for request in asked.given.requests}
    said = {wanted.id: wanted.priority for wanted in asked.given.deployments}
    return [
        {
            "name": item.demand,
            "priority": said.get(item.demand, item.priority),
            "share": _round(item.share),
            **({"count": round(item.share * counts[item.demand])} if item.demand in counts else {}),
            "reason": unmet_reason(asked, item, packing, rooms),
        }
        for item in packing.unmet
    ]
