"""Each kernel alone: equal to its reference, how near to the time that the wire needs for its bytes, other tiles."""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine import timing
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue
from benchmarks.engine.kernel_cases import Inputs, KernelCase, cases
from benchmarks.engine.predictions import prompt_kernels, step_kernels
from benchmarks.engine.setting import Setting

SETS_BYTES = 8 << 30
BATCHES = (1, 8, 64, 256)


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    chosen = cases(BATCHES)
    if setting.tiny:  # interpreted: each kernel once, with as few rows as it serves
        fewest = {case.module: case.batch for case in reversed(cases((1, 9)))}
        chosen = [case for case in cases((1, 9)) if case.batch == fewest[case.module]]
        chosen = [case for case in chosen if "linear" not in case.name or "qkv" in case.name]
    found = [
        BenchmarkRow(case.row, 30, partial(measure, setting=setting, case=case), case.row) for case in chosen
    ]
    swept = [case for case in chosen if case.batch in case.sweep]
    return found + [
        BenchmarkRow(f"tiles of {case.row}", 40, partial(sweep, setting=setting, case=case))
        for case in (swept[:1] if setting.tiny else swept)
    ]


def measure(_seconds: float, setting: Setting, case: KernelCase) -> MeasuredValue:
    """Microseconds of a call. Raises AssertionError where the kernel and its reference differ."""
    inputs = kernel_inputs(setting, case)
    worst = check(case, inputs)
    moved = moved_bytes(case, inputs)
    sets = input_sets(case, inputs, moved)
    seconds = timing.seconds_per_call(
        [partial(case.launcher(), *arguments) for arguments in sets], setting.device
    )
    rate = moved / seconds
    details = {"GB/s": rate / 1e9, "bytes": moved, "worst difference": worst, "sets": len(sets)}
    details["note"] = f"{rate / setting.read_bandwidth:.0%} of read bandwidth"
    return MeasuredValue(1e6 * seconds, "us", details)


def sweep(seconds: float, setting: Setting, case: KernelCase) -> MeasuredValue:
    """Microseconds of a call with the best of the tiles that differ from the table's in one number."""
    case.kernel()
    from tangram_engine.kernels import tiles  # noqa: PLC0415

    end = time.monotonic() + 0.8 * seconds
    inputs = kernel_inputs(setting, case)
    sets = input_sets(case, inputs, moved_bytes(case, inputs))
    calls = [partial(case.launcher(), *arguments) for arguments in sets]
    name = f"{case.module} {case.weights}"  # a format may have a row of its own
    name = name if (name, 0, 0) in tiles.TILES else case.module
    key = (name, *tiles.hardware(setting.device))
    present, before = dict(tiles.tile(name, setting.device)), tiles.TILES.get(key)
    times: dict[str, float | str] = {}
    try:
        for tile in neighbours(present)[: 2 if setting.tiny else None]:
            if time.monotonic() > end:
                break
            tiles.TILES[key] = tile
            try:
                check(case, inputs)
                times[str(tile)] = 1e6 * timing.seconds_per_call(calls, setting.device)
            except Exception as error:  # noqa: BLE001  (a tile may be too large for the device, or wrong)
                times[str(tile)] = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        tiles.TILES.pop(key)
        if before is not None:
            tiles.TILES[key] = before
    timed = {tile: value for tile, value in times.items() if isinstance(value, float)}
    best = min(timed, key=lambda tile: timed[tile])
    note = f"present {timed.get(str(present), float('nan')):.1f} us; best {best}"
    return MeasuredValue(timed[best], "us", {"note": note, "tiles": times})


