"""Parse an LLMDeployment as the API server stores it: an `Intent`, or a message about what is wrong."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from tangram.api.common.priority import PriorityClasses, with_priority
from tangram.api.common.runtime_request import RuntimeSpec
from tangram.api.llm_deployment.evaluation import PrecisionToleranceSpec
from tangram.api.llm_deployment.lengths import LengthsSpec
from tangram.api.llm_deployment.pod_metadata import metadata_refusal
from tangram.api.llm_deployment.replicas_set_by import replicas_set_by
from tangram.api.llm_deployment.revision import revision
from tangram.api.llm_deployment.source import LONGEST_URI, REVISION_HELP, REVISION_PATTERN, model_source
from tangram.api.llm_deployment.spec import (
    LLM_DEPLOYMENT_NAME_PATTERN,
    LONGER_THAN_CONTEXT,
    LONGEST_LLM_DEPLOYMENT_NAME,
    MIN_ABOVE_MAX,
    NAME_HELP,
    OPTIONS_WITHOUT_NAME,
    REVISION_OF_REPOSITORY,
    REVISION_TWICE,
    SECRET_OF_REPOSITORY,
    SERVED_NAME_HELP,
    SERVED_NAME_PATTERN,
    TENSOR_PARALLEL_ON_SLICES,
    LLMDeploymentSpec,
    ModelSpec,
    ObjectiveSpec,
    PlacementSpec,
    SpreadSpec,
)
from tangram.catalog import gpu
from tangram.catalog.lookup import unknown_gpu
from tangram.catalog.reading.field_path import FieldPath, dotted
from tangram.fleet import (
    HostResources,
    Intent,
    InvalidIntent,
    Lengths,
    MIGPolicy,
    Objective,
    ParsedIntent,
    SecretKey,
    Spread,
    Traffic,
)
from tangram.fleet.lengths import around, fixed
from tangram.fleet.times import epoch

_MESSAGE_LIMIT = 1000
_Value = TypeVar("_Value", str, int)
_NO_CLASSES = PriorityClasses()
_PLAIN_MESSAGES = {  # in place of pydantic's messages in terms of Python
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "too_short": "must not be empty",
}
_PLACEMENT = ("spec", "placement")
_MIN_AND_MAX = (("spec", "scaling", "minReplicas"), ("spec", "scaling", "maxReplicas"))
_LENGTHS = (
    ("spec", "traffic", "inputTokens"),
    ("spec", "traffic", "outputTokens"),
    ("spec", "engine", "maxModelLen"),
)
_SLICES = ((*_PLACEMENT, "mig"), (*_PLACEMENT, "tensorParallel"))
_NAME = re.compile(LLM_DEPLOYMENT_NAME_PATTERN.strip("^$"))
_REVISION = re.compile(REVISION_PATTERN.strip("^$"))
_SERVED_NAME = re.compile(SERVED_NAME_PATTERN.strip("^$"))


def parse(
    obj: Mapping[str, Any],
    classes: PriorityClasses = _NO_CLASSES,
    pod_metadata_keys: Collection[str] | None = None,
) -> ParsedIntent:
    """Return the intent of `obj`, defaults filled in. Never raises for user errors: see `InvalidIntent`.

    `classes`: the PriorityClasses of the cluster. `pod_metadata_keys`: those that the operator's setting
    lists; None: the setting is not known. A class or a key that may not be used is the intent's `refusal`.

    The CRD's rules already refuse nearly all of this; they are checked again because an object may be older
    than a rule.
    """
    name, identity = obj["metadata"]["name"], _identity(obj["metadata"])
    try:
        spec = LLMDeploymentSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return InvalidIntent(**identity, message=explain(error), fields=fields_of(error))
    problem = _problem(name, spec)
    if problem is not None:
        return InvalidIntent(**identity, message=problem.message, fields=problem.fields)
    intent = _with_replicas(_intent(identity, spec), obj, spec)
    intent = _with_pods(_with_placement(intent, spec.placement), spec)
    intent = with_priority(intent, classes.resolve(spec.priority_class_name))
    if pod_metadata_keys is None or intent.refusal is not None:
        return intent
    return replace(intent, refusal=metadata_refusal(spec.metadata, pod_metadata_keys))


def _identity(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an intent that name its object."""
    return {
        "uid": meta["uid"],
        "namespace": meta["namespace"],
        "name": meta["name"],
        "generation": meta.get("generation", 1),
        "created_at": epoch(meta["creationTimestamp"]),
    }


