"""What the bundled engine can do for an LLMDeployment. Documents alone are planned for any engine."""

from collections.abc import Iterable
from dataclasses import replace

from tangram.catalog import Architecture
from tangram.eligibility.shapes.evaluation_reports import verdicts_of
from tangram.eligibility.shapes.serving_requirements import ANY, AS_STORED, ServingRequirements
from tangram.fleet import QUANTISED, EvaluationKey, EvaluationReport, HostResources, Intent, PodNeeds

_DEGREE = 1  # of tensor parallelism
_KV = "bf16"  # 16 bit


def lacks(intent: Intent, architecture: Architecture) -> str:
    """Return what the engine cannot do of what is asked, the empty string where it can do all of it."""
    if intent.tensor_parallel and _DEGREE not in intent.tensor_parallel:
        degrees = " or ".join(map(str, intent.tensor_parallel))
        return (
            f"placement.tensorParallel asks for {degrees} GPUs per replica; the engine runs on one GPU or"
            f" slice: add {_DEGREE} to it, or leave it out"
        )
    own, *quantised = served_formats(architecture)
    if intent.precision not in {ANY, AS_STORED, own, *quantised}:
        others = f", or quantised to {' or '.join(quantised)}" if quantised else ""
        return (
            f"engine.precision asks for {intent.precision}; the engine serves weights as they are stored,"
            f" here {own}{others}: name a checkpoint that is stored in {intent.precision}, or ask for"
            f" {AS_STORED}"
        )
    if intent.kv_precision != _KV:
        return (
            f"engine.kvCachePrecision asks for {intent.kv_precision}; the engine's KV cache has 16 bits:"
            f" ask for {_KV}"
        )
    return ""


def served_formats(architecture: Architecture) -> tuple[str, ...]:
    """Return the formats in which the engine serves a checkpoint, its own first: it quantises 16 bits."""
    own = architecture.precision
    return (own, *QUANTISED) if own in ("bf16", "fp16") else (own,)


def kv_precision(dtype: str) -> str:
    """Return what the engine keeps its KV cache in, for weights stored in `dtype`."""
    return "fp32" if dtype == "fp32" else _KV


def on_bundled_engine(
    requirements: ServingRequirements,
    about_checkpoint: Iterable[tuple[EvaluationKey, EvaluationReport]] = (),
    pod_needs: PodNeeds | None = None,
) -> ServingRequirements:
    """Return the requirements in the cluster, kept to what the engine can do: one GPU or slice, weights as
    they are stored or quantised. `about_checkpoint`: evaluation reports.
    """
    intent, architecture = requirements.intent, requirements.architecture
    missing = lacks(intent, architecture)
    any_format = intent.precision == ANY
    formats = served_formats(architecture) if any_format else requirements.formats
    return replace(
        requirements,
        splits=() if missing else ((_DEGREE, 1),),
        formats=(architecture.precision,) if missing else formats,
        request=replace(requirements.request, kv_precision=kv_precision(architecture.dtype)),
        uniform=True,
        impossible=missing,
        notes=(*requirements.notes, missing) if missing else requirements.notes,
        pod_needs=None if intent.resources == HostResources() else pod_needs,
        verdicts=verdicts_of(intent, about_checkpoint) if any_format else None,
    )
