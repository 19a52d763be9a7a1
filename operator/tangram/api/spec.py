"""`LLMDeployment.spec`. Descriptions are what `kubectl explain` prints; something acts on every field."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, StrictBool, StrictInt, StrictStr, StringConstraints

from tangram.api.base import Model
from tangram.api.source import URI_HELP, URI_PATTERN, model_source
from tangram.fleet import MIGPolicy

MAX_REPLICAS = 1000
SERVED_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$"
SKU_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"

Percentile = Literal[50, 90, 95, 99]
Milliseconds = Annotated[StrictInt, Field(ge=1, le=600_000)]
SKU = Annotated[StrictStr, StringConstraints(min_length=1, max_length=63, pattern=SKU_PATTERN)]


def _known_uri(uri: str) -> str:
    model_source(uri)
    return uri


def _rule(rule: str, message: str) -> dict[str, JsonValue]:
    return {"rule": rule, "message": message}


class ModelSpec(Model):
    """The checkpoint to serve, and the name clients know it by."""

    uri: Annotated[StrictStr, AfterValidator(_known_uri)] = Field(
        min_length=1,
        max_length=512,
        description="Where the checkpoint lies: a directory with config.json, tokenizer and safetensors "
        "files. image:///dir is a directory inside the engine image; pvc://claim/dir is a directory on a "
        "PersistentVolumeClaim of this namespace, mounted read-only.",
        json_schema_extra={
            "x-kubernetes-validations": [_rule(f"self.matches(r'{URI_PATTERN}')", f"model.uri {URI_HELP}")]
        },
    )
    served_name: StrictStr | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The model name that clients send in requests, and the label model_name of its metrics. "
        "It must be unique within the namespace: of two LLMDeployments with one name the older is served. "
        "Default: the "
        "name of this object.",
        json_schema_extra={
            "x-kubernetes-validations": [
                _rule(
                    f"self.matches(r'{SERVED_NAME_PATTERN}')",
                    "model.servedName must be letters, digits and . _ / : - only, and begin and end with a "
                    "letter or digit",
                )
            ]
        },
    )


class EngineSpec(Model):
    """How each replica of the engine runs."""

    max_model_len: StrictInt | None = Field(
        default=None,
        ge=16,
        le=1_048_576,
        description="Longest request in tokens, prompt and answer together. Every replica keeps room for at "
        "least one such request in its KV cache, so a smaller value fits smaller GPUs. Default, and upper "
        "bound: what "
        "the "
        "checkpoint says (max_position_embeddings).",
    )
    max_running_requests: StrictInt = Field(
        default=64,
        ge=1,
        le=4096,
        description="How many requests one replica computes at a time; others wait in its queue.",
    )


class ObjectiveSpec(Model):
    """A latency objective: `percentile` of all requests take at most `milliseconds`."""

    percentile: Percentile = Field(
        default=90,
        description="Share of requests, in percent, that must meet the objective: 50, 90, 95 or 99.",
    )
    milliseconds: Milliseconds = Field(
        description="The longest acceptable time in milliseconds. It is checked at the nearest histogram "
        "bucket edge at or below it (status tells which).",
    )


class ObjectivesSpec(Model):
    """Latency objectives, each optional."""

    ttft: ObjectiveSpec | None = Field(
        default=None,
        description="Time to first token: from the arrival of a request at the engine to its first token.",
    )
    tpot: ObjectiveSpec | None = Field(
        default=None,
        description="Time per output token after the first, averaged over each request. A shape that cannot "
        "read the weights this fast is not used.",
    )


_SKU_LIST: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}


class PlacementSpec(Model):
    """Which hardware may be used."""

    allowed_skus: tuple[SKU, ...] = Field(
        default=(),
        alias="allowedSKUs",
        max_length=32,
        description="GPU models that may be used, by their names in the catalog (for instance "
        "H100-80GB-SXM). Empty: all that the catalog knows.",
        json_schema_extra=_SKU_LIST,
    )
    denied_skus: tuple[SKU, ...] = Field(
        default=(),
        alias="deniedSKUs",
        max_length=32,
        description="GPU models that must not be used, by their names in the catalog.",
        json_schema_extra=_SKU_LIST,
    )
    mig: MIGPolicy = Field(
        default=MIGPolicy.ALLOWED,
        description="Whether replicas may (Allowed), must (Required) or must not (Forbidden) run on MIG "
        "slices.",
    )


class ScalingSpec(Model):
    """Between how many replicas the number may move."""

    min: StrictInt = Field(
        default=1, ge=1, le=MAX_REPLICAS, description="Fewest replicas. Never fewer are left on purpose."
    )
    max: StrictInt | None = Field(
        default=None,
        ge=1,
        le=MAX_REPLICAS,
        description="Most replicas. Default: min, which means a fixed number.",
    )


# The API server then fills in the defaults of the fields inside, so that `kubectl get -o yaml` shows what is
# in force.
_SHOW_DEFAULTS: dict[str, JsonValue] = {"default": {}}


class LLMDeploymentSpec(Model):
    """What a person wants."""

    model: ModelSpec = Field(description="The checkpoint to serve, and the name clients know it by.")
    engine: EngineSpec = Field(
        default_factory=EngineSpec,
        description="How each replica of the engine runs.",
        json_schema_extra=_SHOW_DEFAULTS,
    )
    objectives: ObjectivesSpec = Field(
        default_factory=ObjectivesSpec,
        description="Latency objectives. Without any, the cheapest shape that fits is taken and only queues "
        "make replicas grow.",
    )
    placement: PlacementSpec = Field(
        default_factory=PlacementSpec,
        description="Which hardware may be used.",
        json_schema_extra=_SHOW_DEFAULTS
        | {
            "x-kubernetes-validations": [
                _rule(
                    "!has(self.allowedSKUs) || !has(self.deniedSKUs) || !self.allowedSKUs.exists(sku, sku "
                    "in self.deniedSKUs)",
                    "a SKU is in both placement.allowedSKUs and placement.deniedSKUs; remove it from one of "
                    "them",
                )
            ]
        },
    )
    scaling: ScalingSpec = Field(
        default_factory=ScalingSpec,
        description="Between how many replicas the number may move.",
        json_schema_extra=_SHOW_DEFAULTS
        | {
            "x-kubernetes-validations": [
                _rule(
                    "!has(self.max) || self.min <= self.max",
                    "scaling.min must not be above scaling.max; raise max or lower min",
                )
            ]
        },
    )
    paused: StrictBool = Field(
        default=False,
        description="While true nothing of this LLMDeployment is created, changed or removed; its status is "
        "kept up.",
    )


NAME_RULE = _rule(
    "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be at most 40 characters of a-z, 0-9 and '-', begin with a letter and not end with "
    "'-': "
    "it names a Service and Deployments",
)
