"""What the bundled engine can do of what an LLMDeployment asks for. Documents are planned for any engine."""

from dataclasses import replace

from tangram.catalog import Architecture
from tangram.eligibility.shapes.evaluation_reports import Verdicts
from tangram.eligibility.shapes.serving_requirements import ANY, AS_STORED, ServingRequirements
from tangram.fleet import QUANTISED, CheckpointFacts, Intent

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
    own = architecture.precision
    quantised = _quantised(own)
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


def _quantised(own: str) -> tuple[str, ...]:
    """Return the formats that the engine quantises a checkpoint to: one of 16 bits only."""
    return QUANTISED if own in ("bf16", "fp16") else ()


def served_formats(facts: CheckpointFacts) -> tuple[str, ...]:
    """Return the formats in which the engine serves a checkpoint, its own first."""
    return (facts.dtype, *_quantised(facts.dtype))


def asked_formats(intent: Intent, facts: CheckpointFacts) -> tuple[str, ...]:
    """Return the formats that `intent` may be served in, as far as its spec goes."""
    if intent.precision == ANY:
        return served_formats(facts)
    return (facts.dtype,) if intent.precision == AS_STORED else (intent.precision,)


def kv_precision(dtype: str) -> str:
    """Return what the engine keeps its KV cache in, for weights stored in `dtype`."""
    return "fp32" if dtype == "fp32" else _KV


def on_this_engine(
    wanted: ServingRequirements, intent: Intent, verdicts: Verdicts = ()
) -> ServingRequirements:
    """Return what is wanted, kept to what the engine can do: one GPU or slice, weights as they are stored or
    quantised. `verdicts`: of reports about the checkpoint.
    """
    missing = lacks(intent, wanted.architecture)
    own = wanted.architecture.precision
    return replace(
        wanted,
        tensor_parallel=() if missing else (_DEGREE,),
        precision=AS_STORED if missing else intent.precision,
        formats=(own, *_quantised(own)) if intent.precision == ANY else (),
        verdicts=verdicts if intent.precision == ANY else None,
        request=replace(wanted.request, kv_precision=kv_precision(wanted.architecture.dtype)),
        impossible=missing,
        notes=(*wanted.notes, missing) if missing else wanted.notes,
    )
