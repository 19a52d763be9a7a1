"""The engine's seams as the benchmark uses them: the one module to change when the engine does.

Everything else in this folder asks for an engine by `EngineChoice`, adds requests and steps.
"""

import dataclasses
import inspect
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from unittest import mock

import torch

from benchmarks.engine.bench_rows import Unavailable
from benchmarks.engine.predictions import DecoderShape
from benchmarks.engine.setting import release_memory
from tangram_engine.config import EngineConfig
from tangram_engine.kernels import ops
from tangram_engine.run import LLMEngine
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request

BLOCK_SIZE = 16
# Whether the caller may choose how far the host is behind the device, and what computes on device rows.
HAS_SWITCHES = {"lag", "ops"} <= set(inspect.signature(LLMEngine).parameters)
# The rung of the ladder on which the engine stands with its defaults on a GPU.
PRESENT_RUNG = "async" if HAS_SWITCHES else "eager"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine a row wants: the same choice is the same engine, loaded once."""

    shape: DecoderShape
    max_num_seqs: int
    max_model_len: int
    weights: str = "bf16"
    rung: str = PRESENT_RUNG


class EngineHolder:
    """The engine that is loaded: one at a time, for it fills the device."""

    def __init__(self, scratch: Path, device: torch.device) -> None:
        self._scratch, self._device = scratch, device
        self._choice: EngineChoice | None = None
        self._failed: dict[EngineChoice, str] = {}
        self._engine: LLMEngine | None = None

    def get(self, choice: EngineChoice) -> LLMEngine:
        """The engine of that choice. Raises Unavailable where this version has no such thing.

        An engine that cannot be loaded is not tried again: each row that wants it would lose as much time.
        """
        if choice in self._failed:
            raise Unavailable(self._failed[choice])
        if self._engine is None or choice != self._choice:
            self.close()
            directory = write_config(self._scratch / choice.shape.name, choice.shape, choice.max_model_len)
            try:
                self._engine, self._choice = build(directory, choice, self._device), choice
            except Unavailable as error:
                self._failed[choice] = str(error)
                raise
            except BaseException as error:
                self._failed[choice] = f"the engine was not loaded: {type(error).__name__}: {error}"
                raise
        return self._engine

    def close(self) -> None:
        """Free the engine and its memory; without an engine, what a load that was cut off left in the allocator."""
        self._engine = self._choice = None
        release_memory(self._device)


def build(directory: Path, choice: EngineChoice, device: torch.device) -> LLMEngine:
    """Load random weights in the shapes of `directory`/config.json."""
    known = {field.name for field in dataclasses.fields(EngineConfig)}
    wanted: dict[str, Any] = {
        "model": directory,
        "max_model_len": choice.max_model_len,
        "max_num_seqs": choice.max_num_seqs,
        "block_size": BLOCK_SIZE,
        "dtype": "bfloat16" if device.type == "cuda" else "float32",
        "device": device.type,
        "load_format": "dummy",
    }
    if device.type == "cpu":
        wanted["kv_cache_bytes"] = 8 << 20
    if choice.weights != "bf16":
        wanted["quantize"] = choice.weights
    if missing := set(wanted) - known:
        raise Unavailable(f"this engine has no {', '.join(sorted(missing))}")
    with on_rung(choice.rung) as switches:
        return LLMEngine(EngineConfig(**wanted), **switches)


@contextmanager
def on_rung(rung: str) -> Iterator[dict[str, Any]]:
    """What builds the engine as that rung of the ladder has it. Raises Unavailable where there are no switches.

    eager: plain torch, planned on the host and launched operation by operation. graph: the references of the
    kernels, but for the sampler's, recorded in CUDA graphs. fused: the kernels, but for the products. linear:
    these, too. async: the host one step behind.
    """
    if rung == PRESENT_RUNG == "eager":
        yield {}
    elif not HAS_SWITCHES:
        raise Unavailable(f"this engine has no switch to the rung {rung!r}")
    else:
        with ExitStack() as changes:
            if rung == "eager":
                why = "the benchmark measures plain torch"
                changes.enter_context(mock.patch.object(ops, "why_not_kernels", return_value=why))
            switches: dict[str, Any] = {"lag": int(rung == "async")}
            if rung == "graph":
                # No graph may wait for the device, as the sampler's reference does.
                switches["ops"] = dataclasses.replace(ops.reference_ops(), sample=ops.kernel_ops().sample)
            elif rung == "fused":
                switches["ops"] = dataclasses.replace(ops.kernel_ops(), small_linear=None)
            yield switches


def write_config(directory: Path, shape: DecoderShape, positions: int) -> Path:
    """config.json of that shape, Llama or Qwen3 by its name; the directory."""
    qwen3 = "qwen3" in shape.name
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM" if qwen3 else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen3 else "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6 if qwen3 else 1e-5,
        "rope_theta": 1e6 if qwen3 else 5e5,
        "tie_word_embeddings": qwen3,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def greedy_request(name: str, prompt: Sequence[int], tokens: int) -> Request:
    """Exactly `tokens` tokens, the most likely one each time."""
    return Request(name, tuple(prompt), SamplingParams(tokens, temperature=0.0, ignore_eos=True), arrival=0.0)


def sampled_request(name: str, prompt: Sequence[int], tokens: int, temperature: float) -> Request:
    """Exactly `tokens` tokens, drawn."""
    return Request(
        name, tuple(prompt), SamplingParams(tokens, temperature=temperature, ignore_eos=True), arrival=0.0
    )


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Prompts without a common beginning: the prefix cache must not answer for the model."""
    chance = random.Random(f"{seed} {count} {length}")
    return [chance.choices(range(3, vocabulary), k=length) for _ in range(count)]


