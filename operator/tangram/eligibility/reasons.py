"""Reasons of the conditions of an LLMDeployment; of a GPUPool: eligibility/pool_conditions.py."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a condition has its status. Dashboards and alerts match the word: renaming one breaks users."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    MODEL_NAME_COLLISION = "ModelNameCollision"
    ABOVE_LIMIT = "AboveLimit"
    METADATA_KEY_NOT_ALLOWED = "MetadataKeyNotAllowed"
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    PRIORITY_CLASS_UNKNOWN = "PriorityClassUnknown"  # the operator may not list them
    PRIORITY_CLASS_NOT_ALLOWED = "PriorityClassNotAllowed"
    PRIORITY_CLASS_PREEMPTS = "PriorityClassPreempts"
    RUNTIME_NOT_FOUND = "RuntimeNotFound"
    RUNTIME_NOT_ALLOWED = "RuntimeNotAllowed"  # in its namespace
    RUNTIME_NOT_READY = "RuntimeNotReady"  # it is not accepted, or has no image
    RUNTIME_OPTION_REFUSED = "RuntimeOptionRefused"  # an argument or a variable that it may not add
    # any condition that depends on another one that is not true yet
    NOT_ACCEPTED = "NotAccepted"
    WAITING_FOR_MODEL = "WaitingForModel"
    # ModelReady
    INSPECTED = "Inspected"
    INSPECTING = "Inspecting"
    NOT_FOUND = "NotFound"
    INVALID_CHECKPOINT = "InvalidCheckpoint"
    UNKNOWN_ARCHITECTURE = "UnknownArchitecture"
    INSPECTION_FAILED = "InspectionFailed"
    ACCESS_DENIED = "AccessDenied"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_CHANGED = "SourceChanged"
    NO_SPACE = "NoSpace"
    # Placed
    PLACED = "Placed"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    INFEASIBLE = "Infeasible"
    SLO_UNREACHABLE = "SLOUnreachable"
    OVER_BUDGET = "OverBudget"
    NOT_JUDGED = "NotJudged"
    WAITING_FOR_SLICES = "WaitingForSlices"  # GPUs are being cut for it, or the plan for that is being made
    WAITING_FOR_CONSENT = "WaitingForConsent"  # a FleetPlan serves it once a person approves it
    EVALUATING = "Evaluating"  # only a format without an evaluation report would serve
    QUOTA_EXCEEDED = "QuotaExceeded"
    FAILED_CREATE = "FailedCreate"
    UNSCHEDULABLE = "Unschedulable"
    # Available
    MIN_REPLICAS_AVAILABLE = "MinReplicasAvailable"
    WAITING_FOR_PLACEMENT = "WaitingForPlacement"
    REPLICAS_STARTING = "ReplicasStarting"
    REPLICAS_NOT_STARTING = "ReplicasNotStarting"
    # Available and Ready: what the API server refused
    NAME_TAKEN = "NameTaken"
    FORBIDDEN = "Forbidden"
    REJECTED = "Rejected"
    # ScalingActive
    METRICS_FRESH = "MetricsFresh"
    METRICS_STALE = "MetricsStale"
    METRICS_MISSING = "MetricsMissing"
    NO_READY_REPLICAS = "NoReadyReplicas"
    DISABLED = "Disabled"
    REPLICAS_SET = "ReplicasSet"
    PAUSED = "Paused"
    # SLOMet
    WITHIN_TARGET = "WithinTarget"
    TTFT_EXCEEDED = "TTFTExceeded"
    TPOT_EXCEEDED = "TPOTExceeded"
    NO_TRAFFIC = "NoTraffic"
    INSUFFICIENT_SAMPLES = "InsufficientSamples"
    NO_OBJECTIVE = "NoObjective"
    # Ready, beside any of the above
    ALL_REPLICAS_READY = "AllReplicasReady"
    MIN_REPLICAS_READY = "MinReplicasReady"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    # Placed, Available and Ready of what is scaled to zero
    SCALED_TO_ZERO = "ScaledToZero"


PAUSED = "spec.paused is true: running replicas stay unchanged"
OFF = "spec.replicas is 0: no replica runs, no GPU is kept, and requests to its Service fail"
