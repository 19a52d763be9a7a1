"""Assess the shapes that nodes offer for one LLMDeployment."""

from collections.abc import Sequence

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import InputError
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports
from tangram.eligibility.shapes.runtimes import best_runtime, checkpoint_context, runtime_offers
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import CheckpointFacts, EngineRuntime, Intent, Shape
from tangram.plan.offers.node_offers import NodeOffers, node_shapes


def assessment(
    intent: Intent,
    facts: CheckpointFacts,
    node_offers: NodeOffers,
    by_checkpoint: CheckpointReports,
    present: Sequence[Shape] = (),
    runtimes: tuple[EngineRuntime, ...] = (),
) -> AssessedShapes | str:
    """Return the assessed shapes, or why none serves what the spec asks for. `present`: those that run."""
    try:
        architecture = architecture_from_facts(facts)
        needs = node_offers.fleet.snapshot.pod_needs
        context = checkpoint_context(architecture, facts, runtimes, by_checkpoint, needs)
        return best_runtime(
            runtime_offers(intent, context),
            present,
            lambda requirements: node_shapes(requirements, node_offers, present),
        )
    except InputError as error:
        return f"{error.field} {error.problem}"
