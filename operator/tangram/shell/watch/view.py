"""From mirrored objects to a `FleetSnapshot`. Pure: what is observed, in the nouns of decisions, in a
fixed order.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tangram.api import (
    back_offs_from_status,
    evaluations_from_status,
    facts_from_status,
    parse,
    parse_pool,
    parse_priority_class,
    priority_classes,
)
from tangram.fleet import (
    BackOff,
    CheckpointFacts,
    Claim,
    Evaluation,
    EvaluationKey,
    EvaluationReport,
    FactsKey,
    Fault,
    FleetSnapshot,
    Inspection,
    InvalidIntent,
    InvalidPool,
    Node,
    ParsedIntent,
    PodNeeds,
    Pool,
    PriorityClass,
    QuotaLimit,
    Unscheduled,
    Workload,
)
from tangram.scaling.record import PREDICTED_TPOT
from tangram.shell.objects import kinds
from tangram.shell.objects.children import (
    class_of,
    generation_of,
    has_its_name,
    labels_of,
    shape_of,
)
from tangram.shell.objects.evaluate_jobs import evaluation, evaluation_about
from tangram.shell.objects.inspect_jobs import facts_key, inspection, only_inspects
from tangram.shell.objects.kinds import (
    Identity,
    Key,
    Object,
    controller_of,
    identity_of,
    is_controlled_by,
    key_of,
    owner_of,
    uid_of,
)
from tangram.shell.objects.manifests import evaluate_job_name, job_name
from tangram.shell.objects.node_affinity import steered_to
from tangram.shell.objects.timestamps import epoch
from tangram.shell.objects.waiting import late_at, refusal, waiting_message
from tangram.shell.watch.gpu_nodes import node
from tangram.shell.watch.quota_limits import quota_limits

T = TypeVar("T")

Skipped = Callable[[Object, Exception], None]
"""Told of an object that could not be converted, and why."""


class TakenUID(ValueError):
    """Two LLMDeployments have one UID: the first of them, which has done nothing, is planned."""


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The mirrors at one instant."""

    llm_deployments: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    deployments: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    gpu_pools: tuple[Object, ...] = ()
    resource_quotas: tuple[Object, ...] = ()
    priority_classes: tuple[Object, ...] | None = ()  # None: they may not be listed

    def owners(self) -> frozenset[Identity]:
        """Return which LLMDeployments there are: an owner reference to any other says nothing."""
        return frozenset(identity_of(obj) for obj in self.llm_deployments if uid_of(obj))


@dataclass(frozen=True, slots=True)
class Told:
    """What a snapshot holds from the settings."""

    engine_image: str
    tolerations: tuple[Object, ...]  # that the settings add to those of every engine: which nodes are usable
    prices: tuple[tuple[str, float], ...] = ()
    pod_needs: PodNeeds = field(default_factory=PodNeeds)
    default_priority_class: str = ""


def _ignore(_obj: Object, _error: Exception) -> None:
    """Say nothing of an object that is skipped."""


def intents(
    view: MirrorView, skipped: Skipped = _ignore, default_class: str = ""
) -> tuple[ParsedIntent, ...]:
    """Return what is wanted, in the order of namespace and name. Objects being deleted want nothing.

    `default_class`: the PriorityClass of those that name none.

    Decisions know LLMDeployments by UID: the API server gives each its own, and a second object with one that
    is taken is skipped.
    """
    living = [obj for obj in view.llm_deployments if not obj["metadata"].get("deletionTimestamp")]
    taken: set[str] = set()
    known = None if view.priority_classes is None else _priority_classes(view, skipped)
    classes = priority_classes(known, default_class)

    def wanted(obj: Object) -> ParsedIntent:
        if uid_of(obj) in taken:
            raise TakenUID(f"UID {uid_of(obj)} is that of another LLMDeployment")
        parsed = parse(obj, classes)
        taken.add(parsed.uid)
        return parsed

    return tuple(_each(sorted(living, key=key_of), wanted, skipped))


