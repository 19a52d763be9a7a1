"""What is decided about an LLMDeployment before its placement, and decisions without any action."""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram.eligibility.acceptance import Acceptance, acceptance, by_age
from tangram.eligibility.isolation import Faulted, RoundStep, for_each
from tangram.eligibility.reasons import PAUSED, Reason
from tangram.fleet import (
    Decision,
    Fault,
    Intent,
    InvalidIntent,
    ParsedIntent,
    ProvisionedLoad,
    Shape,
    Workload,
)
from tangram.plan.fleet_input.fleet import Fleet
from tangram.plan.jobs.inspections import Inspections, ModelState, model_state
from tangram.plan.reasons.placement import SpecNotAccepted
from tangram.plan.words.placement import sentence

_NOT_ACCEPTED = ModelState(Reason.NOT_ACCEPTED, sentence(SpecNotAccepted(is_running=False)))


@dataclass(frozen=True, slots=True)
class DecisionDraft:
    """What is decided about one LLMDeployment before its placement."""

    intent: ParsedIntent
    acceptance: Acceptance
    model: ModelState
    workloads: tuple[Workload, ...]  # its Deployments
    desired: int
    desired_shape: Shape | None = None  # that `desired` counts; None: the one that it runs on
    is_refused: bool = False  # the API server refuses its Deployment, or an object that this needs
    fault: Fault | None = None  # why it is left as it is
    load: ProvisionedLoad | None = None  # that `desired` carries; None: not known

    @property
    def is_active(self) -> bool:
        """Whether anything may be created, changed or removed for it."""
        is_paused = isinstance(self.intent, Intent) and self.intent.paused
        return self.acceptance.accepted and not is_paused and self.fault is None

    @property
    def expected_replicas(self) -> int:
        """Replicas whose pods may be on the way: the desired ones; if it is left as it is, all there are."""
        return max(self.desired, replicas_of(self.workloads)) if self.fault else self.desired

    def decision(self, reason: Reason, message: str) -> Decision:
        """Return the decision with this condition `Placed`, without a shape."""
        return Decision(
            owner_uid=self.intent.uid,
            accepted=self.acceptance.accepted,
            accepted_reason=self.acceptance.reason,
            accepted_message=self.acceptance.message,
            model_reason=self.model.reason,
            model_message=self.model.message,
            placed_reason=reason,
            placed_message=message,
            desired=self.desired,
            facts=self.model.facts,
        )

    def decision_without_actions(self) -> Decision | None:
        """Return the decision if nothing is to be created, changed or removed; else None."""
        if not self.acceptance.accepted:
            return self.decision(Reason.NOT_ACCEPTED, sentence(SpecNotAccepted(bool(self.workloads))))
        if isinstance(self.intent, Intent) and self.intent.paused:
            return self.decision(Reason.PAUSED, PAUSED)
        if self.fault is not None:
            return self.decision(Reason.NOT_JUDGED, sentence(self.fault))
        return None


def drafts(
    fleet: Fleet, intents: tuple[ParsedIntent, ...], inspections: Inspections, faulted: Faulted
) -> Mapping[str, DecisionDraft]:
    """Return the drafts by uid, in the order of `intents`. Raises `StepsFailed`."""
    accepted = acceptance(by_age(intents), fleet.snapshot.pod_needs)
    refused = {problem.owner_uid for problem in fleet.snapshot.problems}

    def draft(intent: ParsedIntent) -> DecisionDraft:
        uid, own = intent.uid, fleet.workloads.get(intent.uid, ())
        fault = faulted.get(uid)
        model = _model(intent, fault, accepted[uid], inspections)
        replicas = _desired(intent, own, fleet.desired)
        return DecisionDraft(
            intent,
            accepted[uid],
            model,
            own,
            replicas,
            fleet.desired_shapes.get(uid),
            uid in refused,
            fault,
            fleet.loads.get(uid),
        )

    return {d.intent.uid: d for d in for_each(RoundStep.MODEL, intents, lambda intent: intent.uid, draft)}


def _model(
    intent: ParsedIntent, fault: Fault | None, accepted: Acceptance, inspections: Inspections
) -> ModelState:
    if fault is not None and fault.step in (RoundStep.MODEL, RoundStep.UNATTRIBUTED):
        return ModelState(Reason.NOT_JUDGED, sentence(fault))
    if isinstance(intent, InvalidIntent) or not accepted.accepted:
        return _NOT_ACCEPTED
    return model_state(intent, inspections)


def replicas_of(workloads: tuple[Workload, ...]) -> int:
    """Return the replicas of an LLMDeployment: those of its largest Deployment."""
    return max((workload.replicas for workload in workloads), default=0)


def _desired(intent: ParsedIntent, workloads: tuple[Workload, ...], desired: Mapping[str, int]) -> int:
    """Return the desired replicas, within the bounds: by the scaling law, else as many as there are."""
    existing = replicas_of(workloads)
    if isinstance(intent, InvalidIntent):
        return existing
    return min(max(desired.get(intent.uid, existing), intent.min_replicas), intent.max_replicas)
