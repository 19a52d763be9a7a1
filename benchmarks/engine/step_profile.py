"""Where a decode step's time goes: the profiler of torch over a few steps."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.profiler

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
        # torch.profiler.profile, which wraps this class, imports the compiler of torch first.
        with torch.autograd.profiler.profile(use_device="cuda" if on_gpu else None) as profiler:
            for _ in range(steps):
                run.step()
            timing.synchronize(device)
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    events = [event for event in profiler.key_averages() if event.device_type == kind]
    events.sort(key=lambda event: getattr(event, key), reverse=True)
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