def unreadable(
    view: MirrorView, read: Iterable[ParsedIntent], faults: Iterable[Fault]
) -> tuple[InvalidIntent, ...]:
    """Return the LLMDeployments with a fault that `read` lacks: refused, with the reason, and left as they
    run.
    """
    known, why = {intent.uid for intent in read}, {fault.owner_uid: fault.error for fault in faults}
    return tuple(
        InvalidIntent(
            uid=uid_of(obj),
            namespace=key_of(obj)[0],
            name=key_of(obj)[1],
            generation=_whole(obj["metadata"].get("generation")),
            created_at=0.0,
            message=f"it could not be read ({why[uid_of(obj)]}); please report this",
        )
        for obj in sorted(view.llm_deployments, key=key_of)
        if uid_of(obj) in why.keys() - known and not obj["metadata"].get("deletionTimestamp")
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def concerned(obj: Object) -> str:
    """Return the UID of the LLMDeployment that an object is, or is a child of; empty: of none."""
    try:
        return uid_of(obj) if obj.get("kind") == kinds.LLM_DEPLOYMENTS.kind else _owner_uid(obj)
    except (AttributeError, TypeError):
        return ""


def _each(objects: Iterable[Object], convert: Callable[[Object], T], skipped: Skipped) -> Iterator[T]:
    """Convert each object on its own: what one person wrote must not end the round of everyone."""
    for obj in objects:
        try:
            converted = convert(obj)
        except Exception as error:  # noqa: BLE001 - told to `skipped`, which counts and logs it
            skipped(obj, error)
        else:
            yield converted


def snapshot(view: MirrorView, told: Told, now: float, skipped: Skipped = _ignore) -> FleetSnapshot:
    """Return what is observed. No single object can end that: one that cannot be understood is left out, and
    `skipped` is told.
    """
    pods_of = _pods_by_deployment(view)
    valid, invalid = pools(view, skipped)
    owners, jobs = view.owners(), _jobs(view, now, skipped)
    deployments = sorted((obj for obj in view.deployments if _ours(obj, owners)), key=key_of)
    return FleetSnapshot(
        nodes=tuple(
            sorted(_each(view.nodes, lambda o: node(o, told.tolerations, valid), skipped), key=_by_name)
        ),
        claims=claims(view, skipped),
        workloads=tuple(_each(deployments, lambda o: workload(o, pods_of.get(key_of(o), []), now), skipped)),
        facts=_facts(view, skipped),
        inspections=tuple(job for job in jobs if isinstance(job, Inspection)),
        reports=_reports(view, skipped),
        evaluations=tuple(job for job in jobs if isinstance(job, Evaluation)),
        services=tuple(sorted(key_of(obj) for obj in view.services if _ours(obj, owners))),
        pools=valid,
        invalid_pools=invalid,
        quotas=quotas(view, skipped),
        pod_needs=told.pod_needs,
        priority_classes=_priority_classes(view, skipped),
        default_priority_class=told.default_priority_class,
        engine_image=told.engine_image,
        prices=told.prices,
    )


def pools(view: MirrorView, skipped: Skipped = _ignore) -> tuple[tuple[Pool, ...], tuple[InvalidPool, ...]]:
    """Return the GPUPools that can be understood, and those that cannot, each by name."""
    living = [obj for obj in view.gpu_pools if not obj["metadata"].get("deletionTimestamp")]
    found = list(_each(sorted(living, key=key_of), parse_pool, skipped))
    return (
        tuple(pool for pool in found if isinstance(pool, Pool)),
        tuple(pool for pool in found if isinstance(pool, InvalidPool)),
    )


def _priority_classes(view: MirrorView, skipped: Skipped) -> tuple[PriorityClass, ...]:
    return tuple(sorted(_each(view.priority_classes or (), parse_priority_class, skipped)))


def _by_name(node: Node) -> str:
    return node.name


def recorded_replicas(view: MirrorView) -> dict[str, int]:
    """Return how many replicas each status says were wanted last, by UID."""
    recorded = ((uid_of(obj), _part(obj, "status").get("desiredReplicas")) for obj in view.llm_deployments)
    return {uid: n for uid, n in recorded if isinstance(n, int) and not isinstance(n, bool) and n >= 0}


def recorded_memories(view: MirrorView) -> dict[str, dict[str, object]]:
    """Return what each status keeps for the scaling law, by UID: what it learned, and the predicted TPOT."""
    found = {}
    for obj in view.llm_deployments:
        status = _part(obj, "status")
        block, placement = dict(_part(status, "scaling")), _part(status, "placement")
        if PREDICTED_TPOT in placement:
            block[PREDICTED_TPOT] = placement[PREDICTED_TPOT]
        found[uid_of(obj)] = block
    return found


def recorded_variants(view: MirrorView) -> dict[str, str]:
    """Return of which shape each status counts replicas, by UID: the shape's name in Deployments."""
    recorded = (
        (uid_of(obj), _part(_part(obj, "status"), "placement").get("variant")) for obj in view.llm_deployments
    )
    return {uid: variant for uid, variant in recorded if isinstance(variant, str)}


def _part(obj: Object, name: str) -> Object:
    """Return an object inside an object, empty where there is none."""
    part = obj.get(name)
    return part if isinstance(part, dict) else {}


def engine_pods(view: MirrorView) -> dict[str, tuple[str, ...]]:
    """Return the names of the pods of each LLMDeployment's Deployments, by UID, sorted."""
    known, found = view.owners(), dict[str, set[str]]()
    for deployment, pods in _with_pods(view):
        if _ours(deployment, known):
            found.setdefault(_owner_uid(deployment), set()).update(key_of(pod)[1] for pod in pods)
    return {owner: tuple(sorted(names)) for owner, names in found.items()}


def quotas(view: MirrorView, skipped: Skipped = _ignore) -> tuple[QuotaLimit, ...]:
    """Return what ResourceQuotas limit."""
    found = itertools.chain.from_iterable(_each(view.resource_quotas, quota_limits, skipped))
    return tuple(sorted(found))


def recorded_back_offs(view: MirrorView, skipped: Skipped = _ignore) -> dict[str, tuple[BackOff, ...]]:
    """Return the shapes in back-off that each status records, by UID."""
    found = _each(view.llm_deployments, lambda obj: (uid_of(obj), back_offs_from_status(obj)), skipped)
    return {uid: back_offs for uid, back_offs in found if back_offs}


def claims(view: MirrorView, skipped: Skipped = _ignore) -> tuple[Claim, ...]:
    """Return who holds which NVIDIA resources on which node; our own pods by the LLMDeployment they serve."""
    known = view.owners()
    owners = {
        key_of(pod): _owner_uid(deployment)
        for deployment, pods in _with_pods(view)
        for pod in pods
        if _ours(deployment, known)
    }

    def of_pod(pod: Object) -> list[Claim]:
        if not pod["nodeName"] or pod["phase"] in ("Succeeded", "Failed"):
            return []
        owner, leaves_at = owners.get(key_of(pod)), _leaves_at(pod)
        held = ((resource, _count(count)) for resource, count in pod["requests"].items())
        return [Claim(pod["nodeName"], resource, count, owner, leaves_at) for resource, count in held]

    found = itertools.chain.from_iterable(_each(view.pods, of_pod, skipped))
    return tuple(
        sorted(found, key=lambda c: (c.node, c.resource, c.owner_uid or "", c.count, c.leaves_at or 0.0))
    )


def _leaves_at(pod: Object) -> float | None:
    """Return by when a terminating pod is to be gone: the API server adds its grace to the timestamp."""
    timestamp = pod["metadata"].get("deletionTimestamp")
    return epoch(timestamp, 0.0) if timestamp else None


def _unscheduled(pods: list[Object]) -> Unscheduled | None:
    """Return the pods that the scheduler finds no node for."""
    found = [
        (
            epoch(condition.get("since") or pod["metadata"].get("creationTimestamp"), 0.0),
            str(condition["message"]),
        )
        for pod in pods
        for condition in pod["conditions"]
        if (condition["type"], condition["status"]) == ("PodScheduled", "False")
        and condition["reason"] == "Unschedulable"
        and not pod["metadata"].get("deletionTimestamp")
        and pod["phase"] == "Pending"
    ]
    if not found:
        return None
    since, message = min(found)
    return Unscheduled(len(found), since, message) if since else None


def workload(obj: Object, pods: list[Object], now: float) -> Workload:
    """Return one of our Deployments."""
    status = obj.get("status") or {}
    meta = obj["metadata"]
    products, declared = steered_to(obj["spec"].get("template") or {})
    return Workload(
        uid=uid_of(obj),
        name=meta["name"],
        namespace=meta["namespace"],
        owner_uid=_owner_uid(obj),
        shape=shape_of(obj),
        replicas=_count(obj["spec"].get("replicas", 1)),
        ready=_count(status.get("readyReplicas", 0)),
        available=_count(status.get("availableReplicas", 0)),
        updated=_count(status.get("updatedReplicas", 0)),
        settled=_whole(status.get("observedGeneration", 0)) >= _whole(meta.get("generation", 1)),
        total=_count(status.get("replicas", 0)),
        owner_generation=generation_of(obj),
        in_place=_rolls_in_place(obj),
        message=waiting_message(obj, pods, late_at(now)),
        unscheduled=_unscheduled(pods),
        refused=refusal(obj),
        products=products,
        declared=declared,
        priority_class_name=class_of(obj),
    )


def _count(value: object) -> int:
    """Return a number of replicas. Raises ValueError for what the API server would not store."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ValueError(f"{str(value)[:40]!r} is no number of replicas")
    return value


def _rolls_in_place(deployment: Object) -> bool:
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return str(rolling.get("maxSurge")) in ("0", "0%")


def inspections(view: MirrorView, now: float) -> tuple[Inspection, ...]:
    """Return the inspect Jobs. A Job that does not carry the name of its own key is not one of ours."""
    return tuple(each for each in _jobs(view, now, _ignore) if isinstance(each, Inspection))


def evaluations(view: MirrorView, now: float) -> tuple[Evaluation, ...]:
    """Return the evaluate Jobs, by the same rule."""
    return tuple(each for each in _jobs(view, now, _ignore) if isinstance(each, Evaluation))


def _jobs(view: MirrorView, now: float, skipped: Skipped) -> tuple[Inspection | Evaluation, ...]:
    owners = view.owners()
    pods_by_job: dict[Identity, list[Object]] = {}
    for pod in view.pods:
        ref = controller_of(pod)
        if ref is not None and is_controlled_by(pod, kinds.JOBS):
            job = Identity(key_of(pod)[0], str(ref.get("name")), str(ref.get("uid")))
            pods_by_job.setdefault(job, []).append(pod)

    def of_job(obj: Object) -> list[Inspection | Evaluation]:
        if not _ours(obj, owners):
            return []
        name, pods, about = key_of(obj)[1], pods_by_job.get(identity_of(obj), []), evaluation_about(obj)
        if about is not None:
            return [evaluation(obj, about, pods, now)] if name == evaluate_job_name(about[0]) else []
        ours = name == job_name(facts_key(obj)) and only_inspects(obj)
        return [inspection(obj, pods, now)] if ours else []

    found = itertools.chain.from_iterable(_each(view.jobs, of_job, skipped))
    return tuple(sorted(found, key=lambda job: (job.key.namespace, job.job_name)))


def _facts(view: MirrorView, skipped: Skipped) -> tuple[tuple[FactsKey, CheckpointFacts], ...]:
    """Return the facts recorded in statuses, once per checkpoint."""
    recorded = _each(sorted(view.llm_deployments, key=key_of), facts_from_status, skipped)
    return tuple(sorted(dict(pair for pair in recorded if pair is not None).items()))


def _reports(view: MirrorView, skipped: Skipped) -> tuple[tuple[EvaluationKey, EvaluationReport], ...]:
    """Return the reports recorded in statuses, once per key."""
    recorded = _each(sorted(view.llm_deployments, key=key_of), evaluations_from_status, skipped)
    return tuple(sorted(dict(itertools.chain.from_iterable(recorded)).items(), key=lambda pair: pair[0]))


def _ours(obj: Object, owners: Collection[Identity]) -> bool:
    """Say whether an object is a child of an LLMDeployment that there is, and stays.

    Kubernetes hands an object to what its controller reference names, so a person who may write Deployments
    in a namespace can hand one to an LLMDeployment there. It is taken only under the name that the operator
    would give it; under any other it is neither counted nor scaled nor deleted.
    """
    if owner_of(obj) not in owners or obj["metadata"].get("deletionTimestamp"):
        return False
    return has_its_name(obj)


def _owner_uid(child: Object) -> str:
    owner = owner_of(child)
    return owner.uid if owner else ""


def _pods_by_deployment(view: MirrorView) -> dict[Key, list[Object]]:
    return {key_of(deployment): pods for deployment, pods in _with_pods(view)}


def _with_pods(view: MirrorView) -> Iterable[tuple[Object, list[Object]]]:
    """Pair Deployments with their pods through the ReplicaSet's name, which is `<deployment>-<template
    hash>`, within the namespace. Labels alone make no pod ours.
    """
    pods: dict[Key, list[Object]] = {}
    for pod in view.pods:
        ref = controller_of(pod)
        template = labels_of(pod).get(kinds.TEMPLATE_LABEL, "")
        if ref is None or not is_controlled_by(pod, kinds.REPLICA_SETS) or not template:
            continue
        name = str(ref.get("name", "")).removesuffix(f"-{template}")
        pods.setdefault((key_of(pod)[0], name), []).append(pod)
    return [(deployment, pods.get(key_of(deployment), [])) for deployment in view.deployments]
