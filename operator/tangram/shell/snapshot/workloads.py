"""Deployments of LLMDeployments and their pods: replicas, rollouts, and the devices that pods hold. Pure."""

import ipaddress
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tangram.fleet import (
    BUNDLED,
    Claim,
    EngineRuntime,
    FleetSnapshot,
    MetricsDialect,
    Unscheduled,
    Workload,
)
from tangram.fleet.pod_requests import FINISHED_PHASES
from tangram.fleet.times import epoch_or
from tangram.kube.kinds import Object, identity_of, key_of, uid_of
from tangram.runtimes.runtime import RuntimeMetrics
from tangram.scaling.queries import VLLM_NAMES, Dialects
from tangram.shell.objects.engine_pod import ENGINE_PORT
from tangram.shell.objects.fetch_reports import fetch_state
from tangram.shell.objects.model_claims import mounted_claim
from tangram.shell.objects.node_affinity import targeted_nodes
from tangram.shell.objects.owned_objects import UnknownShape, generation_of, priority_class_of, shape_of
from tangram.shell.objects.waiting_pods import pod_creation_failure, waiting_message
from tangram.shell.snapshot.conversion import (
    SkipHandler,
    convert_each,
    count_of,
    ignore_skipped,
    integer_or_zero,
)
from tangram.shell.snapshot.model_claims import fill_jobs
from tangram.shell.snapshot.ownership import owned_deployments, owner_uid, pods_by_job
from tangram.shell.watch.mirror_view import MirrorView


def workloads(view: MirrorView, now: float, on_skipped: SkipHandler) -> tuple[Workload, ...]:
    """Return the Deployments of LLMDeployments, in the order of namespace and name."""
    owned = owned_deployments(view)
    pods_of = {key_of(deployment): pods for deployment, pods in owned}
    fills = fill_jobs(view)
    of_jobs = pods_by_job(view) if fills else {}

    def convert(deployment: Object) -> Workload:
        namespace, name = key_of(deployment)
        job = fills.get((namespace, mounted_claim(deployment)))
        fill_pods = [] if job is None else of_jobs.get(identity_of(job), [])
        return workload(deployment, pods_of[namespace, name], now, fill_pods)

    return tuple(convert_each((deployment for deployment, _ in owned), convert, on_skipped))


def workload(
    deployment: Object, pods: list[Object], now: float, fill_pods: Sequence[Object] = ()
) -> Workload:
    """Return one Deployment with the state of its pods. `fill_pods`: of the Job that fills its claim."""
    meta, spec, status = deployment["metadata"], deployment["spec"], deployment.get("status") or {}
    products, declared = targeted_nodes(spec.get("template") or {})
    return Workload(
        uid=uid_of(deployment),
        name=meta["name"],
        namespace=meta["namespace"],
        owner_uid=owner_uid(deployment),
        shape=shape_of(deployment),
        replicas=count_of(spec.get("replicas", 1)),
        ready=count_of(status.get("readyReplicas", 0)),
        available=count_of(status.get("availableReplicas", 0)),
        updated=count_of(status.get("updatedReplicas", 0)),
        settled=integer_or_zero(status.get("observedGeneration", 0))
        >= integer_or_zero(meta.get("generation", 1)),
        total=count_of(status.get("replicas", 0)),
        owner_generation=generation_of(deployment),
        in_place=_has_no_surge(deployment),
        message=waiting_message(deployment, pods, now),
        unscheduled=_unscheduled(pods),
        refused=pod_creation_failure(deployment),
        products=products,
        declared=declared,
        priority_class_name=priority_class_of(deployment),
        fetch=fetch_state(deployment, pods, now, fill_pods),
        start_budget_s=_start_budget_s(deployment),
        model_claim=mounted_claim(deployment),
    )


def _start_budget_s(deployment: Object) -> int:
    """Return how long an EngineRuntime lets a replica start; 0: the bundled engine runs."""
    if shape_of(deployment).runtime == BUNDLED:
        return 0
    pod = (deployment["spec"].get("template") or {}).get("spec") or {}
    budgets = (
        integer_or_zero(probe.get("failureThreshold")) * integer_or_zero(probe.get("periodSeconds"))
        for container in pod.get("containers") or ()
        if (probe := container.get("startupProbe"))
    )
    return max(budgets, default=0)


