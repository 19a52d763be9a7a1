"""A snapshot of the operator as the input of a plan.

It never raises: nodes and LLMDeployments that cannot be read are left out, with a note about each.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
from tangram.eligibility.acceptance import acceptance, by_age
from tangram.eligibility.reasons import OFF
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports, reports, reports_by_checkpoint
from tangram.eligibility.shapes.serving_requirements import ServingRequirements, identity, requirements_of
from tangram.fleet import (
    CheckpointFacts,
    FactsKey,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    PodNeeds,
    Pool,
    Shape,
    ShapeKey,
    Workload,
    claiming_pools,
    describe,
)
from tangram.packing import GPUState
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms
from tangram.recommendation.documents.pools import growable_pool
from tangram.recommendation.observed.gpus_in_use import gpus_in_use_on_left_out_nodes
from tangram.recommendation.observed.observed_gpus import observed_gpus


def snapshot_input(
    snapshot: FleetSnapshot, intents: Iterable[ParsedIntent], models: Mapping[str, Architecture] | None = None
) -> FleetInput:
    """Return the input of a plan of the observed fleet, whatever the order of the snapshot's tuples.

    `models`: by the uid of their LLMDeployment, for checkpoints that have not been inspected.
    """
    ordered = by_age(intents)
    deployments, unplanned, notes = _deployments(snapshot, ordered, models or {})
    names = {intent.uid: identity(intent.namespace, intent.name) for intent in ordered}
    gpus, left_out = observed_gpus(snapshot, names, unplanned)
    pools, conflicts = _pools(snapshot, gpus)
    desired = {d.id: d.present[1] for d in deployments if d.present is not None}
    in_use, uncounted = gpus_in_use_on_left_out_nodes(snapshot, names, {gpu.node for gpu in gpus}, desired)
    planned = {gpu.id for gpu in gpus}  # two nodes may report one id: a copied disk, or a GPU that moved
    held = tuple({gpu.id: gpu for gpu in in_use if gpu.id not in planned}.values())
    partitioned = {gpu.id for node in snapshot.partition.nodes for gpu in node.gpus}
    return FleetInput(
        gpus=tuple(sorted((*gpus, *held), key=lambda gpu: gpu.id)),
        left_out=frozenset(gpu.id for gpu in held),
        deployments=deployments,
        pools=pools,
        pods_listed=True,
        terms=PlanTerms(prices=tuple(sorted(snapshot.prices)), reachable=True),
        inferred=frozenset(gpu.id for gpu in (*gpus, *held) if gpu.id not in partitioned),
        notes=(*left_out, *uncounted, *conflicts, *notes),
    )


def _pools(snapshot: FleetSnapshot, gpus: tuple[GPUState, ...]) -> tuple[tuple[Pool, ...], list[str]]:
    """Return the pools, without growth where the GPU model or price of new nodes is not known, and notes."""
    pools, notes = [], []
    for pool in sorted(replace(pool, refused_edit="") for pool in snapshot.pools):
        if pool.max_nodes is not None:  # nodes whose GPUs are left out count, too
            nodes = sum(claiming_pools(node, snapshot.pools)[:1] == (pool.name,) for node in snapshot.nodes)
            left_out = nodes - len({gpu.node for gpu in gpus if gpu.pool == pool.name})
            pool = replace(pool, max_nodes=max(0, pool.max_nodes - left_out))  # noqa: PLW2901
        try:
            growable_pool(pool, gpus, dict(snapshot.prices))
        except InputError as error:
            notes.append(f"{error.field} {error.problem}: it is planned without growth")
            pool = replace(pool, max_nodes=None)  # noqa: PLW2901
        pools.append(pool)
    return tuple(pools), notes


def _deployments(
    snapshot: FleetSnapshot, ordered: tuple[ParsedIntent, ...], models: Mapping[str, Architecture]
) -> tuple[tuple[ServingRequirements, ...], frozenset[str], list[str]]:
    """Return the planned LLMDeployments, the uids of the others, and a note with the reason of each."""
    verdicts = acceptance(ordered, snapshot.pod_needs)
    facts, desired, desired_shapes = snapshot.known_facts, dict(snapshot.desired), dict(snapshot.desired_of)
    evaluation_reports = reports_by_checkpoint(reports(snapshot))
    loads = dict(snapshot.provisioned)
    faulted = {fault.owner_uid: fault.error for fault in snapshot.faults}
    workloads = defaultdict[str, list[Workload]](list)
    for workload in snapshot.workloads:
        workloads[workload.owner_uid].append(workload)
    deployments, unplanned, notes = [], set(), []
    for intent in ordered:
        accepted, _, reason, _ = verdicts[intent.uid]
        if accepted and isinstance(intent, Intent):
            uid = intent.uid
            inspected = facts.get(FactsKey(intent.namespace, intent.model_uri, snapshot.engine_image))
            model, needs = models.get(uid), snapshot.pod_needs
            planned: ServingRequirements | str
            if uid in faulted:
                planned = faulted[uid]
            elif intent.is_off and not intent.paused:  # its pods end by themselves
                planned = OFF
            else:
                planned = _requirements(intent, model, inspected, evaluation_reports, needs)
            if isinstance(planned, ServingRequirements):
                present = _desired_replicas(intent, workloads[uid], desired.get(uid), desired_shapes.get(uid))
                pools = (*planned.pools, *_contained_pools(planned.pools, snapshot))
                formats = _running_formats(workloads[uid])
                planned = replace(planned, pools=pools, present=present, formats_running=formats)
                deployments.append(replace(planned, load=loads.get(uid)))
                continue
            reason = planned
        unplanned.add(intent.uid)
        notes.append(f"{identity(intent.namespace, intent.name)} is not planned: {reason}")
    return tuple(sorted(deployments, key=lambda deployment: deployment.id)), frozenset(unplanned), notes


def _contained_pools(named: tuple[str, ...], snapshot: FleetSnapshot) -> list[str]:
    """Return the pools whose nodes all belong to a pool of `named`, too.

    A node's GPUs belong to the first of the pools that select it, but pods may run on every node of a pool
    that spec.placement names.
    """
    claims = [claiming_pools(node, snapshot.pools) for node in snapshot.nodes] if named else []
    return [
        pool.name
        for pool in sorted(snapshot.pools)
        if pool.name not in named
        and pool.max_nodes is None  # the pools that select new nodes are not known
        and (nodes_of_pool := [names for names in claims if names[:1] == (pool.name,)])
        and all(set(names) & set(named) for names in nodes_of_pool)
    ]


def _requirements(
    intent: Intent,
    model: Architecture | None,
    inspected: CheckpointFacts | None,
    evaluation_reports: CheckpointReports,
    needs: PodNeeds,
) -> ServingRequirements | str:
    """Return the requirements, or why they are not known. `model`: from the command line, if any."""
    try:
        architecture = model or (architecture_from_facts(inspected) if inspected else None)
        if architecture is None:
            return "its checkpoint has not been inspected"
        digest = inspected.digest if inspected else ""
        about = evaluation_reports.get((intent.namespace, intent.model_uri, digest), ())
        requirements = on_bundled_engine(requirements_of(intent, architecture), about, needs)
        requirements.request.model_length(architecture)
    except InputError as error:
        return f"{error.field} {error.problem}"
    except Exception as error:  # noqa: BLE001 - a bug of ours, of this LLMDeployment alone
        return f"its requirements could not be read ({describe(error)}); please report this"
    return requirements


def _desired_replicas(
    intent: Intent, workloads: list[Workload], desired: int | None, desired_shape: Shape | None
) -> tuple[ShapeKey, int] | None:
    """Return the desired shape and number of replicas; None: none runs.

    Without a desired shape it is the shape of the workload with the most available replicas.
    """
    if not workloads:
        return None
    best = min(workloads, key=lambda w: (-w.available, -w.replicas, w.shape, w.name, w.uid))
    replicas = max(workload.replicas for workload in workloads) if desired is None else desired
    count = min(max(replicas, intent.min_replicas), intent.max_replicas)
    shape = best.shape if desired_shape is None else desired_shape
    return shape.key, count


def _running_formats(workloads: list[Workload]) -> tuple[tuple[ShapeKey, str], ...]:
    """Return the format of the replicas on each shape, by shape; of several that with the most available."""
    formats = {}
    for workload in sorted(workloads, key=lambda w: (w.available, w.replicas, w.shape, w.name, w.uid)):
        if workload.replicas:
            formats[workload.shape.key] = workload.shape.precision
    return tuple(sorted(formats.items()))
