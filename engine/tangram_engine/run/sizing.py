"""How many bytes of a GPU or slice the KV pool gets: measured, with everything else in its place first.

In this order, because each term must be counted once and only once:

1. weights, device rows, workspaces and scratch are allocated, once, at their final size;
2. the largest steps run twice on a pool of one block: in the first pass libraries load kernels and take
   the workspaces that they keep; the second shows what a step needs above all that stays;
3. the decode steps of all batch sizes are captured: the drop in free memory is what graphs cost;
4. pool and graphs of the trial are freed, and it is checked that they are;
5. only now is free memory read. What is used then stays; what the trial needed comes again, and is set aside.

After that the pool is allocated at once, and nothing grows: steps reuse what the allocator already holds.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tangram_engine.run.memory import MIB, cuda_pool_bytes

logger = logging.getLogger(__name__)


class DeviceMemory:
    """Memory of the current device or MIG slice, as the CUDA runtime and torch's allocator count it."""

    def free_and_total(self) -> tuple[int, int]:
        """Bytes, by `cudaMemGetInfo`. Never NVML: inside a slice it reports the whole board, or refuses."""
        return torch.cuda.mem_get_info()

    def allocated(self) -> int:
        """Bytes of all tensors."""
        return torch.cuda.memory_allocated()

    def reserved(self) -> int:
        """Bytes that torch's allocator holds, tensors and what it keeps for later ones."""
        return torch.cuda.memory_reserved()

    def peak_reserved(self) -> int:
        """The most that it held since `reset_peak`, in bytes."""
        return torch.cuda.max_memory_reserved()

    def reset_peak(self) -> None:
        """Begin to watch the peak anew."""
        torch.cuda.reset_peak_memory_stats()

    def trim(self) -> None:
        """Wait for the device, and give back to it all memory that no tensor is in.

        Tensors in reference cycles are freed, too: the collector is off at start.
        """
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class SizingTrial:
    """The engine with all but its pool in place, as far as sizing needs it."""

    allocate: Callable[[int], int]  # replaces the pool by one of that many blocks; returns its bytes
    run_largest_steps: Callable[[], None]  # nothing of them may stay
    # Captures the decode steps; the memory of the graphs lives as long as the object that is returned.
    capture: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes that come on top of what is allocated for good."""

    activations: int  # of the largest step
    graphs: int  # of all captured steps
    kept: int  # what stayed of the trial though it should not have; it counts as used


def measure_steps(memory: DeviceMemory, trial: SizingTrial) -> StepMemory:
    """Run and capture the largest steps on a pool of one block, and free all of it again."""
    _run_once(memory, trial)
    stays, held = memory.allocated(), memory.reserved()
    pool_bytes = trial.allocate(1)
    memory.reset_peak()
    trial.run_largest_steps()
    activations = memory.peak_reserved() - held - pool_bytes
    trial.allocate(1)  # what the attention keeps of the last step is no part of a graph
    memory.trim()
    graphs = _graph_bytes(memory, trial.capture) if trial.capture else 0
    trial.allocate(0)
    memory.trim()
    leaked = memory.allocated() - stays
    if leaked:
        logger.warning("the trial of the largest steps left %.1f MiB behind", leaked / MIB)
    return StepMemory(activations, graphs, leaked)


def _run_once(memory: DeviceMemory, trial: SizingTrial) -> None:
    """Let libraries take what they will keep."""
    trial.allocate(1)
    trial.run_largest_steps()
    trial.allocate(0)
    memory.trim()


def measured_pool_bytes(memory: DeviceMemory, trial: SizingTrial, utilization: float) -> int:
    """Bytes for KV blocks. Nothing of the trial is allocated when free memory is read."""
    step = measure_steps(memory, trial)
    free, total = memory.free_and_total()
    pool = cuda_pool_bytes(free, total, utilization, step.activations + step.graphs)
    mib = [round(size / MIB) for size in (total, total - free, step.activations, step.graphs, pool)]
    logger.info("MiB: %d in all, %d used, %d for the largest step, %d for graphs, %d for KV", *mib)
    return pool


def _graph_bytes(memory: DeviceMemory, capture: Callable[[], object]) -> int:
    """What the driver takes for the graphs, and the memory that they share."""
    before, _ = memory.free_and_total()
    captured = capture()
    memory.trim()
    after, _ = memory.free_and_total()
    del captured
    return max(before - after, 0)