def neighbours(tile: Mapping[str, int]) -> list[dict[str, int]]:
    """The tile itself, then those with one number halved or doubled; stages change by one."""
    found = [dict(tile)]
    for name, value in tile.items():
        others = (value - 1, value + 1, value + 2) if name == "num_stages" else (value // 2, value * 2)
        found += [{**tile, name: other} for other in others if other > 0]
    return found


def kernel_inputs(setting: Setting, case: KernelCase) -> Inputs:
    """Sizes of the large model."""
    dtype = torch.bfloat16 if setting.device.type == "cuda" else torch.float32
    sizes = setting.sizes
    return Inputs(sizes.large, case.batch, sizes.context, max(sizes.batches), setting.device, dtype)


def moved_bytes(case: KernelCase, inputs: Inputs) -> float:
    """Bytes that one call must move, as they were predicted."""
    step = step_kernels(inputs.shape, case.weights, case.batch, inputs.context)
    kernels = (*step, *prompt_kernels(inputs.shape, case.batch))
    return next(kernel.bytes for kernel in kernels if kernel.name == case.name)


def input_sets(case: KernelCase, inputs: Inputs, moved: float) -> list[tuple[Any, ...]]:
    """As many inputs as keep the cache from answering, within a part of the memory."""
    sets = [case.build(inputs)]
    held = sum(getattr(argument, "nbytes", 0) for argument in sets[0])
    count = min(timing.rotations(moved, inputs.device), int(SETS_BYTES / held) + 1)
    return sets + [case.build(inputs) for _ in range(count - 1)]


def check(case: KernelCase, inputs: Inputs) -> float:
    """The largest difference between kernel and reference on inputs of their own."""
    module = case.kernel()
    return compare(
        case.launcher(),
        in_float32(module.reference) if case.name.startswith("linear") else module.reference,
        case.build(inputs),
        module.TOLERANCE[case.dtype or inputs.dtype],
        case.scratch,
    )


def in_float32(reference: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The reference on the same numbers in float32.

    In 16 bits it rounds the weights that a format stands for, and what it gates: of the 10^5 results of a large
    projection some are then further from the kernel's than either is from the exact ones.
    """

    def compute(x: Tensor, weight: Any, bias: Tensor | None, *more: Any) -> Tensor:
        wide = [value.float() if isinstance(value, Tensor) else value for value in more]
        result = reference(x.float(), weight.float() if isinstance(weight, Tensor) else weight, bias, *wide)
        for given, computed in zip(more, wide, strict=True):  # a residual is changed in place
            if isinstance(given, Tensor):
                given.copy_(computed)
        return result

    return compute


def tensors_in(argument: object) -> list[Tensor]:
    """The argument itself, or what a namespace or tuple of tensors holds."""
    if isinstance(argument, SimpleNamespace):
        return list(vars(argument).values())
    if isinstance(argument, tuple):
        return [value for value in argument if isinstance(value, Tensor)]
    return [argument] if isinstance(argument, Tensor) else []


def compare(launch, reference, arguments, tolerance, scratch) -> float:  # noqa: ANN001  (launchers differ)
    """Call both on copies; the largest difference of what they return and of what they change in place.

    Arguments whose numbers are in `scratch` are not compared. Raises AssertionError beyond the tolerance.
    """
    copied = (Tensor, SimpleNamespace, tuple)
    copies = [tuple(deepcopy(a) if isinstance(a, copied) else a for a in arguments) for _ in range(2)]
    results = [call(*args) for call, args in zip((launch, reference), copies, strict=True)]
    both = [
        [
            *(result if isinstance(result, tuple) else (result,)),
            *(t for number, a in enumerate(args) if number not in scratch for t in tensors_in(a)),
        ]
        for result, args in zip(results, copies, strict=True)
    ]
    worst = 0.0
    for one, other in zip(*both, strict=True):
        difference = (one.float() - other.float()).abs()
        within = difference <= tolerance[1] + tolerance[0] * other.float().abs()
        if not bool(within.all()):  # not a number is not within
            raise AssertionError(
                f"{int((~within).sum())} of {within.numel()} differ, by {float(difference.max())}"
            )
        worst = max(worst, float(difference.max()))
    return worst
