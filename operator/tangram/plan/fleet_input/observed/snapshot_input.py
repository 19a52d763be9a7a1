"""A snapshot of the operator as the input of a plan.

It never raises: nodes and LLMDeployments that cannot be read are left out, with a note about each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing.candidate_shapes import candidate_shapes, catalog_devices
from tangram.catalog import Architecture, InputError
from tangram.eligibility.acceptance import acceptance, by_age
from tangram.eligibility.reasons import OFF
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports, reports, reports_by_checkpoint
from tangram.eligibility.shapes.runtimes import checkpoint_context, usual_runtime
from tangram.eligibility.shapes.serving_requirements import ServingRequirements, identity
from tangram.eligibility.shapes.serving_shapes import AssessedShapes, assessed_shapes
from tangram.fleet import (
    CheckpointFacts,
    FactsKey,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Pool,
    ShapeKey,
    Workload,
    describe,
)
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents.fleet_input import FleetInput, PlanTerms
from tangram.plan.fleet_input.documents.pools import growable_pool
from tangram.plan.fleet_input.fleet import Fleet, read_fleet
from tangram.plan.fleet_input.observed.gpus_in_use import gpus_in_use_on_left_out_nodes
from tangram.plan.fleet_input.observed.observed_gpus import observed_gpus


def snapshot_input(
    snapshot: FleetSnapshot, intents: Iterable[ParsedIntent], models: Mapping[str, Architecture] | None = None
) -> FleetInput:
    """Return the input of a plan of the observed fleet, whatever the order of the snapshot's tuples.

    `models`: by the uid of their LLMDeployment, for checkpoints that have not been inspected.
    """
    ordered = by_age(intents)
    fleet = read_fleet(snapshot)
    deployments, unplanned, notes = _deployments(fleet, ordered, models or {})
    names = {intent.uid: identity(intent.namespace, intent.name) for intent in ordered}
    planned_gpus, device_notes = observed_gpus(fleet, names, unplanned)
    pools, pool_notes = _pools(fleet, planned_gpus)
    left_out, uncounted_notes = _left_out_gpus(fleet, names, planned_gpus, deployments)
    gpus = sorted((*planned_gpus, *left_out), key=lambda gpu: gpu.id)
    return FleetInput(
        gpus=tuple(gpus),
        left_out=frozenset(gpu.id for gpu in left_out),
        deployments=deployments,
        pools=pools,
        pods_listed=True,
        terms=PlanTerms(prices=tuple(sorted(snapshot.prices)), reachable=True),
        inferred=frozenset(gpu.id for gpu in gpus) - _partitioned_ids(snapshot),
        notes=(*device_notes, *uncounted_notes, *pool_notes, *notes),
    )


def _left_out_gpus(
    fleet: Fleet,
    names: Mapping[str, str],
    planned_gpus: tuple[GPUState, ...],
    deployments: Iterable[ServingRequirements],
) -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return the GPUs beside the planned ones on which LLMDeployments run, and notes.

    Two nodes may report one id: a copied disk, or a GPU that moved. It is counted once.
    """
    nodes, ids = {gpu.node for gpu in planned_gpus}, {gpu.id for gpu in planned_gpus}
    replicas = {d.id: d.present[1] for d in deployments if d.present is not None}
    gpus, notes = gpus_in_use_on_left_out_nodes(fleet, names, nodes, replicas)
    return tuple({gpu.id: gpu for gpu in gpus if gpu.id not in ids}.values()), notes


def _partitioned_ids(snapshot: FleetSnapshot) -> set[str]:
    """Return the ids of the GPUs that partition backends observe."""
    return {gpu.id for node in snapshot.partition.nodes for gpu in node.gpus}


def _pools(fleet: Fleet, gpus: tuple[GPUState, ...]) -> tuple[tuple[Pool, ...], list[str]]:
    """Return the pools, without growth where the GPU model or price of new nodes is not known, and notes."""
    pools, notes = [], []
    for pool in sorted(replace(pool, refused_edit="") for pool in fleet.pools.values()):
        if pool.max_nodes is not None:  # nodes whose GPUs are left out count, too
            nodes = sum(place.pool == pool.name for place in fleet.nodes)
            left_out = nodes - len({gpu.node for gpu in gpus if gpu.pool == pool.name})
            pool = replace(pool, max_nodes=max(0, pool.max_nodes - left_out))  # noqa: PLW2901
        try:
            growable_pool(pool, gpus, fleet.prices)
        except InputError as error:
            notes.append(f"{error.field} {error.problem}: it is planned without growth")
            pool = replace(pool, max_nodes=None)  # noqa: PLW2901
        pools.append(pool)
    return tuple(pools), notes


def _deployments(
    fleet: Fleet, ordered: tuple[ParsedIntent, ...], models: Mapping[str, Architecture]
) -> tuple[tuple[ServingRequirements, ...], frozenset[str], list[str]]:
    """Return the planned LLMDeployments, the uids of the others, and a note with the reason of each."""
    verdicts = acceptance(ordered, fleet.snapshot.pod_needs)
    observed = _ObservedDeployments.of(fleet, models)
    deployments, unplanned, notes = [], set(), []
    for intent in ordered:
        accepted, _, reason, _ = verdicts[intent.uid]
        requirements: ServingRequirements | str = reason
        if accepted and isinstance(intent, Intent):
            requirements = observed.requirements(intent)
        if isinstance(requirements, ServingRequirements):
            deployments.append(requirements)
            continue
        unplanned.add(intent.uid)
        notes.append(f"{identity(intent.namespace, intent.name)} is not planned: {requirements}")
    return tuple(sorted(deployments, key=lambda deployment: deployment.id)), frozenset(unplanned), notes


