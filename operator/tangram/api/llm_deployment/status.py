"""`LLMDeployment.status`, for users, `kubectl wait` and dashboards. Decimals are strings."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from tangram.api.common.base import APIModel
from tangram.api.llm_deployment.back_offs import BackOffStatus
from tangram.api.llm_deployment.evaluation import EvaluationStatus
from tangram.api.llm_deployment.facts import Facts

Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
Decimal = Annotated[str, StringConstraints(max_length=24, pattern=r"^[0-9]+(\.[0-9]+)?$")]
MAX_SHORT_TEXT, MAX_TEXT = 256, 2048  # characters
ShortText = Annotated[str, StringConstraints(max_length=MAX_SHORT_TEXT)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
ConditionType = Literal["Ready", "Accepted", "ModelReady", "Placed", "Available", "ScalingActive", "SLOMet"]


_ATOMIC: dict[str, JsonValue] = {"x-kubernetes-list-type": "atomic"}


class Condition(APIModel):
    """One aspect of the state, as Kubernetes conditions are."""

    type: str = Field(description="Name of the aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: Annotated[int, Field(ge=0)] = Field(
        description="Generation of the object that this condition is about."
    )
    last_transition_time: Time = Field(description="When `status` last changed.")
    reason: Reason = Field(description="Why, in one word.")
    message: Text = Field(description="Why, in a sentence: since when, and what it waits for.")


class LLMDeploymentCondition(Condition):
    """One aspect of the state of an LLMDeployment."""

    type: ConditionType = Field(description="Name of the aspect. Ready sums up the others.")


class ModelStatus(APIModel):
    """The checkpoint as inspected."""

    uri: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="The model.uri that was inspected."
    )
    engine_image: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="The engine image that inspected it."
    )
    facts: Facts | None = Field(
        default=None, description="What was found; absent while it is being inspected or cannot be served."
    )
    evaluations: tuple[EvaluationStatus, ...] = Field(
        default=(),
        max_length=16,
        description="Quantised formats that were compared with the checkpoint's own format.",
        json_schema_extra=_ATOMIC,
    )


class AlternativeStatus(APIModel):
    """Another shape that would serve, and was not chosen."""

    shape: ShortText = Field(description="GPU model, with its MIG profile if any.")
    precision: ShortText | None = Field(default=None, description="Format of the weights.")
    replicas: Count = Field(
        description="How many replicas would carry the same load there; scaling.minReplicas where it "
        "cannot serve."
    )
    cost_per_hour: Decimal | None = Field(
        default=None, description="USD per hour of these replicas; absent where no price is known."
    )
    rejected_because: Reason = Field(description="The constraint that excluded it, in one word.")
    message: Text = Field(description="The value that missed the constraint, and by how much.")


class RelaxationStatus(APIModel):
    """A change that would serve an LLMDeployment whole."""

    dimension: ShortText = Field(
        description="What would have to change, in one word: layout, gpus, objective, budget ..."
    )
    text: Text = Field(description="The smallest such change that was found to suffice, in a sentence.")


class PlacementStatus(APIModel):
    """Where replicas run, and the shapes that were not chosen."""

    variant: ShortText | None = Field(
        default=None, description="Suffix of the Deployment's name for this shape."
    )
    sku: ShortText | None = Field(default=None, description="GPU model.")
    profile: ShortText | None = Field(default=None, description="MIG profile, or gpu for a whole GPU.")
    precision: ShortText | None = Field(default=None, description="Format in which the weights are served.")
    display: ShortText = Field(description="GPU model, profile and number of replicas, as text.")
    placed_replicas: Count = Field(description="Desired replicas that the fleet has room for.")
    predicted_tpot_milliseconds: Decimal | None = Field(
        default=None,
        alias="predictedTPOTMilliseconds",
        description="Time per output token in milliseconds of a nearly idle replica on this shape, as "
        "`tangram size` predicts it.",
    )
    alternatives: tuple[AlternativeStatus, ...] = Field(
        default=(),
        max_length=5,
        description="Up to five other shapes that would serve, best first, and why each was not chosen.",
        json_schema_extra=_ATOMIC,
    )
    plan: ShortText | None = Field(
        default=None,
        description="Name of the FleetPlan that `because` and `relaxations` are from: a plan of the whole "
        "fleet.",
    )
    because: tuple[Text, ...] = Field(
        default=(),
        max_length=16,
        description="Where some replicas have no room: the constraints that together exclude them.",
        json_schema_extra=_ATOMIC,
    )
    relaxations: tuple[RelaxationStatus, ...] = Field(
        default=(),
        max_length=16,
        description="Where some replicas have no room: the smallest change of each kind that makes room for "
        "all of them, each tried on the whole fleet.",
        json_schema_extra=_ATOMIC,
    )


class SLOStatus(APIModel):
    """Latency as measured by the engines, written at most once a minute."""

    time: Time = Field(description="When these numbers were read.")
    window_seconds: Count = Field(description="Length of the time window that they cover, in seconds.")
    samples: Count = Field(description="Approximate number of requests that they cover.")
    ttft_attainment: Decimal | None = Field(
        default=None, description="Share of requests, 0 to 1, that met the TTFT objective."
    )
    tpot_attainment: Decimal | None = Field(
        default=None, description="Share of requests, 0 to 1, that met the TPOT objective."
    )
    ttft_milliseconds: Count | None = Field(
        default=None,
        description="Observed time to first token in milliseconds, at the objective's percentile.",
    )
    tpot_milliseconds: Count | None = Field(
        default=None,
        description="Observed time per output token in milliseconds, at the objective's percentile.",
    )


class CostStatus(APIModel):
    """What the placed replicas cost."""

    per_hour: Decimal = Field(
        description="USD per hour of the placed replicas. A slice costs its dominant share of its GPU."
    )


class LastScale(APIModel):
    """The last change of the desired number of replicas."""

    time: Time = Field(description="When it was decided.")
    from_: Count = Field(alias="from", description="Replicas before.")
    to: Count = Field(description="Replicas after.")
    reason: Reason = Field(description="Why, in one word.")


class ScalingStatus(APIModel):
    """Measurements of the scaling law, from which a restarted operator continues."""

    learned_under: Annotated[str, StringConstraints(max_length=640)] | None = Field(
        default=None,
        description="The model, batch size and objectives that these measurements belong to; after a "
        "change of one of them they are discarded.",
    )
    violated_requests_per_second: Decimal | None = Field(
        default=None,
        description="Requests per second per replica at which objectives were missed or requests queued.",
    )
    violated_running_requests: Decimal | None = Field(
        default=None, description="Running requests per replica at that load."
    )
    tpot_reachable: bool | None = Field(
        default=None,
        description="Whether a replica meets the TPOT objective at low load, as measured; false: more "
        "replicas do not help.",
    )
    start_seconds: Decimal | None = Field(
        default=None, description="Measured time in seconds from a scale-up until its replicas were ready."
    )
    late_replicas: Count | None = Field(
        default=None,
        description="Replicas that did not become ready in the expected time; scaling does not rely on them.",
    )
    failed_orders: Count | None = Field(
        default=None, description="Number of consecutive scale-ups of which no replica became ready."
    )


class ReplicasSetBy(APIModel):
    """Which client set spec.replicas, as the API server records it in metadata.managedFields."""

    manager: ShortText = Field(description="Field manager: the name that the client chose.")
    subresource: ShortText | None = Field(
        default=None, description="scale, where it was set through the scale subresource."
    )
    time: Time | None = Field(
        default=None,
        description="When that client last set fields of this object; absent where the API server does not "
        "record it, as for the scale subresource.",
    )


class RevisionStatus(APIModel):
    """The last change of the spec, not counting changes of spec.replicas alone."""

    generation: Annotated[int, Field(ge=0)] = Field(description="Generation at which it was made.")
    hash: ShortText = Field(description="Hash of the spec without spec.replicas.")


class LLMDeploymentStatus(APIModel):
    """Observed state, written by Tangram alone."""

    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the object that this status is about."
    )
    revision: RevisionStatus | None = Field(
        default=None,
        description="The last change of the spec, apart from spec.replicas. A change of spec.replicas alone "
        "starts no rollout and keeps back-offs and measurements.",
    )
    conditions: tuple[LLMDeploymentCondition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready sums up; Accepted, ModelReady, Placed, Available, ScalingActive and SLOMet "
        "have the reasons.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: Count | None = Field(
        default=None,
        description="Engine pods that exist, ready or not: what HorizontalPodAutoscalers and `kubectl scale` "
        "read.",
    )
    replicas_display: ShortText | None = Field(
        default=None, description='Ready over desired replicas, as text: "3/4".'
    )
    selector: ShortText | None = Field(
        default=None,
        description="Label selector, as text, of exactly the engine pods of this LLMDeployment: what "
        "HorizontalPodAutoscalers read.",
    )
    replicas_set_by: ReplicasSetBy | None = Field(
        default=None,
        description="Which client set spec.replicas; absent where it is not set, and where the API server "
        "does not record the client: when it is set through the scale subresource while no client owns the "
        "field.",
    )
    desired_replicas: Count | None = Field(
        default=None,
        description="Desired replicas: spec.replicas, else a number between scaling.minReplicas and "
        "scaling.maxReplicas.",
    )
    ready_replicas: Count | None = Field(default=None, description="Replicas that are ready to serve.")
    model: ModelStatus | None = Field(default=None, description="The checkpoint as inspected.")
    placement: PlacementStatus | None = Field(
        default=None, description="Where the replicas run, and the alternatives that were not chosen."
    )
    slo: SLOStatus | None = Field(default=None, description="Latency as measured, at most once a minute.")
    cost: CostStatus | None = Field(default=None, description="What the placed replicas cost.")
    url: ShortText | None = Field(
        default=None, description="Base URL of the OpenAI-compatible API within the cluster."
    )
    last_scale: LastScale | None = Field(
        default=None, description="The last change of the desired number of replicas."
    )
    scaling: ScalingStatus | None = Field(
        default=None, description="Measurements from which scaling continues after a restart of the operator."
    )
    back_offs: tuple[BackOffStatus, ...] = Field(
        default=(),
        max_length=3,
        description="Shapes (GPU model and profile) in back-off: their pods could not be created or "
        "scheduled, so "
        "that no more are started until the time given.",
        json_schema_extra=_ATOMIC,
    )
