"""What the mirrors keep of each object: only fields that a decision or a message needs. Pure."""

import sys
from typing import Any

from tangram.fleet.pod_requests import gpu_requests
from tangram.shell.kinds import MANAGED_BY, MANAGED_BY_LABEL, NVIDIA_PREFIX, Object

MAX_MESSAGE = 8192  # of a termination message; the contract allows 4096 bytes, the kubelet 4096 as well


def _meta(obj: Object, *fields: str) -> Object:
    meta = obj.get("metadata", {})
    wanted = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields)
    return {name: meta[name] for name in wanted if meta.get(name) is not None}


def whole(obj: Object) -> Object:
    """Keep all but managedFields, the larger half of many objects."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


def node(obj: Object) -> Object:
    """Keep what says whether GPU pods may run there, how many, and to which GPUPools it may belong."""
    status = obj.get("status", {})
    allocatable, capacity = _devices(status, "allocatable"), _devices(status, "capacity")
    ready = next(
        (c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"), "Unknown"
    )
    return {
        "metadata": _meta(obj) | {"labels": _gpu_labels(obj, allocatable | capacity)},
        "unschedulable": bool(obj.get("spec", {}).get("unschedulable")),
        "taints": obj.get("spec", {}).get("taints") or [],
        "ready": ready == "True",
        "allocatable": allocatable,
        "capacity": capacity,
    }


def _devices(status: Object, key: str) -> Object:
    return {k: v for k, v in (status.get(key) or {}).items() if k.startswith(NVIDIA_PREFIX)}


def _gpu_labels(obj: Object, devices: Object) -> dict[str, str]:
    """Keep every label of a GPU node: any of them may be what a GPUPool selects by. Thousands of nodes carry
    the same dozens, so each text is kept once.
    """
    labels: dict[str, str] = obj.get("metadata", {}).get("labels") or {}
    if not devices and not any(key.startswith(NVIDIA_PREFIX) for key in labels):
        return {}
    return {sys.intern(str(key)): sys.intern(str(value)) for key, value in labels.items()}


def fleet_plan(obj: Object) -> Object:
    """Keep who wrote a FleetPlan, when, and its status; the decision itself is long and never changes."""
    return {
        "metadata": _meta(obj, "labels", "creationTimestamp"),
        "status": obj.get("status") or {},
    }


def resource_quota(obj: Object) -> Object | None:
    """Keep what is enforced: hard and used. Quotas that concern no pod like ours are left out."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not all(_in_scope(scope) for scope in _scopes(spec)):
        return None
    return {
        "metadata": _meta(obj),
        "hard": status.get("hard") or spec.get("hard") or {},
        "used": status.get("used") or {},
    }


def _scopes(spec: Object) -> list[tuple[str, str]]:
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return [
        *((scope, "Exists") for scope in spec.get("scopes") or ()),
        *((term.get("scopeName", ""), term.get("operator", "")) for term in selected),
    ]


def _in_scope(scope: tuple[str, str]) -> bool:
    """Say whether engine pods are in a scope: they are Guaranteed, end by no deadline, and name no priority
    class. Source: kubernetes/pkg/quota/v1/evaluator/core/pods.go, podMatchesScopeFunc.
    """
    name, operator = scope
    if name == "PriorityClass":
        return operator in ("NotIn", "DoesNotExist")
    return name in ("NotTerminating", "NotBestEffort")


def pod(obj: Object) -> Object | None:
    """Keep pods that hold NVIDIA resources or are ours; the rest of the cluster is none of our business."""
    labels = obj.get("metadata", {}).get("labels") or {}
    requests = gpu_requests(obj.get("spec", {}))
    if not requests and labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    status = obj.get("status", {})
    return {
        "metadata": _meta(obj, "labels", "ownerReferences", "creationTimestamp"),
        "nodeName": obj.get("spec", {}).get("nodeName", ""),
        "requests": requests,
        "phase": status.get("phase", ""),
        "conditions": [
            _condition(c) | _since(c)
            for c in status.get("conditions") or ()
            if c.get("type") in ("PodScheduled", "Ready")
        ],
        "containers": [_container(c) for c in _container_statuses(status)],
    }


def _container_statuses(status: Object) -> list[Object]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(condition: Object) -> Object:
    return {k: condition.get(k, "") for k in ("type", "status", "reason", "message")}


def _since(condition: Object) -> Object:
    since = condition.get("lastTransitionTime")
    return {"since": since} if since and condition.get("status") == "False" else {}


def _container(status: Object) -> Object:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    return {
        "name": status.get("name", ""),
        "waiting": _pick(state.get("waiting"), "reason", "message"),
        "terminated": _pick(state.get("terminated"), "reason", "message", "exitCode"),
        "lastTerminated": _pick(last.get("terminated"), "reason", "exitCode"),
        "restarts": status.get("restartCount", 0),
    }


def _pick(part: Object | None, *fields: str) -> Object | None:
    if not part:
        return None
    picked: dict[str, Any] = {name: part[name] for name in fields if part.get(name) is not None}
    if isinstance(picked.get("message"), str):
        picked["message"] = picked["message"][:MAX_MESSAGE]
    return picked