def engine_pod_names(view: MirrorView) -> dict[str, tuple[str, ...]]:
    """Return the names of the engine pods of each LLMDeployment, by UID, sorted."""
    names: dict[str, set[str]] = {}
    for deployment, pods in owned_deployments(view):
        names.setdefault(owner_uid(deployment), set()).update(key_of(pod)[1] for pod in pods)
    return {uid: tuple(sorted(pod_names)) for uid, pod_names in names.items()}


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A pod that runs the engine of an LLMDeployment, at an address of its own."""

    uid: str
    name: str
    ip: str
    is_ready: bool
    runtime: EngineRuntime | None = None  # None: the bundled engine

    @property
    def metrics_port(self) -> int:
        """The port of its metrics page."""
        return ENGINE_PORT if self.runtime is None else self.runtime.pod.port

    @property
    def metrics(self) -> RuntimeMetrics:
        """Its metrics page."""
        return RuntimeMetrics() if self.runtime is None else self.runtime.metrics


def engine_pods(view: MirrorView, runtimes: Iterable[EngineRuntime] = ()) -> dict[str, tuple[EnginePod, ...]]:
    """Return the running engine pods of each LLMDeployment, by UID, sorted by name.

    The kubelet writes the address into the status. One that no pod of its own can have, that of a pod in the
    network of its node or a link-local one among them, is not asked for anything.
    """
    pods_of: dict[str, list[EnginePod]] = {}
    by_name = {runtime.name: runtime for runtime in runtimes}
    for deployment, pods in owned_deployments(view):
        runtime = by_name.get(_runtime_of(deployment)) if by_name else None
        running = (pod for pod in pods if pod["phase"] == "Running" and is_pod_address(pod.get("ip", "")))
        pods_of.setdefault(owner_uid(deployment), []).extend(
            EnginePod(uid_of(pod), key_of(pod)[1], pod["ip"], _is_ready(pod), runtime) for pod in running
        )
    return {uid: tuple(sorted(pods, key=lambda pod: pod.name)) for uid, pods in pods_of.items()}


def dialects_of(snapshot: FleetSnapshot) -> dict[str, Dialects]:
    """Return the names of metrics that the pods of LLMDeployments have, by UID, where not vLLM's alone."""
    of_runtime = {runtime.name: runtime.metrics.dialect for runtime in snapshot.runtimes}
    found: dict[str, Dialects] = {}
    for workload in snapshot.workloads:
        dialect = of_runtime.get(workload.shape.runtime, MetricsDialect.VLLM)
        if dialect is not MetricsDialect.VLLM:
            found[workload.owner_uid] = found.get(workload.owner_uid, VLLM_NAMES) | {dialect}
    return found


def _runtime_of(deployment: Object) -> str:
    try:
        return shape_of(deployment).runtime
    except UnknownShape:
        return BUNDLED


def is_pod_address(text: str) -> bool:
    """Return whether `text` is an IP address that a pod can have."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id:
            return False
        address = address.ipv4_mapped or address
    return not (
        address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    )


def _is_ready(pod: Object) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in pod["conditions"])


def claims(view: MirrorView, on_skipped: SkipHandler = ignore_skipped) -> tuple[Claim, ...]:
    """Return the NVIDIA resources that pods hold, by node; those of engines with their LLMDeployment."""
    owners = {
        key_of(pod): owner_uid(deployment) for deployment, pods in owned_deployments(view) for pod in pods
    }

    def of_pod(pod: Object) -> list[Claim]:
        if not pod["nodeName"] or pod["phase"] in FINISHED_PHASES:
            return []
        owner, leaves_at = owners.get(key_of(pod)), _leaves_at(pod)
        held = ((resource, count_of(count)) for resource, count in pod["requests"].items())
        name = "/".join(key_of(pod))
        return [Claim(pod["nodeName"], resource, count, owner, leaves_at, name) for resource, count in held]

    held = itertools.chain.from_iterable(convert_each(view.pods, of_pod, on_skipped))
    return tuple(
        sorted(
            held,
            key=lambda c: (c.node, c.resource, c.owner_uid or "", c.count, c.leaves_at or 0.0, c.pod),
        )
    )


def _leaves_at(pod: Object) -> float | None:
    """Return by when a terminating pod is to be gone: the API server adds its grace to the timestamp."""
    timestamp = pod["metadata"].get("deletionTimestamp")
    return epoch_or(timestamp, 0.0) if timestamp else None


def _unscheduled(pods: list[Object]) -> Unscheduled | None:
    """Return the pods that the scheduler finds no node for, None where there are none."""
    waiting = [
        (
            epoch_or(condition.get("since") or pod["metadata"].get("creationTimestamp"), 0.0),
            str(condition["message"]),
        )
        for pod in pods
        for condition in pod["conditions"]
        if (condition["type"], condition["status"]) == ("PodScheduled", "False")
        and condition["reason"] == "Unschedulable"
        and not pod["metadata"].get("deletionTimestamp")
        and pod["phase"] == "Pending"
    ]
    if not waiting:
        return None
    since, message = min(waiting)
    return Unscheduled(len(waiting), since, message) if since else None


def _has_no_surge(deployment: Object) -> bool:
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return str(rolling.get("maxSurge")) in ("0", "0%")
