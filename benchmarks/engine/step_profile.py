"""Where a decode step's time goes: the profiler of torch over a few steps."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.engine import timing
from benchmarks.engine.engine_adapter import DecodeRun
from tangram_engine.run import LLMEngine

TOP = 30


def profile_steps(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], steps: int, device: torch.device
) -> dict[str, Any]:
    """Share of the time in which the device computes, launches of a step, and the longest operations."""
    with DecodeRun(engine, prompts, 8 * steps + 64, "profile") as run:
        run.prefill()
        run.step()
        timing.synchronize(device)
        begin = time.perf_counter()
        for _ in range(steps):
            run.step()
        timing.synchronize(device)
        plain = (
            time.perf_counter() - begin
        ) / steps  # the profiler slows the host: its own wall-clock says little
        on_gpu = device.type == "cuda"
        with _profiler(on_gpu=on_gpu) as profiler:
            for _ in range(steps):
                run.step()
            timing.synchronize(device)
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    events = [event for event in profiler.key_averages() if event.device_type == kind]
    events.sort(key=lambda event: getattr(event, key), reverse=True)
    if on_gpu and not events:
        raise RuntimeError("the profiler has no event of the device")
    total = sum(getattr(event, key) for event in events) / 1e6 / steps
    return {
        "busy": min(1.0, total / plain),
        "step ms": 1e3 * plain,
        "device ms": 1e3 * total,
        "launches": sum(event.count for event in events) / steps,
        "top": [
            {"name": event.key[:120], "calls": event.count / steps, "us": getattr(event, key) / steps}
            for event in events[:TOP]
        ],
    }


def _profiler(*, on_gpu: bool) -> Any:
    """torch.profiler on a GPU. On a CPU the class that it wraps: the wrapper imports torch's compiler first."""
    if not on_gpu:
        from torch.autograd.profiler import profile  # noqa: PLC0415

        return profile()
    from torch.profiler import ProfilerActivity  # noqa: PLC0415
    from torch.profiler import profile as on_devices  # noqa: PLC0415

    return on_devices(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
