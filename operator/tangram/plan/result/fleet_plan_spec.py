"""A plan document as a FleetPlan object of bounded size.

Equal layouts are listed once, with a count. Each list has a limit in bytes: the first items that fit are
listed, and a total counts all. So ten thousand GPUs stay well below the API server's limit.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tangram.api.fleet_plan import EXAMPLES, MAX_ITEMS, MAX_NEW_NODES, MAX_NOTES
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT, MAX_TEXT
from tangram.fleet import WHOLE_GPU, Shape

_KIB = 1024
# Most bytes of JSON, by list: 470 KiB together.
_MOST_BYTES = {
    "layouts": 150 * _KIB,
    "deployments": 140 * _KIB,
    "steps": 60 * _KIB,
    "moves": 40 * _KIB,
    "short": 40 * _KIB,
    "newNodes": 20 * _KIB,
    "notes": 20 * _KIB,
}
_MOST_ITEMS = {"newNodes": MAX_NEW_NODES, "notes": MAX_NOTES}
_LEAST_GAP = 1e-4  # a smaller gap is shown as <0.01%, not as zero

Document = Mapping[str, Any]


def status_figures(document: Document, *, current_cost_per_hour: float, solve_s: float) -> dict[str, str]:
    """Return the figures of the FleetPlan's `status`, in USD per hour and seconds."""
    return {
        "currentCostPerHour": _usd(current_cost_per_hour),
        "savesPerHour": _usd(current_cost_per_hour - document["costPerHour"]),
        "solveSeconds": f"{max(0.0, solve_s):.2f}",
    }


def fleet_plan_spec(document: Document, *, inputs_hash: str) -> dict[str, Any]:
    """Return the `spec` of the FleetPlan of one plan document. Equal documents give equal bytes."""
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
        spec["stepsMissing"] = _cut(missing["text"], MAX_TEXT)
    lists: dict[str, Iterable[Any]] = {
        "short": map(_unmet, sorted(document["unmet"], key=_urgency)),
        "deployments": map(_deployment, sorted(document["deployments"], key=_dearest)),
        "layouts": classes,
        "newNodes": ({"pool": n["pool"], "count": n["count"]} for n in document.get("newNodes", ())),
        "moves": map(_move, document["moves"]),
        "steps": map(_step, document.get("steps", ())),
        "notes": (_cut(text, MAX_TEXT) for text in document.get("notes", ())),
    }
    return spec | {name: listed for name, items in lists.items() if (listed := _within(name, items))}


def _within(name: str, items: Iterable[Any]) -> list[Any]:
    """Return the first items that fit into the limits of this list."""
    listed: list[Any] = []
    bytes_left, most = _MOST_BYTES[name], _MOST_ITEMS.get(name, MAX_ITEMS)
    for item in items:
        bytes_left -= len(json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()) + 1
        if bytes_left < 0 or len(listed) == most:
            break
        listed.append(item)
    return listed


def _layouts(gpus: Iterable[Document]) -> list[dict[str, Any]]:
    """Return classes of equal layouts: re-cut ones first, then the most frequent."""
    classes: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for gpu in gpus:
        slices: dict[tuple[str, str], list[int]] = defaultdict(list)
        for instance in (*gpu["instances"], *gpu.get("free", ())):
            slices[instance["profile"], instance.get("owner") or ""].append(instance["start"])
        cut = tuple(sorted((tuple(sorted(starts)), *kind) for kind, starts in slices.items()))
        classes[not gpu.get("recut", False), gpu.get("sku", ""), cut].append(gpu["id"])
    ordered = sorted(classes.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1:]))
    return [_layout(unchanged, sku, cut, sorted(names)) for (unchanged, sku, cut), names in ordered]


def _layout(unchanged: bool, sku: str, cut: tuple[Any, ...], names: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {"count": len(names), "sku": _cut(sku)} | {"recut": not unchanged}
    if cut:
        document["slices"] = [
            {"profile": profile, "starts": list(starts)} | ({"owner": _cut(owner)} if owner else {})
            for starts, profile, owner in cut
        ]
    return document | {"gpus": [_cut(name) for name in names[:EXAMPLES]]}


def _shape(shape: Document) -> Shape:
    stages = shape.get("pipelineParallel", 1)
    return Shape(shape["sku"], shape["profile"], shape["tensorParallel"], pipeline_parallel=stages)


def _deployment(deployment: Document) -> dict[str, Any]:
    document = {"namespace": _cut(deployment.get("namespace", "default")), "name": _cut(deployment["name"])}
    chosen = [
        {
            "shape": str(_shape(shape)),
            "precision": shape["precision"],
            "replicas": shape["replicas"],
        }
        for shape in deployment["chosen"][:8]
    ]
    return (
        document | ({"chosen": chosen} if chosen else {}) | {"costPerHour": _usd(deployment["costPerHour"])}
    )


def _dearest(deployment: Document) -> tuple[float, str, str]:
    return -deployment["costPerHour"], deployment.get("namespace", ""), deployment["name"]


def _unmet(item: Document) -> dict[str, Any]:
    return {
        "name": _cut(item["name"]),
        "priority": item.get("priority", 0),
        "share": f"{item['share']:.4f}",
        "reason": _cut(item["reason"], MAX_TEXT),
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
    return _cut(_with_slice(site["gpu"], site))


def _with_slice(device: str, place: Document) -> str:
    profile = place.get("profile", WHOLE_GPU)
    return device if profile == WHOLE_GPU else f"{device} {profile}@{place['start']}"


def _step(step: Document) -> dict[str, Any]:
    document = {"number": step["number"], "kind": step["kind"]}
    document |= {"owner": _cut(step["owner"])} if step.get("owner") else {}
    document["at"] = _cut(_devices(step), MAX_TEXT)
    return document | ({"after": list(step["after"][-MAX_ITEMS:])} if step["after"] else {})


def _devices(step: Document) -> str:
    devices: str = " ".join(step.get("gpus", ())) or step["node"]
    if "layout" in step:
        text = f"{devices} {' '.join('{profile}@{start}'.format(**instance) for instance in step['layout'])}"
    elif "migEnabled" in step:
        text = f"{devices} MIG {'on' if step['migEnabled'] else 'off'}"
    elif "pool" in step:
        text = f"{devices} of GPUPool {step['pool']}"
    else:
        text = _with_slice(devices, step)
    return text


def _usd(value: float) -> str:
    """Return USD to the cent, below a cent with four digits. Never -0, never an exponent."""
    text = f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.4f}"
    return "0.00" if not text.strip("-0.") else text


def _gap(gap: float) -> str:
    return "<0.01%" if 0 < gap < _LEAST_GAP else f"{gap:.2%}"


def _cut(text: str, most: int = MAX_SHORT_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
