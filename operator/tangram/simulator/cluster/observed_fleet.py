"""The simulated cluster as the planner reads it: one `FleetSnapshot`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tangram.fleet import (
    BackOff,
    CheckpointFacts,
    Claim,
    FactsKey,
    FleetSnapshot,
    Pool,
    ProvisionedLoad,
    QuotaLimit,
    Shape,
    Unscheduled,
    Workload,
)
from tangram.simulator.cluster.cluster import SimulatedCluster
from tangram.simulator.cluster.deployment_state import DeploymentState
from tangram.simulator.cluster.simulated_pod import PodPhase

START_OF_TRACE = 1_800_000_000.0  # epoch seconds of instant 0
ENGINE_IMAGE = "simulated"


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """The replicas that a scaling law desires of one LLMDeployment, as plans count them."""

    replicas: int
    shape: Shape | None = None  # that `replicas` counts; None: the one that it runs on
    load: ProvisionedLoad | None = None  # by which replicas of other shapes are counted; None: not known


def observed_fleet(
    cluster: SimulatedCluster,
    facts: Mapping[str, CheckpointFacts],
    desired: Mapping[str, DesiredReplicas],
    back_offs: Iterable[BackOff],
    prices: Mapping[str, float],
    at: float,
    pools: tuple[Pool, ...] = (),
) -> FleetSnapshot:
    """Return the snapshot at an instant. `facts` and `desired` are by the uid of an LLMDeployment."""
    intents = cluster.intents.values()
    known = {
        FactsKey(intent.namespace, intent.model_uri, ENGINE_IMAGE): facts[intent.uid] for intent in intents
    }
    return FleetSnapshot(
        nodes=cluster.supply.observed_nodes,
        claims=(*cluster.supply.foreign_claims, *_claims(cluster)),
        workloads=tuple(_workload(d) for d in cluster.deployments.values() if not d.removed),
        facts=tuple(sorted(known.items(), key=lambda item: item[0])),
        services=tuple(sorted((intent.namespace, intent.name) for intent in intents)),
        desired=tuple(sorted((uid, d.replicas) for uid, d in desired.items())),
        desired_of=tuple(sorted((uid, d.shape) for uid, d in desired.items() if d.shape is not None)),
        provisioned=tuple((uid, d.load) for uid, d in sorted(desired.items()) if d.load is not None),
        quotas=_quotas(cluster, at),
        back_offs=tuple(sorted(back_offs)),
        engine_image=ENGINE_IMAGE,
        prices=tuple(sorted(prices.items())),
        pools=pools,
    )


def observed_workloads(cluster: SimulatedCluster, owner_uid: str) -> tuple[Workload, ...]:
    """Return the Deployments of an LLMDeployment as the API server shows them."""
    return tuple(
        _workload(deployment) for deployment in cluster.of_owner(owner_uid) if not deployment.removed
    )


def _claims(cluster: SimulatedCluster) -> Iterable[Claim]:
    for deployment in cluster.deployments.values():
        grace_s = deployment.owner.termination_grace_s
        for pod in deployment.pods:
            if pod.holds_devices:
                draining = pod.phase is PodPhase.DRAINING
                leaves_at = START_OF_TRACE + pod.draining_at + grace_s if draining else None
                shape = pod.shape
                yield Claim(pod.node, shape.resource, shape.gpus, pod.owner_uid, leaves_at, pod.name)


def _workload(deployment: DeploymentState) -> Workload:
    counted, owner = len(deployment.counted), deployment.owner
    since = [pod.unscheduled_since for pod in deployment.pods if pod.unscheduled_since is not None]
    unscheduled = None
    if since:
        message = f"0 nodes are available: Insufficient {deployment.shape.resource}."
        unscheduled = Unscheduled(len(since), START_OF_TRACE + min(since), message)
    return Workload(
        uid=deployment.uid,
        name=deployment.name,
        namespace=owner.namespace,
        owner_uid=owner.uid,
        shape=deployment.shape,
        replicas=deployment.replicas,
        ready=deployment.ready,
        available=deployment.ready,
        updated=counted,
        settled=True,
        total=counted,
        owner_generation=owner.rendered_generation,
        unscheduled=unscheduled,
        products=deployment.products,
        declared=deployment.declared,
        refused=deployment.refused,
    )


def _quotas(cluster: SimulatedCluster, at: float) -> tuple[QuotaLimit, ...]:
    limits = []
    for namespace in sorted({intent.namespace for intent in cluster.intents.values()}):
        most = cluster.faults.pod_quota(namespace, at)
        if most is not None:
            used = float(cluster.pods_in(namespace))
            limits.append(QuotaLimit(namespace, "simulated", "pods", float(most), used))
    return tuple(limits)
