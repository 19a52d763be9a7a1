"""`LLMDeployment.status`, for users, `kubectl wait` and dashboards. Decimals are strings."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tangram.api.common.base import APIModel, list_field, optional
from tangram.api.llm_deployment.accepted_spec import AcceptedLLMDeploymentStatus
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
Reference = Annotated[str, StringConstraints(max_length=512)]  # of an image or a checkpoint
Generation = Annotated[int, Field(ge=0)]
ConditionType = Literal["Ready", "Accepted", "ModelReady", "Placed", "Available", "ScalingActive", "SLOMet"]


class Condition(APIModel):
    """One aspect of the state, as Kubernetes conditions are."""

    type: str = Field(description="Name of the aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: Generation = Field(
        description="Generation of the object that this condition is about."
    )
    last_transition_time: Time = Field(description="When `status` last changed.")
    reason: Reason = Field(description="The reason in one word.")
    message: Text = Field(description="The reason in one sentence.")


class LLMDeploymentCondition(Condition):
    """One aspect of the state of an LLMDeployment."""

    type: ConditionType = Field(description="Name of the aspect. Ready summarizes the others.")


class ModelStatus(APIModel):
    """The checkpoint as inspected."""

    uri: Reference = Field(description="The model.uri that was inspected.")
    engine_image: Reference = Field(description="The engine image that inspected it.")
    revision: ShortText | None = optional(
        "The revision that a branch or tag of model.uri was pinned to. Pods fetch it, whatever the name "
        "means since. A change of model.revision pins another one, and replaces the pods."
    )
    next_uri: Reference | None = optional(
        "The model.uri of the present spec, while its checkpoint is not known and the last accepted spec is "
        "in force.",
        alias="nextURI",
    )
    facts: Facts | None = optional(
        "Facts about the checkpoint. Absent while it is being inspected or cannot be served."
    )
    evaluations: tuple[EvaluationStatus, ...] = list_field(
        16, "Quantised precisions that were compared with the checkpoint's own precision."
    )


class AlternativeStatus(APIModel):
    """Another shape that would serve, and was not chosen."""

    shape: ShortText = Field(description="GPU model, with its MIG profile if any.")
    precision: ShortText | None = optional("Precision of the weights.")
    replicas: Count = Field(
        description="Number of replicas that would carry the same load there. It is scaling.minReplicas "
        "where the shape cannot serve."
    )
    cost_per_hour: Decimal | None = optional(
        "USD per hour of these replicas. Absent where no price is known."
    )
    rejected_because: Reason = Field(description="The constraint that excluded it, in one word.")
    message: Text = Field(description="The value that violates the constraint, and by how much.")


class RelaxationStatus(APIModel):
    """A change that would serve an LLMDeployment fully."""

    dimension: ShortText = Field(
        description="The kind of change, in one word: layout, gpus, objective, budget ..."
    )
    text: Text = Field(description="The smallest such change that suffices, in a sentence.")


class PlacementStatus(APIModel):
    """Where replicas run, and the shapes that were not chosen."""

    variant: ShortText | None = optional("Suffix of the Deployment's name for this shape.")
    sku: ShortText | None = optional("GPU model.")
    profile: ShortText | None = optional("MIG profile, or gpu for a whole GPU.")
    precision: ShortText | None = optional("Precision in which the weights are served.")
    runtime: ShortText | None = optional("Name of the EngineRuntime. Absent: the bundled engine serves.")
    gpus_per_replica: Count | None = optional(
        "GPUs of one node that each replica has. Absent: one GPU or slice.", alias="gpusPerReplica"
    )
    runtime_reason: Text | None = optional(
        "Why this runtime serves, where there was a choice, and why others cannot."
    )
    display: ShortText = Field(description="GPU model, profile and number of replicas, as text.")
    placed_replicas: Count = Field(description="Desired replicas that run or have a GPU or slice.")
    predicted_tpot_milliseconds: Decimal | None = optional(
        "Time per output token in milliseconds of a nearly idle replica on this shape, as `tangram size` "
        "predicts it.",
        alias="predictedTPOTMilliseconds",
    )
    alternatives: tuple[AlternativeStatus, ...] = list_field(
        5, "Up to five other shapes that would serve, best first, and why each was not chosen."
    )
    plan: ShortText | None = optional(
        "Name of the FleetPlan that `because` and `relaxations` are from: a plan of the whole fleet."
    )
    because: tuple[Text, ...] = list_field(
        16, "Where some replicas have no device: the constraints that together exclude them."
    )
    relaxations: tuple[RelaxationStatus, ...] = list_field(
        16,
        "Where some replicas have no device: the smallest change of each kind that gives all of them "
        "one. Each was tried on the whole fleet.",
    )


class SLOStatus(APIModel):
    """Latency as measured by the engines, written at most once a minute."""

    time: Time = Field(description="When these numbers were read.")
    window_seconds: Count = Field(description="Length of the time window that they cover, in seconds.")
    samples: Count = Field(description="Approximate number of requests that they cover.")
    ttft_attainment: Decimal | None = optional("Share of requests, 0 to 1, that met the TTFT objective.")
    tpot_attainment: Decimal | None = optional("Share of requests, 0 to 1, that met the TPOT objective.")
    ttft_milliseconds: Count | None = optional(
        "Observed time to first token in milliseconds, at the objective's percentile."
    )
    tpot_milliseconds: Count | None = optional(
        "Observed time per output token in milliseconds, at the objective's percentile."
    )


class CostStatus(APIModel):
    """Cost of the replicas that are placed or run. Absent where a price is not known."""

    per_hour: Decimal = Field(
        description="USD per hour of the replicas that are placed or run. A slice costs its dominant share "
        "of its GPU."
    )


class LastScale(APIModel):
    """The last change of the desired number of replicas."""

    time: Time = Field(description="When it was decided.")
    from_: Count = Field(alias="from", description="Replicas before.")
    to: Count = Field(description="Replicas after.")
    reason: Reason = Field(description="The reason in one word.")


class RunnerUpStatus(APIModel):
    """What one replica fewer than the forecast load needs would lead to."""

    replicas: Count = Field(description="One replica fewer.")
    expected_missed_share: Decimal = Field(
        description="Share of requests, 0 to 1, expected to miss an objective with so many replicas."
    )


class NeedStatus(APIModel):
    """The replicas that the forecast load needs, with the next smaller number to compare."""

    replicas: Count = Field(
        description="The fewest replicas that keep the forecast load within the objectives."
    )
    expected_missed_share: Decimal = Field(
        description="Share of requests, 0 to 1, expected to miss an objective with so many replicas."
    )
    error_budget: Decimal = Field(
        description="Share of requests, 0 to 1, that may miss an objective by the forecast. It is up to four "
        "times the error budget of the objective while fewer requests miss than that allows."
    )
    limit: Reason = Field(
        description="What keeps the number from being another one. ErrorBudget: the runner-up exceeds it. "
        "Queue: the same, because a queue is served beside the arrivals. FurtherReplica: one more would "
        "prevent too few misses. OneReplica: there is no smaller number."
    )
    spare_replicas: Count | None = optional(
        "Of these replicas, those beyond the ones that the expected load alone needs: for load that may come "
        "before another replica has started."
    )
    spare_cost_per_hour: Decimal | None = optional(
        "USD per hour of the spare replicas, at the price of a replica of the shape that is counted; absent "
        "where no price is known."
    )
    runner_up: RunnerUpStatus | None = optional(
        "What one replica fewer would lead to; absent where one replica is needed."
    )


class ScalingDecisionStatus(LastScale):
    """One change of the desired number of replicas, and the calculation behind it."""

    message: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="The load expected at the horizon, what one replica carries, what the runner-up would "
        "lead to, and the limit that binds."
    )
    need: NeedStatus | None = optional(
        "The replicas that the forecast load needs, before bounds and before the time for which replicas "
        "are kept; absent without a forecast."
    )


class ScalingStatus(APIModel):
    """Measurements of the scaling law, from which a restarted operator continues, and its last decisions."""

    learned_under: Annotated[str, StringConstraints(max_length=640)] | None = optional(
        "The model, engine.maxRunningRequests and objectives that these measurements belong to; after a "
        "change of one of them they are discarded."
    )
    violated_requests_per_second: Decimal | None = optional(
        "Requests per second per replica at which objectives were missed or requests queued."
    )
    violated_running_requests: Decimal | None = optional("Running requests per replica at that load.")
    trusted_share: Decimal | None = optional(
        "Share of the predicted requests per second of a steady load that one replica carries, corrected by "
        "the misses that happen; 1: as predicted."
    )
    load_spread: Decimal | None = optional(
        "How much the load varies within a minute: the deviation of its logarithm, as the misses at each "
        "mean load show it; absent: it is steady."
    )
    provisioned_requests_per_second: Decimal | None = optional(
        "Requests per second, in steps of a tenth, that the desired replicas are to carry: the forecast load "
        "with the margin that the error budget needs. Replicas of another shape are counted by it."
    )
    provisioned_prompt_tokens: Decimal | None = optional(
        "Mean tokens of the prompts of these requests, in steps of a tenth."
    )
    provisioned_answer_tokens: Decimal | None = optional(
        "Mean tokens of the answers to these requests, in steps of a tenth."
    )
    provisioned_trusted_share: Decimal | None = optional(
        "Share of the predicted requests per second that a replica of another shape is trusted with, at most "
        "1: what the present ones carry within the objectives by what misses taught, in steps of a tenth."
    )
    unavoidable_share: Decimal | None = optional(
        "Share of requests that miss an objective at low load, too, as measured: more replicas do not help "
        "them."
    )
    missed_share: Decimal | None = optional(
        "Share of requests that missed an objective in the last hours. While it is below the error budget "
        "the forecast plans with fewer spare replicas."
    )
    recommended_replicas: Count | None = optional(
        "Replicas that the scaling law would order, where spec.replicas sets another number."
    )
    decisions: tuple[ScalingDecisionStatus, ...] = list_field(5, "The last changes, the newest first.")
    tpot_reachable: bool | None = optional(
        "Whether a replica meets the TPOT objective at low load, as measured; false: more replicas do not "
        "help."
    )
    ttft_reachable: bool | None = optional(
        "Whether requests that are alone on a replica meet the TTFT objective, as measured; false: more "
        "replicas do not help."
    )
    start_seconds: Decimal | None = optional(
        "Measured time in seconds from a scale-up until its replicas were ready."
    )
    late_replicas: Count | None = optional(
        "Replicas that did not become ready in the expected time; scaling does not rely on them."
    )
    failed_orders: Count | None = optional(
        "Number of consecutive scale-ups of which no replica became ready."
    )


class ReplicasSetBy(APIModel):
    """Which client set spec.replicas, as the API server records it in metadata.managedFields."""

    manager: ShortText = Field(description="Field manager: the name that the client chose.")
    subresource: ShortText | None = optional("scale, where it was set through the scale subresource.")
    time: Time | None = optional(
        "When that client last set fields of this object. Absent where the API server does not record "
        "it, as for the scale subresource."
    )


class RevisionStatus(APIModel):
    """The last change of the spec, not counting changes of spec.replicas alone."""

    generation: Generation = Field(description="Generation at which it was made.")
    hash: ShortText = Field(description="Hash of the spec without spec.replicas.")


class LLMDeploymentStatus(APIModel):
    """Observed state, written by Tangram alone."""

    observed_generation: Generation | None = optional("Generation of the object that this status is about.")
    revision: RevisionStatus | None = optional(
        "The last change of the spec, apart from spec.replicas. A change of spec.replicas alone starts no "
        "rollout and keeps back-offs and measurements."
    )
    accepted_spec: AcceptedLLMDeploymentStatus | None = optional(
        "The last spec that was accepted. It stays in force while the present one is not: Accepted says why."
    )
    conditions: tuple[LLMDeploymentCondition, ...] = Field(
        default=(),
        max_length=16,
        description="Accepted, ModelReady, Placed, Available, ScalingActive and SLOMet have the reasons. "
        "Ready summarizes them.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: Count | None = optional(
        "Engine pods that exist, ready or not. HorizontalPodAutoscalers and `kubectl scale` read it."
    )
    replicas_display: ShortText | None = optional('Ready over desired replicas, as text: "3/4".')
    selector: ShortText | None = optional(
        "Label selector, as text, of exactly the engine pods of this LLMDeployment. "
        "HorizontalPodAutoscalers read it."
    )
    replicas_set_by: ReplicasSetBy | None = optional(
        "The client that set spec.replicas. Absent where it is not set. The API server does not record a "
        "client that uses the scale subresource while no client owns the field."
    )
    desired_replicas: Count | None = optional(
        "Desired replicas: spec.replicas, else a number between scaling.minReplicas and scaling.maxReplicas."
    )
    ready_replicas: Count | None = optional("Replicas that are ready to serve.")
    model: ModelStatus | None = optional("The checkpoint as inspected.")
    placement: PlacementStatus | None = optional(
        "Where the replicas run, and the alternatives that were not chosen."
    )
    slo: SLOStatus | None = optional("Latency as measured, at most once a minute.")
    cost: CostStatus | None = optional(
        "Cost of the replicas that are placed or run. Absent where a price is not known."
    )
    url: ShortText | None = optional("Base URL of the OpenAI-compatible API within the cluster.")
    last_scale: LastScale | None = optional("The last change of the desired number of replicas.")
    scaling: ScalingStatus | None = optional(
        "Measurements from which scaling continues after a restart of the operator."
    )
    back_offs: tuple[BackOffStatus, ...] = list_field(
        3,
        "Shapes (GPU model and profile) in back-off: their pods could not be created or scheduled, so that "
        "no more are started until the time given.",
    )
