"""The plan of the next round, with the reviewed LLMDeployment as it is applied."""

from dataclasses import dataclass, replace

from tangram.admission.review import Review, ReviewedFleet
from tangram.api import last_accepted, parse, priority_classes
from tangram.api.common.priority import NOT_FOUND
from tangram.eligibility.acceptance import specs_in_force
from tangram.eligibility.runtime_request import runtimes_of, with_runtime
from tangram.fleet import Decision, Intent, ParsedIntent
from tangram.plan import plan
from tangram.plan.jobs.inspections import key_of


@dataclass(frozen=True, slots=True)
class PlannedReview:
    """The decision of the operator about the reviewed LLMDeployment."""

    fleet: ReviewedFleet
    intent: ParsedIntent  # in force
    others: tuple[ParsedIntent, ...]
    decision: Decision

    def decision_with(self, edited: Intent) -> Decision:
        """Return the decision if the LLMDeployment were edited."""
        return _decision(self.fleet, self.others, edited)


def planned_review(review: Review, fleet: ReviewedFleet) -> PlannedReview:
    """Return what the operator would decide in the next round. Pods and nodes are those of the last one."""
    snapshot, body = fleet.snapshot, review.identified
    # Every cluster has classes of its own: without one, the operator may not list them.
    classes = priority_classes(snapshot.priority_classes or None, snapshot.default_priority_class)
    runtimes = runtimes_of(snapshot)
    parsed = with_runtime(parse(body, classes, fleet.pod_metadata_keys), runtimes)
    intent = _with_new_class(review, parsed)
    last = last_accepted(body, classes, fleet.pod_metadata_keys)
    name = (intent.namespace, intent.name)
    present = tuple(i for i in fleet.intents if i.uid != intent.uid and (i.namespace, i.name) != name)
    facts = snapshot.known_facts
    *others, in_force = specs_in_force(
        (*present, intent),
        {} if last is None else {intent.uid: last},
        snapshot.pod_needs,
        lambda i: key_of(i, snapshot.engine_image) in facts,
    )
    return PlannedReview(fleet, in_force, tuple(others), _decision(fleet, tuple(others), in_force))


def _with_new_class(review: Review, intent: ParsedIntent) -> ParsedIntent:
    """Return the intent without the refusal of a class that the last round did not know: a request that names
    one that does not exist has been refused before.
    """
    if not isinstance(intent, Intent) or intent.refusal is None or intent.refusal.reason != NOT_FOUND:
        return intent
    return replace(intent, refusal=None) if review.changes(intent.refusal.fields) else intent


def _decision(fleet: ReviewedFleet, others: tuple[ParsedIntent, ...], intent: ParsedIntent) -> Decision:
    decisions = plan(fleet.snapshot, (*others, intent), fleet.now).decisions
    return next(decision for decision in decisions if decision.owner_uid == intent.uid)