def _intent(identity: Mapping[str, Any], spec: LLMDeploymentSpec) -> Intent:
    """Return an intent with the model, what it has to serve, and what it may run on."""
    model, engine, scaling, placement = spec.model, spec.engine, spec.scaling, spec.placement
    traffic = spec.traffic
    return Intent(
        **identity,
        model_uri=_pinnable_uri(model),
        model_secret="" if model.secret_ref is None else model.secret_ref.name,
        served_name=model.served_name or identity["name"],
        max_model_len=engine.max_model_len,
        max_running_requests=engine.max_running_requests,
        ttft=_objective(spec.objectives.ttft),
        tpot=_objective(spec.objectives.tpot),
        allowed_skus=_sorted(placement.allowed_skus),
        denied_skus=_sorted(placement.denied_skus),
        mig=placement.mig,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.min_replicas if scaling.max_replicas is None else scaling.max_replicas,
        paused=spec.paused,
        traffic=Traffic(
            traffic.requests_per_second, _lengths(traffic.input_tokens), _lengths(traffic.output_tokens)
        ),
    )


def _with_replicas(intent: Intent, obj: Mapping[str, Any], spec: LLMDeploymentSpec) -> Intent:
    """Return the intent with its revision, and with the number of replicas where one is set from outside."""
    intent, replicas = replace(intent, revision=revision(obj)), spec.replicas
    if replicas is None:
        return intent
    return replace(
        intent,
        min_replicas=replicas,
        max_replicas=replicas,
        replicas=replicas,
        replicas_set_by=replicas_set_by(obj),
        min_available=min(replicas, spec.scaling.min_replicas),
    )


def _with_placement(intent: Intent, placement: PlacementSpec) -> Intent:
    """Return the intent with what confines the choice of shapes and nodes."""
    spread = placement.spread or SpreadSpec()
    return replace(
        intent,
        pools=_sorted(placement.pools),
        tensor_parallel=_sorted(placement.tensor_parallel),
        spread=Spread(spread.node, spread.zone),
        budget_per_hour=placement.budget_per_hour,
    )


def _with_pods(intent: Intent, spec: LLMDeploymentSpec) -> Intent:
    """Return the intent with what its engine pods are made of."""
    engine, metadata, api_keys = spec.engine, spec.metadata, spec.engine.api_key_secret_ref
    requests = engine.resources.requests
    return replace(
        intent,
        max_request_s=engine.max_request_seconds,
        precision=engine.precision,
        tolerance=(engine.precision_tolerance or PrecisionToleranceSpec()).to_noun(),
        kv_precision=engine.kv_cache_precision,
        resources=HostResources(requests.cpu, requests.memory),
        api_keys=SecretKey(api_keys.name, api_keys.key) if api_keys else None,
        pod_labels=tuple(sorted(metadata.labels.items())),
        pod_annotations=tuple(sorted(metadata.annotations.items())),
        runtime=spec.runtime.to_noun(),
    )


def _sorted(values: Iterable[_Value]) -> tuple[_Value, ...]:
    """Return each value once."""
    return tuple(sorted(set(values)))


def _pinnable_uri(model: ModelSpec) -> str:
    """Return `model.uri` with `model.revision`."""
    return model.uri if model.revision is None else model_source(model.uri).at(model.revision)


class _SpecProblem(NamedTuple):
    """A rule that a spec breaks."""

    message: str  # with the first field's path and what to do
    fields: tuple[FieldPath, ...]


def _problem(name: str, spec: LLMDeploymentSpec) -> _SpecProblem | None:
    """Return the first broken rule across fields."""
    scaling = spec.scaling
    if len(name) > LONGEST_LLM_DEPLOYMENT_NAME or not _NAME.fullmatch(name):
        return _SpecProblem(f"metadata.name {name!r} {NAME_HELP}", (("metadata", "name"),))
    if spec.model.served_name is not None and not _SERVED_NAME.fullmatch(spec.model.served_name):
        return _SpecProblem(f"spec.model.servedName {SERVED_NAME_HELP}", (("spec", "model", "servedName"),))
    if scaling.max_replicas is not None and scaling.min_replicas > scaling.max_replicas:
        low, high = scaling.min_replicas, scaling.max_replicas
        return _SpecProblem(f"spec.{MIN_ABOVE_MAX} ({low} > {high})", _MIN_AND_MAX)
    if problem := _model_problem(spec.model) or _runtime_problem(spec.runtime):
        return problem
    lengths = (spec.traffic.input_tokens, spec.traffic.output_tokens)
    expected = sum(length.expected for length in lengths if length is not None)
    if spec.engine.max_model_len is not None and expected > spec.engine.max_model_len:
        text = f"spec.{LONGER_THAN_CONTEXT} ({expected} > {spec.engine.max_model_len})"
        return _SpecProblem(text, _LENGTHS)
    return _placement_problem(spec.placement)


