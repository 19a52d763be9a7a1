"""Step times of one replica at one context, fast: for searches that ask for thousands of them."""

from collections.abc import Callable

from tangram.capacity.steps.decode_runs import Steps
from tangram.capacity.steps.step_model import StepModel

# (decoding sequences, prompt tokens, keys that a prompt token attends to) -> seconds
Clock = Callable[[float, float, float], float]


def clock(model: Steps, context: float) -> Clock:
    """Return seconds of a step whose decoding sequences attend to `context` tokens each."""
    if not isinstance(model, StepModel):
        return lambda decode, tokens, keys: model.step_s(decode, context, tokens, keys).total
    foot, parts = model.footprint, model.parts
    kv_bytes, reaches = foot.kv_bytes(context), foot.reaches(context)

    def seconds(decode: float, tokens: float, keys: float) -> float:
        weights, kv, compute, launch, communication = parts(decode, kv_bytes, reaches, tokens, keys)
        return weights + kv + compute + launch + communication

    return seconds
