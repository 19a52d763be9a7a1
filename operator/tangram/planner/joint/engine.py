"""What the bundled engine can do of what an LLMDeployment asks for. Documents are planned for any engine."""

from dataclasses import replace

from tangram.catalog import Architecture
from tangram.fleet import Intent
from tangram.planner.joint.deployment import ANY, AS_STORED, Wanted

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
    if intent.precision not in {ANY, AS_STORED, own}:
        return (
            f"engine.precision asks for {intent.precision}; the engine serves weights as they are stored,"
            f" here {own}: name a checkpoint that is stored in {intent.precision}, or ask for {AS_STORED}"
        )
    if intent.kv_precision != _KV:
        return (
            f"engine.kvCachePrecision asks for {intent.kv_precision}; the engine's KV cache has 16 bits:"
            f" ask for {_KV}"
        )
    return ""


def kv_precision(dtype: str) -> str:
    """Return what the engine keeps its KV cache in, for weights stored in `dtype`."""
    return "fp32" if dtype == "fp32" else _KV


def on_this_engine(wanted: Wanted, intent: Intent) -> Wanted:
    """Return what is wanted, kept to what the engine can do: one GPU or slice, weights as they are stored."""
    missing = lacks(intent, wanted.architecture)
    return replace(
        wanted,
        tensor_parallel=() if missing else (_DEGREE,),
        precision=AS_STORED,
        request=replace(wanted.request, kv_precision=kv_precision(wanted.architecture.dtype)),
        impossible=missing,
        notes=(*wanted.notes, missing) if missing else wanted.notes,
    )