def _model_problem(model: ModelSpec) -> _SpecProblem | None:
    is_repository, has_revision = model_source(model.uri).is_fetched, model.revision is not None
    uri, revision, secret = (("spec", "model", name) for name in ("uri", "revision", "secretRef"))
    if has_revision and not is_repository:
        return _SpecProblem(f"spec.{REVISION_OF_REPOSITORY}", (revision, uri))
    if has_revision and model_source(model.uri).revision:
        return _SpecProblem(f"spec.{REVISION_TWICE}", (revision, uri))
    if has_revision and not _REVISION.fullmatch(model.revision or ""):
        return _SpecProblem(f"spec.model.revision {REVISION_HELP}", (revision,))
    if len(_pinnable_uri(model)) > LONGEST_URI:
        text = f"spec.model.uri and model.revision have more than {LONGEST_URI} characters: shorten them"
        return _SpecProblem(text, (uri, revision))
    if model.secret_ref is not None and not is_repository:
        return _SpecProblem(f"spec.{SECRET_OF_REPOSITORY}", (secret, uri))
    return None


def _runtime_problem(runtime: RuntimeSpec) -> _SpecProblem | None:
    if runtime.name is None and (runtime.arguments or runtime.variables):
        return _SpecProblem(f"spec.{OPTIONS_WITHOUT_NAME}", (("spec", "runtime", "name"),))
    return None


def _placement_problem(placement: PlacementSpec) -> _SpecProblem | None:
    in_both = sorted(set(placement.allowed_skus) & set(placement.denied_skus))
    if in_both:
        message = f"spec.placement: {in_both[0]} is both allowed and denied; remove it from one of the lists"
        return _SpecProblem(message, _items(placement, in_both[0]))
    for sku in (*placement.allowed_skus, *placement.denied_skus):
        if gpu(sku) is None:
            fields = _items(placement, sku)
            return _SpecProblem(str(unknown_gpu(sku, dotted(fields[0][:-1]))), fields)
    if (
        placement.mig is MIGPolicy.REQUIRED
        and placement.tensor_parallel
        and 1 not in placement.tensor_parallel
    ):
        return _SpecProblem(f"spec.{TENSOR_PARALLEL_ON_SLICES}", _SLICES)
    return None


def _items(placement: PlacementSpec, sku: str) -> tuple[FieldPath, ...]:
    """Return where a SKU stands in the lists."""
    lists = (("allowedSKUs", placement.allowed_skus), ("deniedSKUs", placement.denied_skus))
    return tuple((*_PLACEMENT, field, skus.index(sku)) for field, skus in lists if sku in skus)


def _objective(spec: ObjectiveSpec | None) -> Objective | None:
    return Objective(spec.percentile, spec.milliseconds) if spec else None


def _lengths(spec: LengthsSpec | None) -> Lengths | None:
    if spec is None:
        return None
    if spec.fixed is not None:
        return fixed(spec.fixed)
    return around(spec.expected) if spec.p90 is None else Lengths(float(spec.expected), float(spec.p90))


def explain(error: ValidationError, root: str = "spec") -> str:
    """Return pydantic's errors as one line, each with its field's path, which begins with `root`."""
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join((root, *(str(part) for part in item["loc"])))
        message = _PLAIN_MESSAGES.get(item["type"], item["msg"].removeprefix("Value error, "))
        lines.append(f"{path}: {message}")
    return "; ".join(lines)[:_MESSAGE_LIMIT]


def fields_of(error: ValidationError, root: str = "spec") -> tuple[FieldPath, ...]:
    """Return the paths of the fields that pydantic's errors are about, which begin with `root`."""
    return tuple((root, *item["loc"]) for item in error.errors(include_url=False, include_context=False))
