"""Build the `FleetSnapshot` of a planning round from the mirrored objects, in a fixed order. Pure."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from tangram.api import parse_quota, pool_in_force, runtime_in_force
from tangram.eligibility.devices.device_rules import NodeFacts, device_count, is_gpu
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.eligibility.devices.tolerations import Toleration
from tangram.fleet import (
    EngineRuntime,
    Evaluation,
    FleetSnapshot,
    Inspection,
    InvalidEngineRuntime,
    InvalidPool,
    Node,
    NodePartition,
    PartitionView,
    Pool,
    QuotaLimit,
    declared_skus,
)
from tangram.kube.kinds import SPOT_LABELS, Object, key_of, labels_of
from tangram.shell.settings import Settings
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped, living
from tangram.shell.snapshot.intents import parsed_priority_classes
from tangram.shell.snapshot.jobs import fleet_jobs
from tangram.shell.snapshot.model_claims import model_claims
from tangram.shell.snapshot.node_partitions import node_partitions, with_backends_of_pools
from tangram.shell.snapshot.ownership import is_owned
from tangram.shell.snapshot.promised_slices import promised_slices
from tangram.shell.snapshot.recorded_status import recorded_facts, recorded_pins, recorded_reports
from tangram.shell.snapshot.workloads import claims, workloads
from tangram.shell.watch.mirror_view import MirrorView


def fleet_snapshot(
    view: MirrorView, settings: Settings, now: float, on_skipped: SkipHandler = ignore_skipped
) -> FleetSnapshot:
    """Return the observed fleet. An object that cannot be read is left out and passed to `on_skipped`."""
    valid_pools, invalid_pools = _pools(view, on_skipped)
    if not settings.models.volume_claims:
        valid_pools = tuple(replace(pool, model_storage_class="") for pool in valid_pools)
    runtimes, invalid_runtimes = _runtimes(view, on_skipped)
    owners, jobs = view.owners(), fleet_jobs(view, now, on_skipped)
    held = claims(view, on_skipped)
    partitions = node_partitions(view, held, on_skipped)
    nodes = _nodes(view, settings, valid_pools, partitions, on_skipped)
    partitions = with_backends_of_pools(partitions, nodes, valid_pools)
    deployments = workloads(view, now, on_skipped)
    mounted = frozenset((each.namespace, each.model_claim) for each in deployments if each.model_claim)
    return FleetSnapshot(
        nodes=nodes,
        claims=held,
        workloads=deployments,
        facts=recorded_facts(view, on_skipped),
        pins=recorded_pins(view, on_skipped),
        inspections=tuple(job for job in jobs if isinstance(job, Inspection)),
        model_claims=model_claims(view, mounted, now, on_skipped),
        reports=recorded_reports(view, on_skipped),
        evaluations=tuple(job for job in jobs if isinstance(job, Evaluation)),
        services=tuple(sorted(key_of(obj) for obj in view.services if is_owned(obj, owners))),
        pools=valid_pools,
        invalid_pools=invalid_pools,
        partition=PartitionView(partitions, promised=promised_slices(view, on_skipped)),
        quotas=quotas(view, on_skipped),
        pod_needs=settings.pod_needs,
        priority_classes=parsed_priority_classes(view, on_skipped),
        default_priority_class=settings.default_priority_class_name,
        engine_image=settings.engine_image,
        runtimes=runtimes,
        invalid_runtimes=invalid_runtimes,
        prices=tuple(sorted(settings.prices.items())),
    )


def _nodes(
    view: MirrorView,
    settings: Settings,
    pools: tuple[Pool, ...],
    partitions: tuple[NodePartition, ...],
    on_skipped: SkipHandler,
) -> tuple[Node, ...]:
    known = {partition.node: partition for partition in partitions}

    def node_of(obj: Object) -> Node:
        return node(obj, settings.engine.tolerations, pools, known.get(key_of(obj)[1]))

    return tuple(sorted(convert_each(view.nodes, node_of, on_skipped), key=lambda node: node.name))


def node(
    obj: Object,
    tolerations: tuple[Toleration, ...],
    pools: tuple[Pool, ...] = (),
    partition: NodePartition | None = None,
) -> Node:
    """Return a node with its GPU model and the devices that engines may use. Engines have `tolerations`
    beside their usual ones.

    Of the labels only those are kept by which one of `pools` selects.
    """
    facts = NodeFacts(
        name=obj["metadata"]["name"],
        labels=labels_of(obj),
        allocatable=obj["allocatable"] | obj["host"],
        capacity=_existing(obj.get("capacity") or {}, partition),
        taints=tuple(obj["taints"]),
        unschedulable=obj["unschedulable"],
        ready=obj["ready"],
        declared=declared_skus(labels_of(obj), pools),
    )
    selected = {key for pool in pools for key, _ in pool.selector}
    spot = any(facts.label(key).lower() == value for key, value in SPOT_LABELS)
    return replace(gpu_node(facts, tolerations, selected), spot=spot)


def _existing(capacity: Mapping[str, object], partition: NodePartition | None) -> dict[str, object]:
    """Return the capacity without devices that no GPU of the node has.

    The kubelet keeps devices of a former layout in the capacity for five minutes
    (kubernetes/pkg/kubelet/cm/devicemanager/endpoint.go, endpointStopGracePeriod). They are not unhealthy.
    """
    existing = partition.devices if partition is not None else None
    if existing is None:
        return dict(capacity)
    return {
        resource: count
        if not is_gpu(resource) or (devices := device_count(count)) is None
        else min(devices, existing[resource])
        for resource, count in capacity.items()
    }


def _pools(view: MirrorView, on_skipped: SkipHandler) -> tuple[tuple[Pool, ...], tuple[InvalidPool, ...]]:
    """Return the valid and the invalid GPUPools, each by name."""
    parsed = list(convert_each(sorted(living(view.gpu_pools), key=key_of), pool_in_force, on_skipped))
    return (
        tuple(pool for pool in parsed if isinstance(pool, Pool)),
        tuple(pool for pool in parsed if isinstance(pool, InvalidPool)),
    )


def _runtimes(
    view: MirrorView, on_skipped: SkipHandler
) -> tuple[tuple[EngineRuntime, ...], tuple[InvalidEngineRuntime, ...]]:
    """Return the valid and the invalid EngineRuntimes, each by name."""
    parsed = list(
        convert_each(sorted(living(view.engine_runtimes), key=key_of), runtime_in_force, on_skipped)
    )
    return (
        tuple(runtime for runtime in parsed if isinstance(runtime, EngineRuntime)),
        tuple(runtime for runtime in parsed if isinstance(runtime, InvalidEngineRuntime)),
    )


def quotas(view: MirrorView, on_skipped: SkipHandler = ignore_skipped) -> tuple[QuotaLimit, ...]:
    """Return the limits of ResourceQuotas."""
    limits = itertools.chain.from_iterable(convert_each(view.resource_quotas, parse_quota, on_skipped))
    return tuple(sorted(limits))
