"""What would make a rejected shape serve: the least change of one kind, else of two. All were tried."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tangram.capacity.sizing.assess import Assessor
from tangram.capacity.sizing.candidate_shapes import CONVERTED, TENSOR_PARALLEL, precisions_on
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.sizing.results import Constraint, Rejection, ShapeChange
from tangram.catalog import gpu
from tangram.catalog.models.precision import precision
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape

_LENGTH_STEP = 256  # tokens: finer than anybody sets it
_FEWER_RUNNING = (128, 64, 32, 16)
_OBJECTIVES = (Constraint.TTFT, Constraint.TPOT)

Changed = tuple[ShapeChange, Shape, SizingRequest]


def relax(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> ShapeChange | None:
    """Return the first change that revives the shape, in the order of what it costs the user.

    Settings come before formats, formats before GPUs, and one change before two.
    """
    sku = rejection.shape.sku
    if rejection.constraint is Constraint.MEMORY_UNKNOWN:
        return None
    if assessor.prices.gpu_hour(sku) is not None:
        return _one(assessor, rejection, request) or _two(assessor, rejection, request)
    priced = replace(assessor, prices=Prices({**assessor.prices.overrides, sku: 1.0}))
    price = ShapeChange((("price", sku),), f"price for {sku}")
    if rejection.constraint is Constraint.PRICE:
        return price if _serves(priced, rejection.shape, request) else None
    change = relax(priced, rejection, request)
    return change and _both(change, price)


def _one(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> ShapeChange | None:
    tries = [_lengths, _running, _kv_precision] if rejection.constraint is Constraint.MEMORY else []
    tries += [_objectives] if rejection.constraint in _OBJECTIVES else []
    for kind in (*tries, _formats, _groups):
        for relaxation, shape, changed in kind(assessor, rejection, request):
            if _serves(assessor, shape, changed):
                return relaxation
    return None


def _two(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> ShapeChange | None:
    """Another format or more GPUs, and one change beside."""
    for kind in (_formats, _groups):
        for relaxation, shape, changed in kind(assessor, rejection, request):
            remaining = assessor.rejection(shape, changed)
            if remaining and remaining.constraint in {*_OBJECTIVES, Constraint.MEMORY}:
                more = _one(assessor, remaining, changed)
                if more is not None:
                    return _both(relaxation, more)
    return None


def _both(first: ShapeChange, second: ShapeChange) -> ShapeChange:
    changes = dict((*first.changes, *second.changes))  # of one kind twice the second holds
    if len(changes) < len(first.changes) + len(second.changes):
        return second
    return ShapeChange(tuple(changes.items()), f"{first.text} and {second.text}")


def _serves(assessor: Assessor, shape: Shape, request: SizingRequest) -> bool:
    return assessor.rejection(shape, request) is None


def _objectives(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    """The objectives that an idle replica meets: one of them, or both where both are missed."""
    idle = assessor.idle_latency(rejection.shape, request)
    if idle is None:
        return
    tpot = _relaxed(idle.tpot_s.at(request.percentile), request.tpot_ms)
    ttft = _relaxed(idle.ttft_s.at(request.percentile), request.ttft_ms)
    objectives = [(name, value) for name, value in (("tpot", tpot), ("ttft", ttft)) if value]
    yield (
        ShapeChange(
            tuple((f"{name}-ms", f"{value:g}") for name, value in objectives),
            " and ".join(f"{name.upper()} {value:g} ms" for name, value in objectives),
        ),
        rejection.shape,
        replace(request, tpot_ms=tpot or request.tpot_ms, ttft_ms=ttft or request.ttft_ms),
    )


def _relaxed(seconds: float, limit_ms: float | None) -> float | None:
    """Return the objective in milliseconds that `seconds` meets, None where it is met as it is."""
    if limit_ms is None or seconds * 1e3 <= limit_ms:
        return None
    step = 1.0 if seconds >= 0.01 else 0.1
    return round(math.ceil(seconds * 1e3 / step - 1e-9) * step, 1)


def _lengths(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    """The longest request for which there is room, as long as the mean one fits."""
    least = low = math.ceil(request.prompts.mean + request.answers.mean)
    high = request.model_length(assessor.architecture)

    def with_length(length: int) -> SizingRequest:
        return replace(request, max_model_len=length)

    if low >= high or not assessor.fits(rejection.shape, with_length(low)):
        return
    while high - low > 1:  # the low length fits, the high one does not
        middle = (low + high) // 2
        fits = assessor.fits(rejection.shape, with_length(middle))
        low, high = (middle, high) if fits else (low, middle)
    length = max(least, low // _LENGTH_STEP * _LENGTH_STEP)
    change = ShapeChange((("max-model-len", str(length)),), f"max-model-len {length}")
    yield change, rejection.shape, with_length(length)


def _running(_assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    """Fewer requests at once need smaller buffers."""
    for most in _FEWER_RUNNING:
        if most < request.max_running:
            change = ShapeChange((("max-running", str(most)),), f"max-running {most}")
            yield change, rejection.shape, replace(request, max_running=most)


def _kv_precision(_assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    if request.kv_precision != "fp8":
        change = ShapeChange((("kv-precision", "fp8"),), "fp8 KV cache")
        yield change, rejection.shape, replace(request, kv_precision="fp8")


def _formats(assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    """Formats with fewer bits, those the GPU is good at first; where it lacks the format, any other."""
    now, own = rejection.shape.precision, assessor.architecture.served_precision
    lacking = rejection.constraint is Constraint.PRECISION
    most = precision(own if lacking else now).bits
    board = gpu(rejection.shape.sku)
    good = precisions_on(assessor.architecture, board) if board else ()
    for name in dict.fromkeys((*good, *CONVERTED)):
        bits = precision(name).bits
        if name != now and (bits < most or (lacking and bits == most)):
            change = ShapeChange((("precision", name),), name)
            yield change, replace(rejection.shape, precision=name), request


def _groups(_assessor: Assessor, rejection: Rejection, request: SizingRequest) -> Iterator[Changed]:
    """More GPUs per replica; fewer where the model cannot be split in so many."""
    shape = rejection.shape
    if shape.profile != WHOLE_GPU:
        return
    sizes = [tp for tp in TENSOR_PARALLEL if tp > shape.tensor_parallel]
    if rejection.constraint is Constraint.TENSOR_PARALLEL:
        sizes = [tp for tp in reversed(TENSOR_PARALLEL) if tp < shape.tensor_parallel] + sizes
    for tp in sizes:
        change = ShapeChange((("tensor-parallel", str(tp)),), f"TP {tp}")
        yield change, replace(shape, tensor_parallel=tp), request
