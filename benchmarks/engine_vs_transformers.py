"""The engine on a CPU against `transformers.generate`: one model, float32, greedy, one run.

    python benchmarks/engine_vs_transformers.py [--model DIR] [--runs 5] [--clock wall|cpu] [--json FILE]

Both sides alternate, so that a noisy neighbour disturbs both. A ratio above 1 means the engine is faster; its
spread is that of the runs. `--clock cpu` counts seconds of computation instead, for a machine that is shared
(meaningful with one thread). Tokens are counted as the requests want them, so what `generate` computes for
padding is its own loss. The cases:

    1           one request
    16          sixteen requests of one length, given to `generate` as one batch without any padding
    16 ragged   48 requests of different lengths, at most sixteen at a time; `generate` gets sixteen at once
                in order of arrival, left-padded, until their longest answer is complete
    16 singly   the sixteen requests again, `generate` called once for each: a server without batching
"""

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import tangram_engine
from tangram_engine.config import EngineConfig
from tangram_engine.run import LLMEngine
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule import Request

ROOT = Path(__file__).parent.parent
MAX_MODEL_LEN = 512
Answers = list[list[int]]


@dataclass(frozen=True)
class Ask:
    """One request: continue `prompt` by exactly `count` tokens."""

    prompt: list[int]
    count: int


@dataclass(frozen=True)
class Case:
    name: str
    asks: list[Ask]
    batch: int  # how many `generate` gets at once


@dataclass
class Result:
    case: str
    tokens: int
    engine_tokens_per_second: list[float]
    transformers_tokens_per_second: list[float]
    identical_answers: float  # share; the rest differs after a near tie

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.engine_tokens_per_second, self.transformers_tokens_per_second, strict=True)
        return [ours / theirs for ours, theirs in pairs]


def cases(vocabulary: int, prompt: int, output: int) -> list[Case]:
    chance = random.Random(0)

    def ask(prompt_length: int, count: int) -> Ask:
        return Ask([chance.randrange(3, vocabulary) for _ in range(prompt_length)], count)

    even = [ask(prompt, output) for _ in range(16)]
    ragged = [ask(chance.randint(8, 2 * prompt), chance.randint(8, 2 * output)) for _ in range(48)]
    return [
        Case("1", even[:1], 1),
        Case("16", even, 16),
        Case("16 ragged", ragged, 16),
        Case("16 singly", even, 1),
    ]


def run_engine(engine: LLMEngine, asks: list[Ask], label: str) -> Answers:
    answers: dict[str, list[int]] = {}
    for number, ask in enumerate(asks):
        params = SamplingParams(max_tokens=ask.count, temperature=0.0, ignore_eos=True)
        engine.add(Request(f"{label}/{number}", tuple(ask.prompt), params, arrival=0.0))
        answers[f"{label}/{number}"] = []
    while engine.has_work():
        for output in engine.step()[0]:
            answers[output.request_id].append(output.token)
    engine.audit()
    return list(answers.values())


def run_transformers(model: Any, asks: list[Ask], batch: int) -> Answers:
    answers: Answers = []
    for start in range(0, len(asks), batch):
        group = asks[start : start + batch]
        width, count = max(len(ask.prompt) for ask in group), max(ask.count for ask in group)
        padded = torch.tensor([[0] * (width - len(ask.prompt)) + ask.prompt for ask in group])
        mask = torch.tensor([[0] * (width - len(ask.prompt)) + [1] * len(ask.prompt) for ask in group])
        with torch.inference_mode():
            out = model.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        answers += [row[width : width + ask.count] for row, ask in zip(out.tolist(), group, strict=True)]
    return answers


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(
    case: Case, runs: int, fresh_engine: Callable[[], LLMEngine], model: Any, clock: Callable[[], float]
) -> Result:
    def timed(action: Callable[[], Answers]) -> tuple[float, Answers]:
        begin = clock()
        answers = action()
        return clock() - begin, answers

    tokens = sum(ask.count for ask in case.asks)
    result = Result(case.name, tokens, [], [], 0.0)
    engine = fresh_engine()
    run_engine(engine, case.asks[:1], "warm")
    run_transformers(model, case.asks[:1], 1)
    same = 0
    for number in range(runs):
        # Other prompts each time: the prefix cache must not answer for the model.
        asks = [Ask(rotated(ask.prompt, number + 1), ask.count) for ask in case.asks]
        ours, our_answers = timed(lambda asks=asks, number=number: run_engine(engine, asks, str(number)))
        theirs, their_answers = timed(lambda asks=asks: run_transformers(model, asks, case.batch))
        result.engine_tokens_per_second.append(tokens / ours)
        result.transformers_tokens_per_second.append(tokens / theirs)
        same += sum(one == other for one, other in zip(our_answers, their_answers, strict=True))
    result.identical_answers = same / (runs * len(case.asks))
    return result


def rotated(prompt: list[int], by: int) -> list[int]:
    by %= len(prompt)
    return prompt[by:] + prompt[:by]


def random_model(directory: Path) -> None:
    """As large as the model in the repository, for a checkout that does not have it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def table(results: list[Result]) -> Iterator[str]:
    head = ("engine tok/s", "transformers tok/s", "ratio", "identical")
    yield f"{'batch':<12}{'tokens':>8}{head[0]:>20}{head[1]:>22}{head[2]:>18}{head[3]:>12}"
    for result in results:
        cells = [
            f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
            for values, digits in (
                (result.engine_tokens_per_second, 0),
                (result.transformers_tokens_per_second, 0),
                (result.ratios, 2),
            )
        ]
        same = f"{result.identical_answers:.0%}"
        yield f"{result.case:<12}{result.tokens:>8}{cells[0]:>20}{cells[1]:>22}{cells[2]:>18}{same:>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "tangram-tiny")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.runs < 5:
        parser.error("--runs: a spread needs at least 5")
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model
        if not (directory / "config.json").exists():
            directory = Path(scratch)
            random_model(directory)
        report(directory, options)


def report(directory: Path, options: argparse.Namespace) -> None:
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig()

    def fresh_engine() -> LLMEngine:
        config = EngineConfig(directory, MAX_MODEL_LEN, max_num_seqs=16, dtype="float32", device="cpu")
        return LLMEngine(config)

    fresh_engine()  # sets the number of threads, for both
    setting = {
        "model": options.model.name if directory == options.model else "random weights",
        "threads": torch.get_num_threads(),
        "runs": options.runs,
        "clock": options.clock,
        "tangram_engine": tangram_engine.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(", ".join(f"{name} {value}" for name, value in setting.items()))
    todo = cases(model.config.vocab_size, options.prompt_tokens, options.output_tokens)
    results = [measure(case, options.runs, fresh_engine, model, CLOCKS[options.clock]) for case in todo]
    print("\n".join(table(results)))
    if options.json:
        document = setting | {"cases": [asdict(result) | {"ratios": result.ratios} for result in results]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
