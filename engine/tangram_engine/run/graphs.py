"""The decode step as CUDA graphs: two per batch size of a ladder, replayed with the rows of the step.

A step of an 8B model is several hundred kernels of a few microseconds, which Python cannot launch as fast as
a GPU runs them. A graph launches all of them at once. What it reads and writes lies at fixed addresses: the
weights, the KV pool, the device rows, and a buffer with the numbers of the rows to advance. A batch between
two sizes of the ladder is filled up with the padding row, whose KV block belongs to no request.

The first graph ends with the logits, and the second one samples. Between them the host may change logits by
what it has learned while the first one was running: which tokens a grammar allows.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

WARM_UP_RUNS = 2  # libraries choose kernels and allocate workspaces first, which no capture allows

# Rows int32 [B] -> what half of a step computes for them, each [B, ...]: logits of some device rows, or one
# token for each, on tensors of static shape, without synchronisation.
DecodeStep = Callable[[Tensor], tuple[Tensor, ...]]
ChangeLogits = Callable[[Tensor], None]  # in place
Bound = Callable[[], tuple[Tensor, ...]]  # a step with its rows
# Runs a step and keeps what it did: a call that repeats it, and the tensors that each repetition fills.
Record = Callable[[Bound], tuple[Callable[[], None], tuple[Tensor, ...]]]


def _leave(logits: Tensor) -> None:
    """No change."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    rows: Tensor  # int32 [B]
    forward: Callable[[], None]
    sample: Callable[[], None]
    logits: Tensor
    ids: Tensor


class DecodeGraphs:
    """Recorded decode steps of all sizes."""

    def __init__(
        self,
        forward: DecodeStep,
        sample: DecodeStep,
        padding_row: int,
        sizes: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._sizes = sizes  # see `tangram_engine.run.ladder.captured_sizes`
        self._padding_row = padding_row
        record = cuda_recorder(device) if device.type == "cuda" else record_eagerly
        recorded: dict[int, _Recorded] = {}
        for size in reversed(sizes):  # the largest first: smaller ones reuse its memory
            rows = torch.full((size,), padding_row, dtype=torch.int32, device=device)
            replay_forward, (logits,) = record(partial(forward, rows))
            replay_sample, (ids,) = record(partial(sample, rows))
            recorded[size] = _Recorded(rows, replay_forward, replay_sample, logits, ids)
        self._recorded = recorded

    def __contains__(self, rows: int) -> bool:
        """Whether a batch of so many rows has a graph."""
        return 0 < rows <= self._sizes[-1]

    def replay(self, rows: Tensor, change: ChangeLogits = _leave) -> tuple[Tensor, Tensor]:
        """Advance the device rows `rows` int32 [B]: ids and logits, which the next replay overwrites.

        `change` is called with the logits once they are enqueued. `rows` may lie in pinned host memory: the
        copy is enqueued, not waited for.
        """
        count = len(rows)
        recorded = self._recorded[self._sizes[bisect_left(self._sizes, count)]]
        recorded.rows[:count].copy_(rows, non_blocking=True)
        recorded.rows[count:].fill_(self._padding_row)
        recorded.forward()
        change(recorded.logits[:count])
        recorded.sample()
        return recorded.ids[:count], recorded.logits[:count]


def cuda_recorder(device: torch.device) -> Record:
    """Capture into CUDA graphs that share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def record(step: Bound) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            results = step()
        return graph.replay, results

    return record


def record_eagerly(step: Bound) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """The same contract without a GPU: run the step again and overwrite the results of the first run."""
    results = step()

    def replay() -> None:
        for result, computed in zip(results, step(), strict=True):
            result.copy_(computed)

    return replay, results
