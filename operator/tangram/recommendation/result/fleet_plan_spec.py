"""A plan as the FleetPlan that keeps it: bounded in size, whatever the fleet.

Equal layouts are listed once, with a count. Of every list the first items are kept, as many as its share of
the object allows, and all are counted: ten thousand GPUs fit well below what the API server takes.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tangram.api.fleet_plan import EXAMPLES, MAX_ITEMS
from tangram.fleet import WHOLE_GPU, Shape

_KIB = 1024
# Bytes of JSON, by list: 470 KiB together.
_ROOM = {
    "layouts": 150 * _KIB,
    "deployments": 140 * _KIB,
    "steps": 60 * _KIB,
    "moves": 40 * _KIB,
    "short": 40 * _KIB,
    "newNodes": 20 * _KIB,
    "notes": 20 * _KIB,
}
_MOST = {"newNodes": 256, "notes": 32}
_SHORT_TEXT, _TEXT = 256, 2048  # characters, as the API has them
_LEAST_GAP = 1e-4  # smaller ones are no zero

Document = Mapping[str, Any]


def status_figures(document: Document, *, current_cost_per_hour: float, solve_s: float) -> dict[str, str]:
    """Return what the `status` of the FleetPlan says beside its state. USD per hour, seconds."""
    return {
        "currentCostPerHour": _usd(current_cost_per_hour),
        "savesPerHour": _usd(current_cost_per_hour - document["costPerHour"]),
        "solveSeconds": f"{max(0.0, solve_s):.2f}",
    }


def fleet_plan_spec(document: Document, *, inputs_hash: str) -> dict[str, Any]:
    """Return the `spec` of the FleetPlan of one plan document: equal documents, equal bytes."""
    gpus = document["gpus"]
    classes = _layouts(gpus)
    spec: dict[str, Any] = {
        "inputsHash": inputs_hash,
        "proof": document["status"].capitalize(),
        "costPerHour": _usd(document["costPerHour"]),
        "idlePerHour": _usd(document.get("idlePerHour", 0.0)),
        "moveCost": _usd(document.get("moveCost", 0.0)),
        "horizonHours": _usd(document.get("horizonHours", 1.0)),
        "objective": _usd(document["objective"]),
        "bound": _usd(document["bound"]),
        "gap": _gap(document["gap"]),
        "gpus": f"{document['gpusInUse']}/{len(gpus)}",
        "gpusInUse": document["gpusInUse"],
        "gpuCount": len(gpus),
        "unmet": len(document["unmet"]),
        "totalDeployments": len(document["deployments"]),
        "totalLayouts": len(classes),
        "totalMoves": len(document["moves"]),
        "totalSteps": len(document.get("steps", ())),
    }
    mixes = document.get("oneShapePerDeployment")
    if mixes is not None:
        spec["oneShapePerDeployment"] = _cut(mixes["text"])
    missing = document.get("stepsMissing")
    if missing is not None:
        spec["stepsMissing"] = _cut(missing["text"], _TEXT)
    lists: dict[str, Iterable[Any]] = {
        "short": map(_short, sorted(document["unmet"], key=_urgency)),
        "deployments": map(_deployment, sorted(document["deployments"], key=_dearest)),
        "layouts": classes,
        "newNodes": ({"pool": n["pool"], "count": n["count"]} for n in document.get("newNodes", ())),
        "moves": map(_move, document["moves"]),
        "steps": map(_step, document.get("steps", ())),
        "notes": (_cut(text, _TEXT) for text in document.get("notes", ())),
    }
    return spec | {name: kept for name, items in lists.items() if (kept := _within(name, items))}


def _within(name: str, items: Iterable[Any]) -> list[Any]:
    """Return the first items that fit into the room of this list."""
    kept: list[Any] = []
    room, most = _ROOM[name], _MOST.get(name, MAX_ITEMS)
    for item in items:
        room -= len(json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()) + 1
        if room < 0 or len(kept) == most:
            break
        kept.append(item)
    return kept


def _layouts(gpus: Iterable[Document]) -> list[dict[str, Any]]:
    """Return classes of equal layouts: those that are re-cut first, then the most frequent."""
    classes: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for gpu in gpus:
        slices: dict[tuple[str, str], list[int]] = defaultdict(list)
        for each in (*gpu["instances"], *gpu.get("free", ())):
            slices[each["profile"], each.get("owner") or ""].append(each["start"])
        cut = tuple(sorted((tuple(sorted(starts)), *who) for who, starts in slices.items()))
        classes[not gpu.get("recut", False), gpu.get("sku", ""), cut].append(gpu["id"])
    ordered = sorted(classes.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1:]))
    return [_layout(kept, sku, cut, sorted(names)) for (kept, sku, cut), names in ordered]


def _layout(kept: bool, sku: str, cut: tuple[Any, ...], names: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"count": len(names), "sku": _cut(sku)} | {"recut": not kept}
    if cut:
        told["slices"] = [
            {"profile": profile, "starts": list(starts)} | ({"owner": _cut(owner)} if owner else {})
            for starts, profile, owner in cut
        ]
    return told | {"gpus": [_cut(name) for name in names[:EXAMPLES]]}


def _deployment(found: Document) -> dict[str, Any]:
    told = {"namespace": _cut(found.get("namespace", "default")), "name": _cut(found["name"])}
    chosen = [
        {
            "shape": str(Shape(each["sku"], each["profile"], each["tensorParallel"])),
            "precision": each["precision"],
            "replicas": each["replicas"],
        }
        for each in found["chosen"][:8]
    ]
    return told | ({"chosen": chosen} if chosen else {}) | {"costPerHour": _usd(found["costPerHour"])}


def _dearest(found: Document) -> tuple[float, str, str]:
    return -found["costPerHour"], found.get("namespace", ""), found["name"]


def _short(item: Document) -> dict[str, Any]:
    return {
        "name": _cut(item["name"]),
        "priority": item.get("priority", 0),
        "share": f"{item['share']:.4f}",
        "reason": _cut(item["reason"], _TEXT),
    }


def _urgency(item: Document) -> tuple[int, float, str]:
    return -item.get("priority", 0), -item["share"], item["name"]


def _move(move: Document) -> dict[str, Any]:
    return {
        "owner": _cut(move["owner"]),
        "from": _site(move["from"]),
        "to": _site(move["to"]),
        "cost": _usd(move["cost"]),
    }


def _site(site: Document) -> str:
    return _cut(_at(site["gpu"], site))


def _at(where: str, place: Document) -> str:
    profile = place.get("profile", WHOLE_GPU)
    return where if profile == WHOLE_GPU else f"{where} {profile}@{place['start']}"


def _step(step: Document) -> dict[str, Any]:
    told = {"number": step["number"], "kind": step["kind"]}
    told |= {"owner": _cut(step["owner"])} if step.get("owner") else {}
    told["at"] = _cut(_where(step), _TEXT)
    return told | ({"after": list(step["after"][-MAX_ITEMS:])} if step["after"] else {})


def _where(step: Document) -> str:
    where: str = " ".join(step.get("gpus", ())) or step["node"]
    if "layout" in step:
        text = f"{where} {' '.join('{profile}@{start}'.format(**each) for each in step['layout'])}"
    elif "migEnabled" in step:
        text = f"{where} MIG {'on' if step['migEnabled'] else 'off'}"
    elif "pool" in step:
        text = f"{where} of GPUPool {step['pool']}"
    else:
        text = _at(where, step)
    for mark, word in (("temporary", " (for a while)"), ("restart", " (restart)")):
        text += word if step.get(mark) else ""
    return text


def _usd(value: float) -> str:
    """Return cents, and what is below a cent as far as it can be told. Never -0, never an exponent."""
    text = f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.4f}"
    return "0.00" if not text.strip("-0.") else text


def _gap(gap: float) -> str:
    return "<0.01%" if 0 < gap < _LEAST_GAP else f"{gap:.2%}"


def _cut(text: str, most: int = _SHORT_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
