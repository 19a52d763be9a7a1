"""What grammars cost a step on the host: 64 sequences decode, half of them with a grammar.

    python -m benchmarks.engine.grammar_cost [--batch 64] [--vocabulary 131072] [--steps 64] [--runs 5] [--json FILE]

The step of `benchmarks.engine.host`, with and without grammars on every second row, by turns. Counted is the CPU time of
the thread that runs the steps, and that of the whole process: masks are computed by threads of their own. What the
device does with the masks is left out; the copy to pinned memory is there. The tokens are random texts.

The sampler of that step always gives the same token, so that the states of these grammars repeat. The last line has masks
and matchers alone, for as many rows of JSON answers whose tokens are drawn at random from what is allowed.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import time
from concurrent.futures import wait
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.engine import host
from tangram_engine.run import LLMEngine, runner
from tangram_engine.sample.grammar import Grammars
from tangram_engine.sample.masks import LogitEdits
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule import Request
from tangram_engine.serve.text.grammar import build

GOAL_MS = 1.0
CONTEXT = 64
WARM_STEPS = 8
END = 2
LETTERS = b'abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ0123456789.,:"{}[]_-\n'
# What an answer is inside of: a string of JSON, for which llguidance has parts of the masks ready, or another text.
TEXTS = {"in a JSON string": r'[^"\\\x00-\x1f]*', "in letters and blanks": "[a-zA-Z ]*"}


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "count": {"type": "integer", "minimum": -500, "maximum": 90000},
        "price": {"type": "number"},
        "kind": {"enum": ["small", "medium", "large", None]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "more": {"anyOf": [{"type": "null"}, {"type": "object"}]},
    },
    "required": ["name", "count", "price", "kind", "tags", "more"],
    "additionalProperties": False,
}


def random_vocabulary(size: int) -> Vocabulary:
    """Texts of one to eight characters; the token that the sampler gives is a letter."""
    chance = random.Random(0)
    tokens = [bytes(chance.choices(LETTERS, k=chance.randint(1, 8))) for _ in range(size)]
    tokens[host.TOKEN] = b"x"
    return Vocabulary(tuple(tokens), (END,), (END,))


def copy_masks(logits: torch.Tensor, edits: LogitEdits) -> None:
    """In place of what the device does."""
    if edits.allowed is not None:
        torch.from_numpy(edits.allowed.bits).clone()


def decoding_engine(options: argparse.Namespace, grammar: str | None) -> LLMEngine:
    steps = options.runs * options.steps + WARM_STEPS
    one = host.make_engine(options.batch, CONTEXT, steps, options.vocabulary)
    one.use_vocabulary(random_vocabulary(options.vocabulary))
    for number in range(options.batch):
        prompt = (number % 16, number // 16) + (1,) * (CONTEXT - 2 - number % host.BLOCK_SIZE)
        params = SamplingParams(
            max_tokens=steps + host.BLOCK_SIZE,
            temperature=0.0,
            ignore_eos=True,
            grammar=grammar if number % 2 else None,
        )
        one.add(Request(f"{number:032x}", prompt, params, arrival=0.0))
    wait([matcher for _, matcher in one._compiling.values()])  # noqa: SLF001
    while one.step()[1].batch_tokens != options.batch:  # prefill
        pass
    return one


def milliseconds(one: LLMEngine, steps: int) -> tuple[float, float]:
    """Median of the thread and mean of the process, for a step."""
    thread, process = [], time.process_time()
    for _ in range(steps):
        begin = time.thread_time()
        outputs, stats = one.step()
        thread.append(time.thread_time() - begin)
        assert len(outputs) == stats.batch_tokens
    return statistics.median(thread) * 1e3, (time.process_time() - process) / steps * 1e3


def sampled_json(options: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of masks and matchers for a step of random answers: median of the thread, mean of the process."""
    grammars = Grammars(options.vocabulary)
    grammars.use(random_vocabulary(options.vocabulary))
    grammar = build("json", json.dumps(SCHEMA), "none")
    names = [str(number) for number in range(options.batch // 2)]
    choose = np.random.default_rng(0)
    thread, process = [], 0.0
    for name in names:
        grammars.begin(name, grammars.compile(grammar).result())
    for _ in range(options.runs * options.steps):
        begin, begun = time.thread_time(), time.process_time()
        bits = grammars.bits(names)
        spent, process = time.thread_time() - begin, process + time.process_time() - begun
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, : options.vocabulary]
        tokens = {
            name: int(choose.choice(np.flatnonzero(row))) for name, row in zip(names, allowed, strict=True)
        }
        begin, begun = time.thread_time(), time.process_time()
        going = {name: token != END and grammars.advance(name, token) for name, token in tokens.items()}
        thread.append(spent + time.thread_time() - begin)
        process += time.process_time() - begun
        for name in (name for name, goes in going.items() if not goes):
            grammars.begin(name, grammars.compile(grammar).result())
    return statistics.median(thread) * 1e3, process / len(thread) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=1 << 17)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = {"without": None} | {name: build("regex", text, "none") for name, text in TEXTS.items()}
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with mock.patch.object(runner, "edit", copy_masks):
        engines = {kind: decoding_engine(options, grammar) for kind, grammar in kinds.items()}
        gc.collect()
        for one in engines.values():
            milliseconds(one, WARM_STEPS // 2)
        for _ in range(options.runs):
            for kind, one in engines.items():
                taken[kind].append(milliseconds(one, options.steps))
    medians = {
        kind: [statistics.median(column) for column in zip(*rows, strict=True)]
        for kind, rows in taken.items()
    }
    print(f"ms a step, {options.batch} sequences, {options.vocabulary} tokens{'thread':>12}{'process':>12}")
    for kind, values in medians.items():
        print(f"{kind:<40}" + "".join(f"{value:>12.2f}" for value in values))
    sampled = sampled_json(options)
    print(f"{'masks and matchers of sampled JSON':<40}" + "".join(f"{value:>12.2f}" for value in sampled))
    print(f"goal: at most {GOAL_MS} ms more of the thread")
    if options.json:
        document = {
            "python": platform.python_version(),
            "goal_ms": GOAL_MS,
            "median_ms": medians,
            "sampled_json_ms": sampled,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
