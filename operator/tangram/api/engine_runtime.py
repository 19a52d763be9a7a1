"""`EngineRuntime`: a program that serves models, its command line and what LLMDeployments may add to it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from tangram.api.common.accepted_spec import AcceptedSpecStatus, parsed_in_force
from tangram.api.common.base import APIModel, list_field, optional
from tangram.api.common.labels import LABEL_VALUE, LONGEST_LABEL
from tangram.api.common.values import rule, validations
from tangram.api.llm_deployment.parse import explain, fields_of
from tangram.api.llm_deployment.status import Condition, Generation
from tangram.catalog.models.precision import PRECISIONS
from tangram.catalog.reading.field_path import dotted
from tangram.runtimes.checks import missing_options, runtime_problems, runtime_warnings
from tangram.runtimes.runtime import (
    BUNDLED,
    CoefficientsSource,
    EngineKind,
    EngineRuntime,
    InvalidEngineRuntime,
    MetricsDialect,
    RuntimeCoefficients,
    RuntimeMetrics,
    RuntimePod,
    RuntimeProbes,
    ServedCheckpoints,
)

MOST_WORDS = 128
MOST_OPTIONS = 64
LONGEST_WORD = 1024
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
# By digest: a tag may name another program tomorrow.
IMAGE_PATTERN = r"^[a-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}$"
PATH_PATTERN = r"^/[A-Za-z0-9._/-]*$"

IMAGE_HELP = "must be REGISTRY/NAME@sha256:DIGEST: a tag may name another program tomorrow"


def _pinned(image: str) -> str:
    if not re.fullmatch(IMAGE_PATTERN, image):
        raise ValueError(IMAGE_HELP)
    return image


def _known_precision(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"is {name!r}; must be one of {', '.join(PRECISIONS)}")
    return name


Image = Annotated[
    StrictStr,
    StringConstraints(max_length=512),
    AfterValidator(_pinned),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 512,
            **validations(rule(f"self.matches(r'{IMAGE_PATTERN}')", f"image {IMAGE_HELP}")),
        }
    ),
]
Word = Annotated[StrictStr, StringConstraints(min_length=1, max_length=LONGEST_WORD)]
FlagName = Annotated[
    StrictStr, StringConstraints(min_length=2, max_length=128, pattern=r"^-{1,2}[A-Za-z][A-Za-z0-9_-]*$")
]
VariableName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=128, pattern=VARIABLE_PATTERN)]
HTTPPath = Annotated[StrictStr, StringConstraints(min_length=1, max_length=256, pattern=PATH_PATTERN)]
ClassName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_]+$")]
PrecisionName = Annotated[
    StrictStr, AfterValidator(_known_precision), Field(json_schema_extra={"enum": list(PRECISIONS)})
]
Namespace = Annotated[
    StrictStr, StringConstraints(min_length=1, max_length=LONGEST_LABEL, pattern=LABEL_VALUE)
]


class VariableSpec(APIModel):
    """An environment variable."""

    name: VariableName = Field(description="Name of the variable.")
    value: Annotated[StrictStr, StringConstraints(max_length=LONGEST_WORD)] = Field(
        description="Its value, with holes as in arguments."
    )


class MetricsSpec(APIModel):
    """The metrics page of a replica."""

    path: HTTPPath = Field(default="/metrics", description="HTTP path of the page, on spec.port.")
    dialect: MetricsDialect = Field(
        default=MetricsDialect.VLLM,
        description="Names of the metrics: vLLM, SGLang, or those of NIM 1.x. NIM 2.x has those of the "
        "engine inside.",
    )


class ProbesSpec(APIModel):
    """Probes of a replica, and how long a start may take."""

    live: HTTPPath = Field(default="/health", description="HTTP path of the liveness probe.")
    ready: HTTPPath = Field(default="/health", description="HTTP path of startup and readiness probes.")
    start_seconds: Annotated[StrictInt, Field(ge=10, le=7200)] = Field(
        default=600, description="How long a start may take beside the loading of weights, in seconds."
    )
    load_mebibytes_per_second: Annotated[StrictInt, Field(ge=1, le=100_000)] = Field(
        default=100,
        description="Rate at which weights are loaded from the slowest volume that is used. The "
        "startup probe "
        "waits for startSeconds, and for the bytes of the model's weights at this rate.",
    )


class ServesSpec(APIModel):
    """The checkpoints that the runtime serves."""

    architectures: tuple[ClassName, ...] = list_field(
        256, "Classes in `architectures` of config.json. Empty: all that Tangram can size.", kind="set"
    )
    precisions: tuple[PrecisionName, ...] = list_field(
        32,
        "Precisions of the weights, as the checkpoint stores them, by the names of `tangram size`. "
        "Empty: all.",
        kind="set",
    )
    max_tensor_parallel: Annotated[StrictInt, Field(ge=1, le=8)] = Field(
        default=1, description="Most GPUs of one node that a replica may be split over."
    )


class CoefficientsSpec(APIModel):
    """The calibration by which prices, rates and latencies are predicted."""

    engine: Literal["vllm", "sglang", "trtllm"] | None = optional(
        "Engine of the calibration. Default: what all measured engines have in common."
    )
    version: Annotated[StrictStr, StringConstraints(max_length=64)] | None = optional(
        "Version of the calibration. Default: spec.version where it was measured, else the engine's."
    )
    source: CoefficientsSource = Field(
        default=CoefficientsSource.UNSOURCED,
        description="Measured: of this engine and version. CarriedOver: of another version or engine. "
        "Unsourced: neither.",
    )


_UNIQUE: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class EngineRuntimeSpec(APIModel):
    """A program that serves models."""

    engine: EngineKind = Field(
        description="The program: Tangram (the bundled engine), vLLM, SGLang or NIM. It decides "
        "which flags are "
        "checked and must be set."
    )
    version: Annotated[StrictStr, StringConstraints(min_length=1, max_length=64)] = Field(
        description="Version of the engine, of a NIM that of its image. Flags of a version that "
        "Tangram has a "
        "table of are checked before a pod starts."
    )
    image: Image | None = optional(
        "Image, by digest: REGISTRY/NAME@sha256:DIGEST. Default: none, and the runtime is off. The bundled "
        "engine runs the operator's own engine image."
    )
    command: tuple[Word, ...] = list_field(16, "Words of the command. Empty: the entrypoint of the image.")
    arguments: tuple[Word, ...] = list_field(
        MOST_WORDS,
        "Words of the command line, never read by a shell. A word may have holes in braces, which the plan "
        "fills: {modelPath}, {servedName}, {port}, {maxModelLen}, {maxRunningRequests}, {maxBatchedTokens}, "
        "{memoryShare}, {staticMemoryShare}, {tensorParallel}, {ttftEdges}, {tpotEdges}, {ttftEdgeWords}, "
        "{tpotEdgeWords}, {drainSeconds}, {cachePath} and {podUID}.",
    )
    arguments_variable: VariableName | None = optional(
        "Variable that holds the arguments as one text, for images that take no command line, such as "
        "NIM_PASSTHROUGH_ARGS. Default: they are arguments of the container."
    )
    variables: tuple[VariableSpec, ...] = Field(
        default=(),
        max_length=MOST_OPTIONS,
        description="Environment of the container.",
        json_schema_extra=_UNIQUE,
    )
    allowed_arguments: tuple[FlagName, ...] = list_field(
        MOST_OPTIONS, "Flags that LLMDeployments may add, in spec.runtime.arguments.", kind="set"
    )
    allowed_variables: tuple[VariableName, ...] = list_field(
        MOST_OPTIONS, "Variables that LLMDeployments may set, in spec.runtime.variables.", kind="set"
    )
    always_set: tuple[FlagName, ...] = list_field(
        MOST_OPTIONS,
        "Flags without which this spec is not accepted, beside those that the engine needs.",
        kind="set",
    )
    namespaces: tuple[Namespace, ...] = list_field(
        MOST_OPTIONS, "Namespaces whose LLMDeployments may use it. Empty: all.", kind="set"
    )
    port: Annotated[StrictInt, Field(ge=1024, le=65_535)] = Field(
        default=8000, description="Port of the API, of probes and of metrics."
    )
    metrics: MetricsSpec = Field(default_factory=MetricsSpec, description="The metrics page of a replica.")
    probes: ProbesSpec = Field(
        default_factory=ProbesSpec, description="Probes of a replica, and how long a start may take."
    )
    cache_path: HTTPPath | None = optional(
        "Directory of the container for compiled code and other caches: an empty volume of the pod."
    )
    shared_memory_mebibytes: Annotated[StrictInt, Field(ge=64, le=65_536)] = Field(
        default=1024,
        description="Size limit of /dev/shm for each GPU of a replica: ranks exchange through it.",
    )
    run_as_user: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = optional(
        "User and group of the container, never root. Default: those of the operator's settings."
    )
    writable_root_filesystem: StrictBool = Field(
        default=False,
        description="Whether the engine writes outside of its volumes. Other security settings stay.",
    )
    serves: ServesSpec = Field(
        default_factory=ServesSpec, description="The checkpoints that the runtime serves."
    )
    coefficients: CoefficientsSpec = Field(
        default_factory=CoefficientsSpec,
        description="The calibration by which prices, rates and latencies are predicted.",
    )


class RuntimeCondition(Condition):
    """One aspect of the state of an EngineRuntime."""

    type: Literal["Accepted", "Ready"] = Field(description="Name of the aspect.")


class EngineRuntimeStatus(APIModel):
    """Observed state, written by Tangram alone."""

    observed_generation: Generation | None = optional("Generation of the object that this status is about.")
    accepted_spec: AcceptedSpecStatus | None = optional(
        "The last spec that was accepted. It stays in force while the present one is not: Accepted says why."
    )
    conditions: tuple[RuntimeCondition, ...] = Field(
        default=(),
        max_length=4,
        description="Accepted: whether the spec is valid, and its flags are those of the version. Ready: "
        "whether replicas may be started: it has an image.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


def runtime_in_force(obj: Mapping[str, Any]) -> EngineRuntime | InvalidEngineRuntime:
    """Return an EngineRuntime; in place of an invalid spec, the last accepted one that the status has."""
    return parsed_in_force(obj, parse_engine_runtime, InvalidEngineRuntime)


def parse_engine_runtime(obj: Mapping[str, Any]) -> EngineRuntime | InvalidEngineRuntime:
    """Return an EngineRuntime with defaults filled in, or an `InvalidEngineRuntime` for user errors."""
    name = obj["metadata"]["name"]
    try:
        spec = EngineRuntimeSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return InvalidEngineRuntime(name, explain(error), fields_of(error))
    if (spec.engine is EngineKind.TANGRAM) != (name == BUNDLED):
        text = f"spec.engine is {spec.engine}: {BUNDLED!r} is the name of the bundled engine, and of no other"
        return InvalidEngineRuntime(name, text, (("spec", "engine"),))
    runtime = _runtime(name, spec)
    problems = chain(runtime_problems(runtime), missing_options(spec.always_set, runtime))
    problem = next(problems, None)
    if problem is not None:
        return InvalidEngineRuntime(name, f"{dotted(problem.field)}: {problem.text}", (problem.field,))
    return replace(runtime, warnings=runtime_warnings(runtime))


def _runtime(name: str, spec: EngineRuntimeSpec) -> EngineRuntime:
    probes, serves = spec.probes, spec.serves
    return EngineRuntime(
        name=name,
        kind=spec.engine,
        version=spec.version,
        image=spec.image or "",
        command=spec.command,
        arguments=spec.arguments,
        arguments_variable=spec.arguments_variable or "",
        variables=tuple((variable.name, variable.value) for variable in spec.variables),
        allowed_arguments=spec.allowed_arguments,
        allowed_variables=spec.allowed_variables,
        namespaces=tuple(sorted(spec.namespaces)),
        metrics=RuntimeMetrics(spec.metrics.path, spec.metrics.dialect),
        pod=RuntimePod(
            port=spec.port,
            probes=RuntimeProbes(
                probes.live, probes.ready, probes.start_seconds, probes.load_mebibytes_per_second
            ),
            cache_path=spec.cache_path or "",
            shm_mib=spec.shared_memory_mebibytes,
            run_as_user=spec.run_as_user,
            writable_root=spec.writable_root_filesystem,
        ),
        serves=ServedCheckpoints(
            tuple(sorted(serves.architectures)), tuple(sorted(serves.precisions)), serves.max_tensor_parallel
        ),
        coefficients=_coefficients(spec),
    )


def _coefficients(spec: EngineRuntimeSpec) -> RuntimeCoefficients:
    coefficients = spec.coefficients
    version = coefficients.version or spec.version if coefficients.engine else None
    return RuntimeCoefficients(coefficients.engine, version, coefficients.source)
