"""Where a benchmark runs and how large it is: the device, its predictions, the shapes."""

import gc
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.engine import predictions
from benchmarks.engine.predictions import (
    BATCHES,
    CONTEXT,
    LLAMA_8B,
    PREFILLS,
    QWEN3_06B,
    DecoderShape,
    Prediction,
)
from benchmarks.engine.timing import seconds_per_call

if TYPE_CHECKING:
    from benchmarks.engine.engine_adapter import EngineHolder

ROOT = Path(__file__).resolve().parents[2]

# By tensors that rows share, once the engine is freed; an engine, or half of one, holds many times as much.
MOST_HELD_BYTES = 4 << 30

TINY_LLAMA = DecoderShape("tiny-llama", 2, 64, 128, 4, 2, 16, 512)
TINY_QWEN3 = DecoderShape("tiny-qwen3", 2, 64, 96, 4, 2, 16, 512)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes and counts of the rows, for a GPU and for a test of the code."""

    large: DecoderShape
    small: DecoderShape
    batches: tuple[int, ...]
    context: int
    prefills: tuple[int, ...]
    steps: int  # timed steps of a decode row
    requests: int  # of nano-vllm's 256
    length_divisor: int  # of their lengths
    clients: tuple[int, ...]
    served: tuple[int, int]  # tokens of a prompt and of an answer
    probe_bytes: int
    product: int  # edge of the square matrices

    @property
    def decode_model_len(self) -> int:
        """Enough for decode rows alone: what plain torch reads of a table grows with it."""
        return self.context + 4 * self.steps + 80

    @property
    def max_model_len(self) -> int:
        """Enough for the longest prompt and for what decode rows add."""
        return max(*self.prefills, self.decode_model_len, sum(self.served)) + 16


FULL = Sizes(
    LLAMA_8B, QWEN3_06B, BATCHES, CONTEXT, PREFILLS, 48, 256, 1, (1, 64, 256), (1000, 1000), 2 << 30, 8192
)
TINY = Sizes(TINY_LLAMA, TINY_QWEN3, (1, 3), 24, (16, 40), 3, 4, 32, (2,), (8, 6), 1 << 16, 64)


def release_memory(device: torch.device) -> None:
    """Give back to the device what no tensor is in; tensors in reference cycles are freed first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Setting:
    """One device, and the engine that is loaded on it at the moment."""

    def __init__(self, device: torch.device, sizes: Sizes, *, tiny: bool) -> None:
        self.device, self.sizes, self.tiny = device, sizes, tiny
        self.scratch = Path(tempfile.mkdtemp(prefix="tangram-gpu-"))
        self.closers: list[
            Callable[[], object]
        ] = []  # what a stage leaves behind, if its last row was not run
        self.name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        self.gpu = predictions.gpu_by_device_name(self.name)

    @classmethod
    def of_this_machine(cls, *, tiny: bool) -> "Setting":
        """The GPU with full shapes; a CPU only with tiny ones. Raises SystemExit otherwise."""
        if tiny:
            torch.set_num_threads(1)
            return cls(torch.device("cpu"), TINY, tiny=True)
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device: --tiny runs the same code with tiny shapes on a CPU")
        return cls(torch.device("cuda", 0), FULL, tiny=False)

    @cached_property
    def engines(self) -> "EngineHolder":
        """The engine that is loaded. Imported late: the device is probed where the engine cannot be imported."""
        from benchmarks.engine.engine_adapter import EngineHolder  # noqa: PLC0415

        return EngineHolder(self.scratch, self.device)

    @cached_property
    def read_bandwidth(self) -> float:
        """Bytes per second of a sum over a large tensor, measured once."""
        x = torch.randn(self.sizes.probe_bytes // 4, device=self.device)
        return x.nbytes / seconds_per_call([x.sum], self.device)

    @property
    def title(self) -> str:
        """One line over the table."""
        return f"{self.name}, torch {torch.__version__}{', tiny shapes' if self.tiny else ''}"

    @cached_property
    def predictions(self) -> dict[str, Prediction]:
        """What was predicted for this device; nothing for an unknown one."""
        return predictions.rows(self.gpu) if self.gpu else {}

    def broken(self) -> bool:
        """Whether the next row needs a new process: the device does not answer, or its memory stays taken.

        An engine that failed in the middle of a step, or of its load, is freed.
        """
        try:
            self._free_engine()
            if self.device.type != "cuda":
                return False
            torch.cuda.synchronize()
            release_memory(self.device)
            held = torch.cuda.memory_reserved()
        except Exception as error:  # noqa: BLE001  (whatever it is: this process is of no more use)
            print(f"the device does not answer: {error}")
            return True
        if held > MOST_HELD_BYTES:
            print(f"{held >> 20} MiB of the device stay taken behind the row")
        return held > MOST_HELD_BYTES

    def close(self) -> None:
        """End the stage: free the engine, and what was started and written for it."""
        while self.closers:
            self.closers.pop()()
        self._free_engine()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(exist_ok=True)

    def _free_engine(self) -> None:
        if "engines" in vars(self):
            self.engines.close()
