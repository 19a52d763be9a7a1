"""What a step costs on the host: 256 sequences decode, and everything but the model runs.

    python -m benchmarks.engine.host [--batch 256] [--contexts 1024 8192] [--steps 128] [--json FILE]

The engine's own step, one step behind: scheduling, the upload of what changed to the device rows, the launch, the
commit, the outputs, and the frame for the API process. The launch replays a recorded step, as on a GPU; this one
computes nothing. Prompts are admitted before the clock starts. Milliseconds of the thread's CPU time: the median of
the steps, and the slowest of twenty. Tensors are on the CPU, whose work on uploads is in the launch. One sequence in sixteen takes a new block and names a full
one in each step.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tangram_engine.config import EngineConfig
from tangram_engine.messages import EngineInfo, StepOutput, encode
from tangram_engine.run import LLMEngine, engine
from tangram_engine.run.graphs import DecodeGraphs
from tangram_engine.run.load import Loaded
from tangram_engine.run.rows import DeviceRows
from tangram_engine.run.runner import Runner
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request, SchedulerLimits

GOAL_MS = (
    1.5  # of 256 sequences at 8,192 tokens on one core: an H200 computes that step of an 8B model in 12.9 ms
)
BLOCK_SIZE = 16
VOCABULARY = 16  # the sampler's work is the device's
TOKEN = 7
PARTS = ("schedule", "launch", "  upload", "commit", "step", "frame", "total")


class NoDecoder:
    """A decoder that computes nothing."""

    def forward(self, ids: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        return torch.zeros(len(ids), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), VOCABULARY)


class NoAttention:
    """An attention that reads its blocks from the device rows, as on a GPU: a step plans nothing."""

    def plan(self, spans: Any, positions: torch.Tensor) -> None:
        pass

    def attend(self, layer: int, *tensors: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def sample(logits: torch.Tensor, rows: torch.Tensor, table: DeviceRows) -> torch.Tensor:
    return torch.full((len(rows),), TOKEN, dtype=torch.int32)


def no_sample(rows: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.full((len(rows),), TOKEN, dtype=torch.int32),)


@dataclass
class Clock:
    """Seconds of each part of one step after the other."""

    taken: dict[str, list[float]] = field(default_factory=dict)

    def of(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            result = work(*args, **kwargs)
            self.taken.setdefault(part, []).append(time.thread_time() - begin)
            return result

        return timed


def make_engine(batch: int, context: int, steps: int, vocabulary: int = VOCABULARY) -> LLMEngine:
    longest = context + steps + 2 * BLOCK_SIZE
    num_blocks = batch * -(-longest // BLOCK_SIZE)
    limits = SchedulerLimits(batch, batch * context, longest)  # all prompts in one step
    device = torch.device("cpu")
    rows = DeviceRows(batch, longest, BLOCK_SIZE, vocabulary, device)
    logits = torch.zeros(batch, vocabulary)

    def no_decode(rows: torch.Tensor) -> tuple[torch.Tensor]:
        return (logits[: len(rows)],)

    runner = Runner(NoDecoder(), NoAttention(), rows, sample)  # type: ignore[arg-type]
    runner.use(DecodeGraphs(no_decode, no_sample, rows.padding, (batch,), device))
    sizes = (BLOCK_SIZE, num_blocks, longest, batch, batch * context, vocabulary)
    loaded = Loaded(runner, limits, EngineInfo(*sizes, "float32", "cpu", 0.0, 0.0))
    with mock.patch.object(engine, "load", return_value=loaded):
        return LLMEngine(EngineConfig(Path(), block_size=BLOCK_SIZE, max_num_seqs=batch), lag=1)


def decoding_engine(batch: int, context: int, steps: int) -> LLMEngine:
    """An engine whose sequences all decode, and go on for `steps` steps at least."""
    one = make_engine(batch, context, steps)
    params = SamplingParams(max_tokens=steps + BLOCK_SIZE + 8, temperature=0.0, ignore_eos=True)
    for number in range(batch):
        # No prefix is shared; and contexts differ, so that blocks fill up in different steps.
        prompt = (number % VOCABULARY, number // VOCABULARY) + (1,) * (context - 2 - number % BLOCK_SIZE)
        one.add(Request(f"{number:032x}", prompt, params, arrival=0.0))
    while one.step()[1].batch_tokens != batch:  # prefill
        pass
    return one


def measure(batch: int, context: int, steps: int) -> dict[str, list[float]]:
    """Seconds per part and step, once all sequences decode."""
    one = decoding_engine(batch, context, steps)
    gc.collect()
    gc.freeze()  # as the engine process does with what it loaded
    clock = Clock()
    scheduler, runner = one._scheduler, one._runner  # noqa: SLF001
    parts = {
        "schedule": (scheduler, "schedule"),
        "  upload": (runner.rows, "update"),
        "launch": (runner, "launch"),
        "commit": (scheduler, "commit"),
        "step": (one, "step"),
    }
    with ExitStack() as stack:
        for part, (owner, name) in parts.items():
            stack.enter_context(mock.patch.object(owner, name, clock.of(part, getattr(owner, name))))
        frame = clock.of("frame", lambda outputs, stats: encode(StepOutput(tuple(outputs), stats)))
        for _ in range(steps):
            outputs, stats = one.step()
            frame(outputs, stats)
            assert len(outputs) == stats.batch_tokens == batch
    gc.unfreeze()
    taken = clock.taken
    taken["total"] = [step + frame for step, frame in zip(taken["step"], taken["frame"], strict=True)]
    return taken


def table(batch: int, results: dict[int, dict[str, list[float]]]) -> str:
    lines = [f"ms a step, {batch} sequences" + "".join(f"{f'at {context}':>20}" for context in results)]
    for part in PARTS:
        cells = (f"{_median(taken[part]):.2f} ({_slowest(taken[part]):.2f})" for taken in results.values())
        lines.append(f"{part:<28}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _slowest(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1] * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = {context: measure(options.batch, context, options.steps) for context in options.contexts}
    print(table(options.batch, results))
    print(f"goal: {GOAL_MS} ms")
    if options.json:
        medians = {
            context: {part.strip(): _median(taken[part]) for part in PARTS}
            for context, taken in results.items()
        }
        document = {
            "python": platform.python_version(),
            "batch": options.batch,
            "goal_ms": GOAL_MS,
            "median_ms": medians,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