def run_until_idle(engine: LLMEngine, requests: Sequence[Request]) -> dict[str, list[int]]:
    """All tokens of all requests. Raises RuntimeError where one ends with an error."""
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step()[0]:
            if output.finish == "error":
                raise RuntimeError(f"{output.request_id} ended with an error")
            answers[output.request_id].append(output.token)
    return answers


class DecodeRun:
    """Rows that decode together. Use as a context: it leaves the engine idle."""

    def __init__(self, engine: LLMEngine, prompts: Sequence[Sequence[int]], tokens: int, name: str) -> None:
        self._engine = engine
        self._counts = {f"{name}/{number}": 0 for number in range(len(prompts))}
        for key, prompt in zip(self._counts, prompts, strict=True):
            engine.add(greedy_request(key, prompt, tokens))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._counts:
            self._engine.abort(key)
        while self._engine.has_work():
            self._engine.step()

    def step(self) -> int:
        """One step of the engine; how many tokens it gave."""
        tokens = 0
        for output in self._engine.step()[0]:
            if output.finish == "error":
                raise RuntimeError(f"{output.request_id} ended with an error")
            if output.request_id in self._counts:
                self._counts[output.request_id] += 1
                tokens += 1
        return tokens

    def prefill(self, tokens: int = 3) -> float:
        """Step until each row has given `tokens` tokens; the seconds."""
        begin = time.perf_counter()
        while min(self._counts.values()) < tokens:
            self.step()
        return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """What a run of decode steps took."""

    tokens: int
    step_seconds: list[float]
    prefill_seconds: float  # until each row had its first tokens


def time_decode(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], steps: int, name: str, seconds: float
) -> DecodeTimes:
    """Time `steps` steps in which every prompt's row makes a token.

    Wall-clock between the returns of `step`, after steps that fill the pipeline: what a client could get.
    """
    end = time.monotonic() + 0.8 * seconds
    with DecodeRun(engine, prompts, 4 * steps + 64, name) as run:
        prefilled = run.prefill()
        marks, tokens = [time.perf_counter()], 0
        while len(marks) <= steps and (len(marks) < 3 or time.monotonic() < end):
            tokens += run.step()
            marks.append(time.perf_counter())
    return DecodeTimes(tokens, [after - before for before, after in pairwise(marks)], prefilled)


def time_first_token(engine: LLMEngine, prompt: Sequence[int], name: str) -> float:
    """Seconds from adding a prompt to its first token."""
    with DecodeRun(engine, [prompt], 1, name) as run:
        return run.prefill(tokens=1)


def memory_model(engine: LLMEngine, shape: DecoderShape) -> dict[str, int]:
    """Bytes that the engine's own memory model gives for weights, rotary table and pool."""
    dtype = getattr(torch, engine.info.dtype)
    return {
        "weights": dtype.itemsize * (shape.body + shape.head * (1 if "qwen3" in shape.name else 2)),
        "pool": engine.info.num_blocks * engine.info.block_size * shape.kv_bytes // 2 * dtype.itemsize,
        "rope": 8 * engine.info.max_model_len * shape.head_dim,
    }


def same_ids_as_on_the_cpu(directory: Path, device: torch.device, tokens: int) -> float:
    """Share of requests whose greedy ids in float32 are equal on the device and on the CPU."""
    prompts = [prompt for length in (5, 33, 70) for prompt in random_prompts(4, length, 1000, seed=length)]
    answers = []
    for kind in ("cpu", device.type):
        config = EngineConfig(directory, 256, 8, 96, dtype="float32", device=kind, kv_cache_bytes=64 << 20)
        requests = [greedy_request(str(number), prompt, tokens) for number, prompt in enumerate(prompts)]
        answers.append(run_until_idle(LLMEngine(config), requests))
    return sum(answers[0][key] == answers[1][key] for key in answers[0]) / len(prompts)


def serve_options(choice: EngineChoice, max_num_seqs: int, device: torch.device) -> list[str]:
    """Flags of `tangram-engine serve` for random weights of that choice."""
    found = ["--load-format", "dummy", "--device", device.type, "--max-num-seqs", str(max_num_seqs)]
    found += [
        "--max-model-len",
        str(choice.max_model_len),
        "--block-size",
        str(BLOCK_SIZE),
        "--drain-seconds",
        "0",
    ]
    if device.type == "cpu":
        found += ["--kv-cache-bytes", str(8 << 20)]
    return found if choice.weights == "bf16" else [*found, "--quantize", choice.weights]
