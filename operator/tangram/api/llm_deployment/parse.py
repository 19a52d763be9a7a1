"""Parse an LLMDeployment as the API server stores it: an `Intent`, or a message about what is wrong."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

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
    ScalingSpec,
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
    meta = obj["metadata"]
    identity = {
        "uid": meta["uid"],
        "namespace": meta["namespace"],
        "name": meta["name"],
        "generation": meta.get("generation", 1),
        "created_at": epoch(meta["creationTimestamp"]),
    }
    try:
        spec = LLMDeploymentSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return InvalidIntent(**identity, message=explain(error), fields=fields_of(error))
    problem = _problem(meta["name"], spec)
    if problem is not None:
        return InvalidIntent(**identity, message=problem.message, fields=problem.fields)
    fewest, most = _bounds(spec.scaling, spec.replicas)
    rate = spec.traffic.requests_per_second
    spread, api_keys = spec.placement.spread or SpreadSpec(), spec.engine.api_key_secret_ref
    intent = Intent(
        **identity,
        model_uri=_pinnable_uri(spec.model),
        model_secret="" if spec.model.secret_ref is None else spec.model.secret_ref.name,
        served_name=spec.model.served_name or meta["name"],
        max_model_len=spec.engine.max_model_len,
        max_running_requests=spec.engine.max_running_requests,
        max_request_s=spec.engine.max_request_seconds,
        ttft=_objective(spec.objectives.ttft),
        tpot=_objective(spec.objectives.tpot),
        allowed_skus=tuple(sorted(set(spec.placement.allowed_skus))),
        denied_skus=tuple(sorted(set(spec.placement.denied_skus))),
        mig=spec.placement.mig,
        min_replicas=fewest,
        max_replicas=most,
        replicas=spec.replicas,
        replicas_set_by=None if spec.replicas is None else replicas_set_by(obj),
        min_available=None if spec.replicas is None else min(spec.replicas, spec.scaling.min_replicas),
        revision=revision(obj),
        paused=spec.paused,
        traffic=Traffic(rate, _lengths(spec.traffic.input_tokens), _lengths(spec.traffic.output_tokens)),
        pools=tuple(sorted(set(spec.placement.pools))),
        tensor_parallel=tuple(sorted(set(spec.placement.tensor_parallel))),
        precision=spec.engine.precision,
        tolerance=(spec.engine.precision_tolerance or PrecisionToleranceSpec()).to_noun(),
        kv_precision=spec.engine.kv_cache_precision,
        spread=Spread(spread.node, spread.zone),
        budget_per_hour=spec.placement.budget_per_hour,
        resources=HostResources(spec.engine.resources.requests.cpu, spec.engine.resources.requests.memory),
        api_keys=SecretKey(api_keys.name, api_keys.key) if api_keys else None,
        pod_labels=tuple(sorted(spec.metadata.labels.items())),
        pod_annotations=tuple(sorted(spec.metadata.annotations.items())),
        runtime=spec.runtime.to_noun(),
    )
    intent = with_priority(intent, classes.resolve(spec.priority_class_name))
    if pod_metadata_keys is None or intent.refusal is not None:
        return intent
    return replace(intent, refusal=metadata_refusal(spec.metadata, pod_metadata_keys))


def _bounds(scaling: ScalingSpec, replicas: int | None) -> tuple[int, int]:
    """Return the fewest and the most replicas: those of `scaling`, unless a number is set."""
    if replicas is not None:
        return replicas, replicas
    fewest = scaling.min_replicas
    return fewest, fewest if scaling.max_replicas is None else scaling.max_replicas


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
