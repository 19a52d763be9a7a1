"""The fields that mirrors keep of each kind: those that a plan or a message needs. Pure.

Each function takes an object from the API server and returns the kept part, None where nothing is needed.
"""

import sys
from collections.abc import Callable, Collection
from typing import Any

from tangram.api.common.priority import PRIORITY_CLASS_LABEL
from tangram.api.llm_deployment.replicas_set_by import reduced
from tangram.fleet.labels import COMPONENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL, NVIDIA_PREFIX, OWNER_LABEL
from tangram.fleet.pod_requests import gpu_requests
from tangram.kube.kinds import (
    DELETION_COST,
    LLM_DEPLOYMENTS,
    TEMPLATE_LABEL,
    VARIANT_LABEL,
    Object,
    annotations_of,
    controller_of,
    is_controlled_by,
    labels_of,
)
from tangram.shell.objects.fetch_container import NAME as FETCH

OUR_PREFIX = f"{LLM_DEPLOYMENTS.group}/"
OUR_LABELS = {MANAGED_BY_LABEL, COMPONENT_LABEL, OWNER_LABEL, VARIANT_LABEL, TEMPLATE_LABEL}
MAX_VALUES = 2000  # in a spec or status of an owned object
MAX_CHARACTERS = 64 * 1024
MAX_ID = 64  # of an object or a boot
MAX_CONTAINERS = 16  # of a pod: engine pods have one, and injected ones
_PRIORITY_CLASS = "PriorityClass"
# Of the other quota scopes engine pods are in these: they are Guaranteed and have no deadline.
_ENGINE_SCOPES = ("NotTerminating", "NotBestEffort")
MAX_MESSAGE = 8192  # of a termination message; the contract allows 4096 bytes, the kubelet 4096 as well


def _meta(obj: Object, *fields: str) -> Object:
    meta = obj.get("metadata", {})
    kept = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", *fields)
    return {name: meta[name] for name in kept if meta.get(name) is not None}


def custom_resource(obj: Object) -> Object:
    """Keep spec and status of an object of a Tangram kind; its CRD bounds both. Foreign labels, annotations
    and references, which only the API server bounds, are dropped. Of managedFields, the client that set
    spec.replicas is kept.
    """
    return {
        **reduced(obj),
        **{key: obj[key] for key in ("apiVersion", "kind", "spec", "status") if key in obj},
        "metadata": _meta(obj, "generation", "creationTimestamp") | {"annotations": _annotations(obj)},
    }


def owned_object(obj: Object) -> Object | None:
    """Keep a Deployment, Service or Job of an LLMDeployment: the metadata that the operator writes, and the
    spec, unless it is far larger than a rendered one.
    """
    return _owned(obj, OUR_LABELS)


def prometheus_rule(label_keys: Collection[str]) -> Callable[[Object], Object | None]:
    """Return what keeps the same of a PrometheusRule, with labels that the operator's settings name."""
    kept = OUR_LABELS.union(label_keys)
    return lambda obj: _owned(obj, kept)


def _owned(obj: Object, label_keys: Collection[str]) -> Object | None:
    if not is_controlled_by(obj, LLM_DEPLOYMENTS):
        return None
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        **{key: obj[key] for key in ("apiVersion", "kind") if key in obj},
        "metadata": _meta(obj, "generation", "creationTimestamp")
        | {
            "labels": {k: v for k, v in labels_of(obj).items() if k in label_keys},
            "annotations": _annotations(obj),
            "ownerReferences": [controller_of(obj)],
        },
        "spec": spec if _is_light(spec) else _minimal_spec(spec),
        "status": status if _is_light(status) else {},
    }


def _annotations(obj: Object) -> dict[str, str]:
    """Return the annotations with Tangram's prefix."""
    return {
        k: v for k, v in annotations_of(obj).items() if k.startswith(OUR_PREFIX) and len(v) <= MAX_MESSAGE
    }


def _minimal_spec(spec: Object) -> Object:
    """Return the part of a spec that is read before the comparison; it then differs and is applied again."""
    kept = {k: spec[k] for k in ("replicas", "selector", "strategy") if k in spec and _is_light(spec[k])}
    return kept | {"template": {"metadata": {}, "spec": {"containers": []}}}


def _is_light(value: Any) -> bool:
    """Say whether a part of an object has few and short values: a rendered spec has some 200 of them."""
    values, characters, unvisited = 0, 0, [value]
    while unvisited:
        part = unvisited.pop()
        values += 1
        if isinstance(part, dict):
            unvisited.extend(part.values())
            characters += sum(map(len, part))
        elif isinstance(part, list):
            unvisited.extend(part)
        elif isinstance(part, str):
            characters += len(part)
        if values + len(unvisited) > MAX_VALUES or characters > MAX_CHARACTERS:
            return False
    return True


