"""`LLMDeployment.spec`. `kubectl explain` prints the descriptions; every field has an effect."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StrictBool, StrictInt, StrictStr

from tangram.api.common.base import APIModel, list_field, optional
from tangram.api.common.runtime_request import RuntimeSpec
from tangram.api.common.values import (
    AS_STORED,
    MAX_REPLICAS,
    SKU,
    WEIGHT_FORMATS,
    Budget,
    PoolName,
    PriorityClassName,
    Rate,
    Share,
    rule,
    validations,
    weight_format,
    whole,
)
from tangram.api.llm_deployment.evaluation import PrecisionToleranceSpec
from tangram.api.llm_deployment.host_resources import HostResourcesSpec
from tangram.api.llm_deployment.lengths import LENGTHS_RULES, LengthsSpec
from tangram.api.llm_deployment.pod_metadata import PodMetadataSpec
from tangram.api.llm_deployment.secret_key import SecretKeySpec, SecretRefSpec
from tangram.api.llm_deployment.source import (
    FETCHED_SCHEMES,
    REVISION_HELP,
    REVISION_PATTERN,
    URI_HELP,
    URI_PATTERN,
    model_source,
)
from tangram.fleet import (
    DEFAULT_PERCENTILE,
    DEFAULT_REQUEST_S,
    DEFAULT_RUNNING_REQUESTS,
    MIGPolicy,
    Percentile,
)

TENSOR_PARALLEL_ON_SLICES = (
    "placement.mig Required needs 1 in placement.tensorParallel: a replica on a MIG slice is never split"
)
LONGER_THAN_CONTEXT = (
    "traffic.inputTokens and traffic.outputTokens together must not be above engine.maxModelLen: lower them "
    "or raise it"
)
OPTIONS_WITHOUT_NAME = (
    "runtime.arguments and runtime.variables need runtime.name: each EngineRuntime lists its own"
)
LONGEST_LLM_DEPLOYMENT_NAME = 40  # it begins the names of Deployments
LLM_DEPLOYMENT_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_HELP = (
    f"must be at most {LONGEST_LLM_DEPLOYMENT_NAME} characters of a-z, 0-9 and '-', begin with a letter and "
    "not end with '-'"
)
MIN_ABOVE_MAX = (
    "scaling.minReplicas must not be above scaling.maxReplicas; raise maxReplicas or lower minReplicas"
)
SERVED_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$"
SERVED_NAME_HELP = "must be letters, digits and . _ / : - only, and begin and end with a letter or digit"

Milliseconds = Annotated[StrictInt, Field(ge=1, le=600_000)]
TensorParallel = Annotated[Literal[1, 2, 4, 8], BeforeValidator(whole)]


def _known_uri(uri: str) -> str:
    model_source(uri)
    return uri


class ModelSpec(APIModel):
    """The checkpoint to serve, and its name in requests of clients."""

    uri: Annotated[StrictStr, AfterValidator(_known_uri)] = Field(
        min_length=1,
        max_length=512,
        description="Where the checkpoint lies: a directory with config.json, tokenizer and safetensors "
        "files. hf://organisation/name[@revision] is a repository of a hub, s3://bucket/prefix are objects "
        "of a store, oci://registry/repository[:tag|@digest] is an image or artifact of a registry: facts "
        "are read first, and each pod fetches the files before it starts. "
        "pvc://claim/dir is a directory on a PersistentVolumeClaim of this namespace, mounted read-only. "
        "image:///dir is a directory inside the engine image.",
        json_schema_extra=validations(rule(f"self.matches(r'{URI_PATTERN}')", f"model.uri {URI_HELP}")),
    )
    revision: StrictStr | None = optional(
        "Branch, tag, commit or digest of a repository, instead of one in model.uri. A name that moves is "
        "pinned to the commit or digest that it means when the checkpoint is inspected: "
        "status.model.revision. Default: the default branch, or the tag latest. Of objects in a store: the "
        "pin of status.model.revision, so that others are not served.",
        min_length=1,
        max_length=128,
        json_schema_extra=validations(
            rule(f"self.matches(r'{REVISION_PATTERN}')", f"model.revision {REVISION_HELP}")
        ),
    )
    secret_ref: SecretRefSpec | None = optional(
        "Secret of this namespace with what a repository demands of its readers. hf://: key token (or "
        "HF_TOKEN). s3://: keys AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if any, AWS_SESSION_TOKEN. "
        "oci://: key .dockerconfigjson, as `kubectl create secret docker-registry` makes it. "
        "It is read by the pods that inspect and fetch, not by Tangram. A change replaces the pods. Default: "
        "the repository is public."
    )
    served_name: StrictStr | None = optional(
        "The model name that clients send in requests, and the label model_name of its metrics. It must "
        "be unique within the namespace: of two LLMDeployments with one name, the older is served. "
        "Default: the name of this object.",
        min_length=1,
        max_length=128,
        json_schema_extra=validations(
            rule(f"self.matches(r'{SERVED_NAME_PATTERN}')", f"model.servedName {SERVED_NAME_HELP}")
        ),
    )


class EngineSpec(APIModel):
    """How each replica of the engine runs."""

    max_model_len: StrictInt | None = optional(
        "Longest request in tokens, input (prompt) and output (answer) together. Every replica keeps room "
        "for at least one such request in its KV cache, so a smaller value fits smaller GPUs. Default and "
        "upper bound: max_position_embeddings of the checkpoint.",
        ge=16,
        le=1_048_576,
    )
    max_running_requests: StrictInt = Field(
        default=DEFAULT_RUNNING_REQUESTS,
        ge=1,
        le=4096,
        description="Most requests that one replica processes at a time. Further requests wait in its queue.",
    )
    max_request_seconds: StrictInt = Field(
        default=DEFAULT_REQUEST_S,
        ge=10,
        le=86_400,
        description="Longest duration of one request in seconds. The engine ends a request that takes "
        "longer. It also sets the termination grace period of the pods, 15 seconds above it, so that "
        "accepted requests are finished. A change replaces the pods.",
    )
    precision: Annotated[StrictStr, AfterValidator(weight_format)] = Field(
        default=AS_STORED,
        description="Precision in which the weights are served. AsStored: that of the checkpoint. Any: "
        "the cheapest precision that meets the objectives. The engine may quantise to fp8 or int4 for "
        "it, once a Job has compared that precision with the checkpoint's own on that GPU model, and the "
        "figures are within precisionTolerance. A named precision is used without a comparison. The "
        "engine serves the precision of the checkpoint, and fp8 and int4 of 16-bit checkpoints. `tangram "
        "plan` plans all precisions.",
        json_schema_extra={"enum": list(WEIGHT_FORMATS)},
    )
    precision_tolerance: PrecisionToleranceSpec | None = optional(
        "How far a quantised precision may be from the checkpoint's own. It applies where precision is Any. "
        "Default: perplexity at most 2 percent higher, and the same token first at 95 percent of "
        "positions."
    )
    kv_cache_precision: Literal["bf16", "fp8"] = Field(
        default="bf16",
        description="Precision of the KV cache: bf16 (16 bit), or fp8, which holds twice the tokens. The "
        "engine has 16 bit only, so the operator does not place fp8 yet. `tangram plan` plans it.",
    )
    resources: HostResourcesSpec = Field(
        default_factory=HostResourcesSpec,
        description="CPU and memory of the host for each replica. Default: the replica's share of the "
        "operator's settings cpuPerGPU and memoryPerGPU, which are for a whole GPU. The upper bound is "
        "the replica's share of maxCPUPerGPU and maxMemoryPerGPU (default: cpuPerGPU and memoryPerGPU). "
        "A GPU or slice whose share is smaller is not used. Requests above these settings are not "
        "Accepted, with the reason AboveLimit. A change replaces the pods.",
    )
    api_key_secret_ref: SecretKeySpec | None = optional(
        "Secret with the API keys that clients must send (Authorization: Bearer KEY). It is in the "
        "namespace of this object. The value of its key has one API key per line, each of 8 to 512 "
        "characters without blanks. Lines that begin with # are skipped. Any of the API keys is "
        "accepted. A change of the Secret reaches running pods within two minutes, without a restart. A "
        "change of this reference replaces the pods. Pods wait while the Secret is missing. /metrics and "
        "the probes need no API key. Default: requests need no API key."
    )


class ObjectiveSpec(APIModel):
    """A latency objective: `percentile` of all requests take at most `milliseconds`."""

    percentile: Percentile = Field(
        default=DEFAULT_PERCENTILE,
        description="Share of requests, in percent, that must meet the objective: 50, 90, 95 or 99.",
    )
    milliseconds: Milliseconds = Field(
        description="Longest acceptable time in milliseconds. It is measured at the nearest histogram "
        "bucket edge at or below it. The condition SLOMet names the edge."
    )


class ObjectivesSpec(APIModel):
    """Latency objectives, each optional."""

    ttft: ObjectiveSpec | None = optional(
        "Time to first token: from the arrival of a request at the engine to its first token."
    )
    tpot: ObjectiveSpec | None = optional(
        "Time per output token after the first, averaged over each request. A GPU or slice whose memory "
        "cannot be read this fast is not used."
    )


class TrafficSpec(APIModel):
    """Expected traffic, until traffic is measured."""

    requests_per_second: Rate | None = optional(
        'Requests per second, of all replicas together: a decimal in quotes, such as "0.5", or a whole '
        "number. Default: scaling.minReplicas replicas are planned until traffic is measured."
    )
    input_tokens: LengthsSpec | None = optional(
        "Input (prompt) tokens of a request: {mean: 1024}, {mean: 1024, p90: 1500} or {fixed: 1024}. "
        "Default: mean 1024, or less where the model's context is shorter than 2560 tokens.",
        json_schema_extra=LENGTHS_RULES,
    )
    output_tokens: LengthsSpec | None = optional(
        "Output (answer) tokens of a request: {mean: 256}, {mean: 256, p90: 300} or {fixed: 256}. Default: "
        "mean 256, or less where the model's context is shorter than 2560 tokens.",
        json_schema_extra=LENGTHS_RULES,
    )


class SpreadSpec(APIModel):
    """How many replicas may be lost with one node or zone."""

    node: Share = Field(
        default=1.0,
        description="Largest share of the replicas on one node, a decimal in quotes above 0 and at most 1, "
        'rounded up to whole replicas. "0.5": with four replicas at most two. "1": no limit.',
        json_schema_extra={"default": "1"},
    )
    zone: Share = Field(
        default=1.0,
        description="Largest share of the replicas in one zone (label topology.kubernetes.io/zone), a "
        'decimal in quotes above 0 and at most 1, rounded up to whole replicas. "1": no limit.',
        json_schema_extra={"default": "1"},
    )


class PlacementSpec(APIModel):
    """Which hardware may be used."""

    allowed_skus: tuple[SKU, ...] = list_field(
        32,
        "GPU models that may be used, by their names in the catalog (for instance H100-80GB-SXM). Empty: all "
        "of the catalog.",
        kind="set",
        alias="allowedSKUs",
    )
    denied_skus: tuple[SKU, ...] = list_field(
        32, "GPU models that must not be used, by their names in the catalog.", kind="set", alias="deniedSKUs"
    )
    mig: MIGPolicy = Field(
        default=MIGPolicy.ALLOWED,
        description="Whether replicas may (Allowed), must (Required) or must not (Forbidden) run on MIG "
        "slices.",
    )
    pools: tuple[PoolName, ...] = list_field(
        32, "Names of the GPUPools on whose nodes replicas may run. Empty: on any node.", kind="set"
    )
    tensor_parallel: tuple[TensorParallel, ...] = list_field(
        4,
        "Numbers of GPUs of one node that a replica may be split over, by tensor parallelism or in stages: "
        "any of 1, 2, 4 and 8. Empty: any number. The bundled engine runs on one GPU or slice; runtimes "
        "split a model over several.",
        kind="set",
    )
    spread: SpreadSpec | None = optional(
        "Largest share of the replicas that may be lost with one node or zone."
    )
    budget_per_hour: Budget | None = optional(
        'Most USD per hour that all replicas together may cost: a decimal in quotes, such as "12.50", or a '
        "whole number. A slice costs its dominant share (compute or memory) of its GPU. Replicas above the "
        "budget are not placed, and the condition Placed reports it."
    )


class ScalingSpec(APIModel):
    """Bounds of the number of replicas."""

    min_replicas: StrictInt = Field(
        default=1,
        ge=1,
        le=MAX_REPLICAS,
        description="Fewest replicas. Tangram never goes below it, unless spec.replicas does. The condition "
        "Available is False while fewer serve.",
    )
    max_replicas: StrictInt | None = optional(
        "Most replicas. Default: minReplicas, which means a fixed number.", ge=1, le=MAX_REPLICAS
    )


# The API server then fills in the defaults of the fields inside, so that `kubectl get -o yaml` shows what is
# in force.
_SHOW_DEFAULTS: dict[str, JsonValue] = {"default": {}}


REVISION_OF_REPOSITORY = "model.revision is of a repository: model.uri must begin with hf://, s3:// or oci://"
REVISION_TWICE = "model.uri has a revision already: remove it there, or remove model.revision"
SECRET_OF_REPOSITORY = "model.secretRef is for a repository: model.uri must begin with hf://, s3:// or oci://"  # noqa: S105
_IS_FETCHED = " || ".join(f"self.uri.startsWith('{scheme}://')" for scheme in FETCHED_SCHEMES)
_MODEL_RULES = validations(
    rule(f"!has(self.revision) || {_IS_FETCHED}", REVISION_OF_REPOSITORY),
    rule(
        "!has(self.revision) || !self.uri.contains('@') && !self.uri.matches(r'^oci://[^/]+/.*:')",
        REVISION_TWICE,
    ),
    rule(f"!has(self.secretRef) || {_IS_FETCHED}", SECRET_OF_REPOSITORY),
)
_PLACEMENT_RULES = validations(
    rule(
        "!has(self.allowedSKUs) || !has(self.deniedSKUs) || !self.allowedSKUs.exists(sku, sku in "
        "self.deniedSKUs)",
        "a SKU is in both placement.allowedSKUs and placement.deniedSKUs; remove it from one of them",
    ),
    rule(
        "self.mig != 'Required' || !has(self.tensorParallel) || self.tensorParallel.size() == 0 || 1 in "
        "self.tensorParallel",
        TENSOR_PARALLEL_ON_SLICES,
    ),
)


class LLMDeploymentSpec(APIModel):
    """The desired state of an LLMDeployment."""

    model: ModelSpec = Field(
        description="The checkpoint to serve, and its name in requests of clients.",
        json_schema_extra=_MODEL_RULES,
    )
    engine: EngineSpec = Field(
        default_factory=EngineSpec,
        description="Settings of the inference engine, the same for each replica.",
        json_schema_extra=_SHOW_DEFAULTS,
    )
    runtime: RuntimeSpec = Field(
        default_factory=RuntimeSpec,
        description="Which runtime serves the model: the bundled engine, or another program that an "
        "administrator has described in an EngineRuntime.",
        json_schema_extra=validations(
            rule(
                "has(self.name) || (!has(self.arguments) || self.arguments.size() == 0) && "
                "(!has(self.variables) || self.variables.size() == 0)",
                OPTIONS_WITHOUT_NAME,
            )
        ),
    )
    objectives: ObjectivesSpec = Field(
        default_factory=ObjectivesSpec,
        description="Latency objectives. Without any, the cheapest GPU or slice that the model fits is used, "
        "and replicas are added only when requests queue.",
    )
    traffic: TrafficSpec = Field(
        default_factory=TrafficSpec,
        description="Expected traffic, for the time before any is measured. It sizes the first replicas "
        "and ranks GPUs and slices. After that, measured traffic decides the number of replicas.",
    )
    placement: PlacementSpec = Field(
        default_factory=PlacementSpec,
        description="Which hardware may be used.",
        json_schema_extra=_SHOW_DEFAULTS | _PLACEMENT_RULES,
    )
    scaling: ScalingSpec = Field(
        default_factory=ScalingSpec,
        description="Bounds of the number of replicas while Tangram scales. They do not apply while "
        "spec.replicas is set.",
        json_schema_extra=_SHOW_DEFAULTS
        | validations(rule("!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas", MIN_ABOVE_MAX)),
    )
    replicas: Annotated[StrictInt, Field(ge=0, le=MAX_REPLICAS)] | None = optional(
        "Number of replicas, set by a person, `kubectl scale`, a HorizontalPodAutoscaler or KEDA. While "
        "it is set, Tangram does not scale, and scaling.minReplicas and scaling.maxReplicas do not "
        "apply. 0: no replica runs and no GPU is kept. Default: unset. Tangram does not set it, and "
        "scales between scaling.minReplicas and scaling.maxReplicas. `tangram scale NAME --auto` unsets "
        "it."
    )
    priority_class_name: PriorityClassName | None = optional(
        "PriorityClass of the engine pods. Where GPUs are scarce, the LLMDeployment whose class has the "
        "higher value gets them first, and of equal values the older one. Running replicas are not taken "
        "away for others. The class must have preemptionPolicy Never and the label "
        'tangram.dev/priority-class: "true", which an administrator sets. The Helm chart brings '
        "tangram-low, tangram-standard and tangram-high. A change is used in planning at once and "
        "reaches pods with the next rollout. Default: the operator's defaultPriorityClassName."
    )
    metadata: PodMetadataSpec = Field(
        default_factory=PodMetadataSpec,
        description="Labels and annotations of engine pods, beside Tangram's own.",
    )
    paused: StrictBool = Field(
        default=False,
        description="While true, Tangram creates, changes and removes nothing for this LLMDeployment, except "
        "its status.",
    )


def _expected(field: str) -> str:
    """Return the CEL of the mean length in `traffic`, 0 without one."""
    lengths = f"self.traffic.{field}"
    mean, same = (f"has({lengths}.{form}) ? {lengths}.{form}" for form in ("mean", "fixed"))
    return f"(has({lengths}) ? ({mean} : ({same} : 0)) : 0)"


TRAFFIC_RULE = rule(
    "!has(self.traffic) || !has(self.engine) || !has(self.engine.maxModelLen) || "
    f"{_expected('inputTokens')} + {_expected('outputTokens')} <= self.engine.maxModelLen",
    LONGER_THAN_CONTEXT,
)
NAME_RULE = rule(
    f"self.metadata.name.size() <= {LONGEST_LLM_DEPLOYMENT_NAME} && "
    f"self.metadata.name.matches('{LLM_DEPLOYMENT_NAME_PATTERN}')",
    f"metadata.name {NAME_HELP}: it names a Service and Deployments",
)
