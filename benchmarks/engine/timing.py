"""Seconds of device work: in a CUDA graph that rotates over inputs, so that the cache does not answer for memory."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

REPEATS = 7
L2_ROTATION = 3  # input sets together are at least so many times the size of the cache


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_call(
    calls: Sequence[Callable[[], object]], device: torch.device, target_s: float = 0.02
) -> float:
    """Median seconds of one of `calls`, each on inputs of its own and without data that changes shapes.

    On a GPU as many rounds as fill `target_s` are captured in one CUDA graph, so the host's launches cost nothing and
    the gap between kernels is part of the time, as in the engine's step. Elsewhere wall-clock of one round.
    """
    if device.type != "cuda":
        return _wall(calls, device) / len(calls)
    _wall(calls, device)
    rounds = max(1, min(50, int(target_s / max(_wall(calls, device), 1e-6))))
    graph = _captured(calls, rounds)
    graph.replay()
    return statistics.median(event_seconds(graph.replay) for _ in range(REPEATS)) / (rounds * len(calls))


def _wall(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    synchronize(device)
    return time.perf_counter() - begin


def _captured(calls: Sequence[Callable[[], object]], rounds: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return graph


def event_seconds(action: Callable[[], object]) -> float:
    """Seconds on the device between two events around `action`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def host_seconds_per_call(call: Callable[[], object], device: torch.device, count: int) -> float:
    """Seconds that the host needs to launch `call`, the device's work not waited for."""
    call()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    spent = time.perf_counter() - begin
    synchronize(device)
    return spent / count


def rotations(bytes_of_one: float, device: torch.device) -> int:
    """How many input sets keep the cache from answering: 1 on a CPU, at most 24."""
    if device.type != "cuda":
        return 1
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 50 << 20)
    return max(1, min(24, int(L2_ROTATION * cache / bytes_of_one) + 1))


def random_like_weights(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, std: float = 0.02
) -> Tensor:
    """Random numbers as weights have them: products of zeros run faster than any model."""
    return torch.empty(*shape, dtype=dtype, device=device).normal_(std=std)