@dataclass(frozen=True, slots=True)
class _ObservedDeployments:
    """What a snapshot holds about LLMDeployments, by uid where nothing else is said."""

    fleet: Fleet
    models: Mapping[str, Architecture]  # from the command line
    facts: Mapping[FactsKey, CheckpointFacts]
    evaluations: CheckpointReports
    faults: Mapping[str, str]

    @classmethod
    def of(cls, fleet: Fleet, models: Mapping[str, Architecture]) -> "_ObservedDeployments":
        """Index a snapshot."""
        snapshot = fleet.snapshot
        return cls(
            fleet=fleet,
            models=models,
            facts=snapshot.known_facts,
            evaluations=reports_by_checkpoint(reports(snapshot)),
            faults={fault.owner_uid: fault.error for fault in snapshot.faults},
        )

    def requirements(self, intent: Intent) -> ServingRequirements | str:
        """Return the requirements of an LLMDeployment with what runs of it, or why it is not planned."""
        uid = intent.uid
        if uid in self.faults:
            return self.faults[uid]
        if intent.is_off and not intent.paused:  # its pods end by themselves
            return OFF
        requirements = self._on_its_runtime(intent)
        if isinstance(requirements, str):
            return requirements
        fleet = self.fleet
        return replace(
            requirements,
            pools=(*requirements.pools, *_contained_pools(requirements.pools, fleet)),
            present=_desired_replicas(intent, fleet),
            formats_running=_running_formats(fleet.workloads.get(uid, ())),
            load=fleet.loads.get(uid),
        )

    def _on_its_runtime(self, intent: Intent) -> ServingRequirements | str:
        """Return the requirements from the checkpoint, or why they are not known."""
        facts = self.facts.get(FactsKey(intent.namespace, intent.model_uri, self.fleet.snapshot.engine_image))
        try:
            model = self.models.get(intent.uid) or (architecture_from_facts(facts) if facts else None)
            if model is None:
                return "its checkpoint has not been inspected"
            snapshot = self.fleet.snapshot
            context = checkpoint_context(
                model, facts, snapshot.runtimes, self.evaluations, snapshot.pod_needs
            )
            present = [workload.shape for workload in self.fleet.workloads.get(intent.uid, ())]
            requirements = usual_runtime(intent, context, present, self._assessed)
            requirements.request.model_length(model)
        except InputError as error:
            return f"{error.field} {error.problem}"
        except Exception as error:  # noqa: BLE001 - a bug of ours, of this LLMDeployment alone
            return f"its requirements could not be read ({describe(error)}); please report this"
        return requirements

    def _assessed(self, requirements: ServingRequirements) -> AssessedShapes:
        """Assess the shapes of the GPU models that there are, or that GPUPools may grow by."""
        skus = {place.node.sku for place in self.fleet.nodes} | {p.sku for p in self.fleet.pools.values()}
        shapes = candidate_shapes(
            requirements.architecture,
            catalog_devices(sorted(sku for sku in skus if sku)),
            requirements.formats,
            requirements.splits,
            requirements.runtime_name,
        )
        return assessed_shapes(requirements, shapes, self.fleet.prices)


def _contained_pools(named: tuple[str, ...], fleet: Fleet) -> list[str]:
    """Return the pools whose nodes all belong to a pool of `named`, too.

    A node's GPUs belong to the first of the pools that select it, but pods may run on every node of a pool
    that spec.placement names.
    """
    claims = [place.pools for place in fleet.nodes] if named else []
    return [
        pool.name
        for pool in sorted(fleet.pools.values())
        if pool.name not in named
        and pool.max_nodes is None  # the pools that select new nodes are not known
        and (nodes_of_pool := [names for names in claims if names[:1] == (pool.name,)])
        and all(set(names) & set(named) for names in nodes_of_pool)
    ]


def _desired_replicas(intent: Intent, fleet: Fleet) -> tuple[ShapeKey, int] | None:
    """Return the desired shape and number of replicas; None: none runs.

    Without a desired shape it is the shape of the workload with the most available replicas.
    """
    workloads = fleet.workloads.get(intent.uid)
    if not workloads:
        return None
    best = min(workloads, key=lambda w: (-w.available, -w.replicas, w.shape, w.name, w.uid))
    replicas = fleet.desired.get(intent.uid, max(workload.replicas for workload in workloads))
    count = min(max(replicas, intent.min_replicas), intent.max_replicas)
    return fleet.desired_shapes.get(intent.uid, best.shape).key, count


def _running_formats(workloads: Sequence[Workload]) -> tuple[tuple[ShapeKey, str], ...]:
    """Return the format of the replicas on each shape, by shape; of several that with the most available."""
    formats = {}
    for workload in sorted(workloads, key=lambda w: (w.available, w.replicas, w.shape, w.name, w.uid)):
        if workload.replicas:
            formats[workload.shape.key] = workload.shape.precision
    return tuple(sorted(formats.items()))
