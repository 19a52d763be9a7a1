"""The fleet as the operator sees it, as the input of a joint plan.

Nothing in it ends a plan: what cannot be understood is left out, and the notes say so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
from tangram.eligibility.acceptance import acceptance, by_age
from tangram.eligibility.host_resources import minimum_share
from tangram.eligibility.reasons import OFF
from tangram.eligibility.shapes.bundled_engine import on_this_engine
from tangram.eligibility.shapes.evaluation_reports import Verdicts, format_verdicts, reports
from tangram.eligibility.shapes.serving_requirements import ServingRequirements, from_intent, identity
from tangram.fleet import (
    CheckpointFacts,
    FactsKey,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Pool,
    Shape,
    ShapeKey,
    Workload,
    describe,
)
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms
from tangram.recommendation.documents.pools import claiming_pools, growable_pool
from tangram.recommendation.observed.observed_gpus import ObservedGPUs, observed_gpus

Everyone = Iterable[ParsedIntent]


def snapshot_input(
    snapshot: FleetSnapshot, intents: Everyone, models: Mapping[str, Architecture] | None = None
) -> FleetInput:
    """Return what a plan of the observed fleet is made from. The order of observing does not matter.

    `told`: models by the uid of their LLMDeployment, where somebody says what nobody has inspected.
    """
    ordered = by_age(intents)
    deployments, unplanned_uids, exclusion_notes = _deployments(snapshot, ordered, models or {})
    names = {intent.uid: identity(intent.namespace, intent.name) for intent in ordered}
    fleet = observed_gpus(snapshot, names, unplanned_uids)
    pools, conflicts = _pools(snapshot, fleet)
    return FleetInput(
        gpus=fleet.gpus,
        deployments=deployments,
        pools=pools,
        pods_told=True,
        terms=PlanTerms(prices=tuple(sorted(snapshot.prices)), reachable=True),
        inferred=frozenset(gpu.id for gpu in fleet.gpus),
        notes=(*fleet.notes, *conflicts, *exclusion_notes),
    )


def _pools(snapshot: FleetSnapshot, fleet: ObservedGPUs) -> tuple[tuple[Pool, ...], list[str]]:
    """Return the pools; those of which nobody knows what new nodes are do not grow."""
    pools, notes = [], []
    for pool in sorted(snapshot.pools):
        unplanned_nodes = sum(
            claiming_pools(node, snapshot.pools)[:1] == [pool.name] for node in snapshot.nodes
        ) - fleet.nodes_of(pool.name)
        planned_pool = (
            pool
            if pool.max_nodes is None
            else replace(pool, max_nodes=max(0, pool.max_nodes - unplanned_nodes))
        )
        try:
            growable_pool(planned_pool, fleet.gpus, dict(snapshot.prices))
        except InputError as error:
            notes.append(f"{error.field} {error.problem}: it is planned without growth")
            planned_pool = replace(planned_pool, max_nodes=None)
        pools.append(planned_pool)
    return tuple(pools), notes


def _deployments(
    snapshot: FleetSnapshot, ordered: tuple[ParsedIntent, ...], models: Mapping[str, Architecture]
) -> tuple[tuple[ServingRequirements, ...], frozenset[str], list[str]]:
    """Return who is planned, and the uids of those who are not and keep what they have, with the reasons."""
    verdicts = acceptance(ordered, snapshot.pod_needs)
    facts, desired, evaluation_reports = dict(snapshot.facts), dict(snapshot.desired), reports(snapshot)
    desired_shapes = dict(snapshot.desired_of)
    faulted = {fault.owner_uid: fault.error for fault in snapshot.faults}
    workloads: dict[str, list[Workload]] = {}
    for workload in snapshot.workloads:
        workloads.setdefault(workload.owner_uid, []).append(workload)
    deployments, unplanned_uids, notes = [], set(), []
    for intent in ordered:
        accepted, _, reason = verdicts[intent.uid]
        if accepted and isinstance(intent, Intent):
            uid, inspected = (
                intent.uid,
                facts.get(FactsKey(intent.namespace, intent.model_uri, snapshot.engine_image)),
            )
            own_workloads = workloads.get(uid, [])
            present = _present(intent, own_workloads, desired.get(uid), desired_shapes.get(uid))
            wanted: ServingRequirements | str
            if uid in faulted:
                wanted = faulted[uid]
            elif intent.is_off and not intent.paused:  # its pods end by themselves
                wanted = OFF
            else:
                judged = format_verdicts(intent, inspected, evaluation_reports) if inspected else ()
                wanted = _wanted(intent, models.get(uid), inspected, judged)
            if isinstance(wanted, ServingRequirements):
                pools = (*wanted.pools, *_inside(wanted.pools, snapshot))
                share = minimum_share(intent.resources, snapshot.pod_needs)
                wanted = replace(wanted, present=present, formats_running=_formats(own_workloads))
                deployments.append(replace(wanted, pools=pools, minimum_share=share))
                continue
            reason = wanted
        unplanned_uids.add(intent.uid)
        notes.append(f"{identity(intent.namespace, intent.name)} is not planned: {reason}")
    return tuple(sorted(deployments, key=lambda wanted: wanted.id)), frozenset(unplanned_uids), notes


def _inside(named: tuple[str, ...], snapshot: FleetSnapshot) -> list[str]:
    """Return the pools all of whose nodes belong to `named` ones, too.

    A GPU belongs to the first of the pools that claim it, but pods may run on every node of a pool they name.
    """
    claims = [claiming_pools(node, snapshot.pools) for node in snapshot.nodes] if named else []
    return [
        pool.name
        for pool in sorted(snapshot.pools)
        if pool.name not in named
        and pool.max_nodes is None  # nobody knows who will claim new nodes
        and (nodes_of_pool := [names for names in claims if names[:1] == [pool.name]])
        and all(set(names) & set(named) for names in nodes_of_pool)
    ]


def _wanted(
    intent: Intent, told: Architecture | None, inspected: CheckpointFacts | None, verdicts: Verdicts
) -> ServingRequirements | str:
    """Return what is wanted, or why nobody can say."""
    try:
        model = told or (architecture_from_facts(inspected) if inspected else None)
        if model is None:
            return "its checkpoint has not been inspected"
        requirements = on_this_engine(from_intent(intent, model), intent, verdicts)
        requirements.request.model_length(model)
    except InputError as error:
        return f"{error.field} {error.problem}"
    except Exception as error:  # noqa: BLE001 - a bug of ours, of this LLMDeployment alone
        return f"it could not be judged ({describe(error)}); please report this"
    return replace(requirements, uniform=True)


def _present(
    intent: Intent, workloads: list[Workload], desired: int | None, desired_shape: Shape | None
) -> tuple[ShapeKey, int] | None:
    """Return the shape of which replicas are wanted, and how many: where nobody says which, the one that it
    runs on, of several the one that serves most.
    """
    if not workloads:
        return None
    best = min(workloads, key=lambda w: (-w.available, -w.replicas, w.shape, w.name, w.uid))
    replicas = max(each.replicas for each in workloads) if desired is None else desired
    count = min(max(replicas, intent.min_replicas), intent.max_replicas)
    shape = best.shape if desired_shape is None else desired_shape
    return shape.key, count


def _formats(workloads: list[Workload]) -> tuple[tuple[ShapeKey, str], ...]:
    """Return the format in which replicas run on each shape: of several, that of the most available ones."""
    formats = {}
    for workload in sorted(workloads, key=lambda w: (w.available, w.replicas, w.shape, w.name, w.uid)):
        if workload.replicas:
            formats[workload.shape.key] = workload.shape.precision
    return tuple(sorted(formats.items()))