def node(obj: Object) -> Object:
    """Keep the devices of a node, its conditions and taints, and the labels by which GPUPools select."""
    status = obj.get("status", {})
    allocatable, capacity = _devices(status, "allocatable"), _devices(status, "capacity")
    labels = _gpu_labels(obj, allocatable | capacity)
    ready = next(
        (c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"), "Unknown"
    )
    return {
        "metadata": _meta(obj, "creationTimestamp") | {"labels": labels},
        "unschedulable": bool(obj.get("spec", {}).get("unschedulable")),
        "taints": obj.get("spec", {}).get("taints") or [],
        "ready": ready == "True",
        "bootID": str((status.get("nodeInfo") or {}).get("bootID") or "")[:MAX_ID] if labels else "",
        "allocatable": allocatable,
        "capacity": capacity,
        "host": _host(status) if labels else {},
    }


def _devices(status: Object, key: str) -> Object:
    return {k: v for k, v in (status.get(key) or {}).items() if k.startswith(NVIDIA_PREFIX)}


def _host(status: Object) -> Object:
    return {k: v for k, v in (status.get("allocatable") or {}).items() if k in ("cpu", "memory")}


def _gpu_labels(obj: Object, devices: Object) -> dict[str, str]:
    """Keep every label of a GPU node: a GPUPool may select by any of them. Thousands of nodes carry the same
    dozens, so each text is stored once.
    """
    labels = labels_of(obj)
    if not devices and not any(key.startswith(NVIDIA_PREFIX) for key in labels):
        return {}
    return {sys.intern(str(key)): sys.intern(str(value)) for key, value in labels.items()}


def fleet_plan(obj: Object) -> Object:
    """Keep the author, the time and the status of a FleetPlan, and the spec of one of changes: that of one of
    the whole fleet is long, and never read.
    """
    spec = obj.get("spec") or {}
    return {
        "metadata": _meta(obj, "labels", "creationTimestamp"),
        "spec": spec if spec.get("changes") else {},
        "status": obj.get("status") or {},
    }


def priority_class(obj: Object) -> Object:
    """Keep the priority of a PriorityClass, and whether LLMDeployments may use it."""
    labels = {k: v for k, v in labels_of(obj).items() if k == PRIORITY_CLASS_LABEL}
    return {
        **{key: obj[key] for key in ("value", "preemptionPolicy", "globalDefault") if key in obj},
        "metadata": _meta(obj) | {"labels": labels},
    }


def resource_quota(obj: Object) -> Object | None:
    """Keep the enforced limits of a quota that may count engine pods, whatever their PriorityClass: hard,
    used, and the terms [operator, values] on the class.

    Source: kubernetes/pkg/quota/v1/evaluator/core/pods.go, podMatchesScopeFunc.
    """
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    scopes = _quota_scopes(spec)
    if any(name not in (_PRIORITY_CLASS, *_ENGINE_SCOPES) for name, _, _ in scopes):
        return None
    terms = [[operator, values] for name, operator, values in scopes if name == _PRIORITY_CLASS]
    return {
        **({"priorityClasses": terms} if terms else {}),
        "metadata": _meta(obj),
        "hard": status.get("hard") or spec.get("hard") or {},
        "used": status.get("used") or {},
    }


def cluster_queue(obj: Object) -> Object | None:
    """Keep the slices that a ClusterQueue of Kueue grants: [flavor, resource, amount]."""
    groups = (obj.get("spec") or {}).get("resourceGroups") or ()
    granted = [
        [flavor.get("name", ""), resource.get("name", ""), resource.get("nominalQuota", 0)]
        for group in groups
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
        if str(resource.get("name", "")).startswith(NVIDIA_PREFIX)
    ]
    return {"metadata": _meta(obj), "granted": granted} if granted else None


def resource_flavor(obj: Object) -> Object:
    """Keep the labels of the nodes that a ResourceFlavor of Kueue stands for."""
    return {"metadata": _meta(obj), "nodeLabels": (obj.get("spec") or {}).get("nodeLabels") or {}}


def _quota_scopes(spec: Object) -> list[tuple[str, str, list[str]]]:
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return [
        *((scope, "Exists", []) for scope in spec.get("scopes") or ()),
        *((t.get("scopeName", ""), t.get("operator", ""), list(t.get("values") or ())) for t in selected),
    ]


def pod(obj: Object) -> Object | None:
    """Keep the pods that hold NVIDIA resources or belong to the operator."""
    labels = labels_of(obj)
    requests = gpu_requests(obj.get("spec", {}))
    if not requests and labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    status, controller = obj.get("status", {}), controller_of(obj)
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {
        "metadata": _meta(obj, "creationTimestamp")
        | {
            "labels": {k: sys.intern(str(v)) for k, v in labels.items() if k in OUR_LABELS},
            "ownerReferences": [controller] if controller else [],
        },
        "nodeName": obj.get("spec", {}).get("nodeName", ""),
        **({"deletionCost": cost[:MAX_ID]} if (cost := annotations_of(obj).get(DELETION_COST)) else {}),
        "requests": requests,
        "phase": status.get("phase", ""),
        **_address(obj, labels),
        "conditions": [
            _condition(c)
            for c in status.get("conditions") or ()
            if c.get("type") in ("PodScheduled", "Ready")
        ],
        "containers": [_container(c) for c in containers[:MAX_CONTAINERS]],
    }


def _address(obj: Object, labels: dict[str, str]) -> Object:
    """Return the address of a pod of ours, which its metrics are read from, unless it is that of its node."""
    ip = obj.get("status", {}).get("podIP")
    if not ip or labels.get(MANAGED_BY_LABEL) != MANAGED_BY or obj.get("spec", {}).get("hostNetwork"):
        return {}
    return {"ip": str(ip)[:MAX_ID]}


def _condition(condition: Object) -> Object:
    kept = {k: str(condition.get(k, ""))[:MAX_MESSAGE] for k in ("type", "status", "reason", "message")}
    since = condition.get("lastTransitionTime")
    # Since when a pod is ready tells how long it took to start.
    keeps = condition.get("status") == "False" or condition.get("type") == "Ready"
    return kept | {"since": since} if since and keeps else kept


def _container(status: Object) -> Object:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    # Why the last try to fetch a checkpoint failed, and since when one is under way. Of other containers,
    # there may be thousands of such messages that are never read.
    fetch: Object = {}
    if status.get("name") == FETCH:
        fetch["running"] = _pick(state.get("running"), "startedAt")
        fetch["lastMessage"] = str((last.get("terminated") or {}).get("message") or "")[:MAX_MESSAGE]
    return {
        **fetch,
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
