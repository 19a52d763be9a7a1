"""Each kernel alone: equal to its reference, and how near to the time that the wire needs for its bytes."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.engine import timing
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue
from benchmarks.engine.kernel_cases import Inputs, KernelCase, cases
from benchmarks.engine.predictions import kernel_row, step_kernels
from benchmarks.engine.setting import Setting

BATCHES = (1, 8, 64, 256)


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    batches = BATCHES if not setting.tiny else setting.sizes.batches
    return [
        BenchmarkRow(
            kernel_row(case.name, case.weights, case.batch), 30, partial(measure, setting=setting, case=case),
            kernel_row(case.name, case.weights, case.batch),
        )
        for case in cases(batches)
    ]  # fmt: skip


def measure(_seconds: float, setting: Setting, case: KernelCase) -> MeasuredValue:
    """Microseconds of a call. Raises ArithmeticError where the kernel and its reference differ."""
    module = case.kernel()
    launch = getattr(module, case.module)
    dtype = torch.bfloat16 if setting.device.type == "cuda" else torch.float32
    inputs = Inputs(setting.sizes.large, case.batch, setting.sizes.context, setting.device, dtype)
    worst = compare(launch, module.reference, case.build(inputs), module.TOLERANCE[dtype])
    moved = next(
        kernel.bytes
        for kernel in step_kernels(inputs.shape, case.weights, case.batch, inputs.context)
        if kernel.name == case.name
    )
    sets = [case.build(inputs) for _ in range(timing.rotations(moved, setting.device))]
    seconds = timing.seconds_per_call([partial(launch, *arguments) for arguments in sets], setting.device)
    details = {"GB/s": moved / seconds / 1e9, "bytes": moved, "worst difference": worst, "sets": len(sets)}
    return MeasuredValue(1e6 * seconds, "us", details)


def compare(launch, reference, arguments, tolerance) -> float:  # noqa: ANN001  (launchers differ)
    """Call both on copies; the largest difference of what they return and of what they change in place."""
    copies = [tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments) for _ in range(2)]
    results = [call(*args) for call, args in zip((launch, reference), copies, strict=True)]
    found, wanted = ([*result] if isinstance(result, tuple) else [result] for result in results)
    found += [a for a in copies[0] if isinstance(a, Tensor)]
    wanted += [a for a in copies[1] if isinstance(a, Tensor)]
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance[0], atol=tolerance[1])
        worst = max(worst, float((one.float() - other.float()).abs().max()))
    return worst
