"""What the mirrors keep of each object: only fields that a decision or a message needs. Pure."""

import sys
from typing import Any

from tangram.api.common.priority import PRIORITY_CLASS_LABEL
from tangram.api.llm_deployment.replicas import reduced
from tangram.fleet.labels import COMPONENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL, NVIDIA_PREFIX, OWNER_LABEL
from tangram.fleet.pod_requests import gpu_requests
from tangram.shell.objects.kinds import (
    LLM_DEPLOYMENTS,
    TEMPLATE_LABEL,
    VARIANT_LABEL,
    Object,
    controller_of,
    is_controlled_by,
)
from tangram.shell.watch.quota_scopes import counts_engines, priority_class_terms

OUR_PREFIX = f"{LLM_DEPLOYMENTS.group}/"
OUR_LABELS = {MANAGED_BY_LABEL, COMPONENT_LABEL, OWNER_LABEL, VARIANT_LABEL, TEMPLATE_LABEL}
MAX_VALUES = 2000  # of a spec or status of a child
MAX_CHARACTERS = 64 * 1024
MAX_CONTAINERS = 16  # of a pod: ours have one, and what is injected beside it
MAX_MESSAGE = 8192  # of a termination message; the contract allows 4096 bytes, the kubelet 4096 as well


def _meta(obj: Object, *fields: str) -> Object:
    meta = obj.get("metadata", {})
    wanted = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields)
    return {name: meta[name] for name in wanted if meta.get(name) is not None}


def custom_resource(obj: Object) -> Object:
    """Keep what a person wrote into an object of our own kinds, and our status. Its CRD bounds both; labels,
    annotations and references of others, which nothing bounds but the API server, go. Of managedFields the
    client stays that set spec.replicas.
    """
    return {
        **reduced(obj),
        **{key: obj[key] for key in ("apiVersion", "kind", "spec", "status") if key in obj},
        "metadata": _meta(obj, "generation", "creationTimestamp") | {"annotations": _annotations(obj)},
    }


def owned_object(obj: Object) -> Object | None:
    """Keep a Deployment, Service or Job of an LLMDeployment: of its metadata what we write ourselves, and
    of its spec next to nothing where it weighs far more than what we render.
    """
    if not is_controlled_by(obj, LLM_DEPLOYMENTS):
        return None
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return {
        **{key: obj[key] for key in ("apiVersion", "kind") if key in obj},
        "metadata": _meta(obj, "generation", "creationTimestamp")
        | {
            "labels": {k: v for k, v in (meta.get("labels") or {}).items() if k in OUR_LABELS},
            "annotations": _annotations(obj),
            "ownerReferences": [controller_of(obj)],
        },
        "spec": spec if _is_light(spec) else _bare(spec),
        "status": status if _is_light(status) else {},
    }


def _annotations(obj: Object) -> dict[str, str]:
    """Return the annotations in our own name space."""
    annotations: dict[str, str] = obj.get("metadata", {}).get("annotations") or {}
    return {k: v for k, v in annotations.items() if k.startswith(OUR_PREFIX) and len(v) <= MAX_MESSAGE}


def _bare(spec: Object) -> Object:
    """Return what of a spec is read before it is compared: it then differs, and is applied again."""
    kept = {k: spec[k] for k in ("replicas", "selector", "strategy") if k in spec and _is_light(spec[k])}
    return kept | {"template": {"metadata": {}, "spec": {"containers": []}}}


def _is_light(value: Any) -> bool:
    """Say whether a part of an object has few values and short ones: a rendered spec has some 200."""
    values, characters, waiting = 0, 0, [value]
    while waiting:
        part = waiting.pop()
        values += 1
        if isinstance(part, dict):
            waiting.extend(part.values())
            characters += sum(map(len, part))
        elif isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, str):
            characters += len(part)
        if values + len(waiting) > MAX_VALUES or characters > MAX_CHARACTERS:
            return False
    return True


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


def priority_class(obj: Object) -> Object:
    """Keep what makes a priority of a PriorityClass, and whether it may be used."""
    labels = obj.get("metadata", {}).get("labels") or {}
    kept = {k: v for k, v in labels.items() if k == PRIORITY_CLASS_LABEL}
    return {
        **{key: obj[key] for key in ("value", "preemptionPolicy", "globalDefault") if key in obj},
        "metadata": _meta(obj) | {"labels": kept},
    }


def resource_quota(obj: Object) -> Object | None:
    """Keep what is enforced: hard and used. Quotas that concern no pod like ours are left out."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not counts_engines(spec):
        return None
    terms = priority_class_terms(spec)
    return {
        **({"priorityClasses": terms} if terms else {}),
        "metadata": _meta(obj),
        "hard": status.get("hard") or spec.get("hard") or {},
        "used": status.get("used") or {},
    }


def pod(obj: Object) -> Object | None:
    """Keep pods that hold NVIDIA resources or are ours; the rest of the cluster is none of our business."""
    labels = obj.get("metadata", {}).get("labels") or {}
    requests = gpu_requests(obj.get("spec", {}))
    if not requests and labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    status, controller = obj.get("status", {}), controller_of(obj)
    return {
        "metadata": _meta(obj, "creationTimestamp")
        | {
            "labels": {k: sys.intern(str(v)) for k, v in labels.items() if k in OUR_LABELS},
            "ownerReferences": [controller] if controller else [],
        },
        "nodeName": obj.get("spec", {}).get("nodeName", ""),
        "requests": requests,
        "phase": status.get("phase", ""),
        "conditions": [
            _condition(c) | _since(c)
            for c in status.get("conditions") or ()
            if c.get("type") in ("PodScheduled", "Ready")
        ],
        "containers": [_container(c) for c in _container_statuses(status)[:MAX_CONTAINERS]],
    }


def _container_statuses(status: Object) -> list[Object]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(condition: Object) -> Object:
    return {k: str(condition.get(k, ""))[:MAX_MESSAGE] for k in ("type", "status", "reason", "message")}


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
