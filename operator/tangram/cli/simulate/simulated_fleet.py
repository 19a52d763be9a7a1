"""The fleet of `-f FILE` as a simulation takes it: nodes, devices held by others, models with facts."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tangram.catalog import Architecture, InputError
from tangram.cli.plan.applied_documents import AppliedSnapshot
from tangram.cli.plan.input_files import PlanSource
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import (
    WHOLE_GPU,
    CheckpointFacts,
    Claim,
    FactsKey,
    Intent,
    Node,
    Pool,
    resource_name,
)
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.pods import UNHEALTHY
from tangram.simulator.cluster.well_known_facts import well_known_facts

_POOL_LABEL = "tangram.dev/pool-of-inventory"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An LLMDeployment that a simulation serves, under its name in plans as uid."""

    intent: Intent
    facts: CheckpointFacts


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Nodes and what stands on them beside the LLMDeployments that are simulated."""

    nodes: tuple[Node, ...]
    foreign_claims: tuple[Claim, ...]
    pools: tuple[Pool, ...]
    prices: Mapping[str, float]
    node_prices: Mapping[str, float]
    models: tuple[ServedModel, ...]
    notes: tuple[str, ...] = ()


def names_of(source: PlanSource) -> tuple[str, ...]:
    """Return the names of the LLMDeployments that can be simulated."""
    if source.cluster is None:
        return tuple(requirements.id for requirements in source.fleet_input.deployments)
    return tuple(
        sorted(identity(i.namespace, i.name) for i in source.cluster.intents if isinstance(i, Intent))
    )


def simulated_fleet(source: PlanSource, names: Collection[str]) -> SimulatedFleet:
    """Return the fleet with the LLMDeployments `names`; devices of others stay held. Raises `InputError`."""
    base = source.fleet_input
    if source.cluster is not None:
        fleet = _of_snapshot(source.cluster, base, names)
    else:
        fleet = _of_files(base, names)
    if not any(node.usable and node.allocatable for node in fleet.nodes):
        raise InputError("--file", "has no node with GPUs: add Nodes, an Inventory or a Snapshot")
    left_out = [name for name in names_of(source) if name not in names]
    notes = [f"{name} has no trace: it is left out, and devices that it holds stay held" for name in left_out]
    return replace(fleet, notes=(*base.notes, *notes))


# -- documents -----------------------------------------------------------------------------------------------


def _of_files(base: FleetInput, names: Collection[str]) -> SimulatedFleet:
    models = tuple(
        _served(requirements.id, requirements.intent, _facts(requirements.id, requirements.architecture))
        for requirements in base.deployments
        if requirements.id in names
    )
    inferred = {inferred.node.name: inferred.node for inferred in base.nodes if inferred.gpus}
    inventory, pools = _inventory_nodes([gpu for gpu in base.gpus if gpu.node not in inferred], base.pools)
    return SimulatedFleet(
        nodes=(*inferred.values(), *inventory),
        foreign_claims=tuple(_foreign_claims(base.gpus, names)),
        pools=pools,
        prices=dict(base.terms.prices),
        node_prices=_node_prices(base.gpus),
        models=models,
    )


def _inventory_nodes(
    gpus: Iterable[GPUState], pools: tuple[Pool, ...]
) -> tuple[tuple[Node, ...], tuple[Pool, ...]]:
    """Return a node for the GPUs of each node of an Inventory, and the GPUPools with those that it names."""
    by_name = {pool.name: pool for pool in pools}
    by_node: dict[str, list[GPUState]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
        if gpu.pool and gpu.pool not in by_name:
            by_name[gpu.pool] = Pool(gpu.pool, ((_POOL_LABEL, gpu.pool),))
    nodes = []
    for name, on_node in by_node.items():
        first = on_node[0]
        if any((gpu.sku, gpu.pool) != (first.sku, first.pool) for gpu in on_node):
            raise InputError(f"node {name}", "has GPUs of two SKUs or pools; give each a node of its own")
        labels = by_name[first.pool].selector if first.pool else ()
        nodes.append(
            Node(
                name=name,
                sku=first.sku,
                product=first.sku,
                usable=True,
                allocatable=tuple(sorted(_offered(on_node).items())),
                zone=first.zone,
                gpus=len(on_node),
                labels=labels,
            )
        )
    return tuple(nodes), tuple(sorted(by_name.values(), key=lambda pool: pool.name))


def _offered(gpus: Iterable[GPUState]) -> Counter[str]:
    """Return devices by resource as the GPUs are cut at present; a whole GPU that nothing holds is one."""
    offered = Counter[str]()
    for gpu in gpus:
        if gpu.mig_enabled:
            offered.update(resource_name(instance.profile) for instance in gpu.instances)
        else:
            offered[resource_name(WHOLE_GPU)] += 1
    return offered


def _foreign_claims(gpus: Iterable[GPUState], names: Collection[str]) -> Iterator[Claim]:
    held = Counter(
        (gpu.node, resource_name(instance.profile))
        for gpu in gpus
        for instance in gpu.instances
        if instance.owner is not None and instance.owner != UNHEALTHY and instance.owner not in names
    )
    for (node, resource), count in sorted(held.items()):
        yield Claim(node, resource, count, None)


def _node_prices(gpus: Iterable[GPUState]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for gpu in gpus:
        if gpu.price_per_hour is None:
            continue
        if prices.setdefault(gpu.node, gpu.price_per_hour) != gpu.price_per_hour:
            raise InputError(f"node {gpu.node}", "has GPUs of two prices; give each a node of its own")
    return prices


# -- snapshots -----------------------------------------------------------------------------------------------


def _of_snapshot(cluster: AppliedSnapshot, base: FleetInput, names: Collection[str]) -> SimulatedFleet:
    snapshot = cluster.snapshot
    facts = dict(snapshot.facts)
    models, uids = [], set[str]()
    for intent in cluster.intents:
        name = identity(intent.namespace, intent.name)
        if not isinstance(intent, Intent) or name not in names:
            continue
        inspected = facts.get(FactsKey(intent.namespace, intent.model_uri, snapshot.engine_image))
        named = cluster.models.get(intent.uid)
        if named is not None:
            inspected = _facts(name, named)
        if inspected is None:
            raise InputError(
                f"LLMDeployment {name}", f"its checkpoint is not inspected: add --model-facts {name}=MODEL"
            )
        models.append(_served(name, intent, inspected))
        uids.add(intent.uid)
    known = {node.name for node in snapshot.nodes}
    inventory, pools = _inventory_nodes([gpu for gpu in base.gpus if gpu.node not in known], snapshot.pools)
    return SimulatedFleet(
        nodes=(*snapshot.nodes, *inventory),
        foreign_claims=tuple(
            replace(claim, owner_uid=None) for claim in snapshot.claims if claim.owner_uid not in uids
        ),
        pools=pools,
        prices=dict(snapshot.prices) | dict(base.terms.prices),
        node_prices=_node_prices(base.gpus),
        models=tuple(models),
    )


# -- models --------------------------------------------------------------------------------------------------


def _served(name: str, intent: Intent, facts: CheckpointFacts) -> ServedModel:
    # One checkpoint each: several documents may have one stand-in for what the operator does not fetch.
    return ServedModel(replace(intent, uid=name, model_uri=f"image:///simulated/{name}"), facts)


def _facts(name: str, architecture: Architecture) -> CheckpointFacts:
    try:
        return well_known_facts(architecture)
    except InputError as error:
        raise InputError(f"LLMDeployment {name}: {error.field}", error.problem) from None
