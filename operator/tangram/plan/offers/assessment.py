"""Assess the shapes that nodes offer for one LLMDeployment."""

from collections.abc import Iterable

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import InputError
from tangram.eligibility.shapes.bundled_engine import lacks, on_bundled_engine
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports
from tangram.eligibility.shapes.serving_requirements import requirements_of
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import CheckpointFacts, Intent, Shape
from tangram.plan.offers.node_offers import NodeOffers, node_shapes


def assessment(
    intent: Intent,
    facts: CheckpointFacts,
    node_offers: NodeOffers,
    by_checkpoint: CheckpointReports,
    present: Iterable[Shape] = (),
) -> AssessedShapes | str:
    """Return the assessed shapes, or why none serves what the spec asks for. `present`: those that run."""
    try:
        architecture = architecture_from_facts(facts)
        missing = lacks(intent, architecture)
        if missing:
            return missing
        checkpoint_reports = by_checkpoint.get((intent.namespace, intent.model_uri, facts.digest), ())
        requirements = on_bundled_engine(
            requirements_of(intent, architecture), checkpoint_reports, node_offers.fleet.snapshot.pod_needs
        )
        return node_shapes(requirements, node_offers, present)
    except InputError as error:
        return f"{error.field} {error.problem}"
