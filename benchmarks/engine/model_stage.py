"""The ladder from plain torch to asynchronous steps, a row each; other weight formats; nano-vllm's requests."""

import time
from functools import partial

from benchmarks.engine.baseline_stage import decode, large, load
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue
from benchmarks.engine.engine_adapter import EngineChoice, run_until_idle, sampled_request
from benchmarks.engine.predictions import RUNGS, decode_row, nano_workload
from benchmarks.engine.setting import Setting

NANO_TEMPERATURE = 0.6  # as its bench.py has it
LONGEST_NANO = 2048


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage. The topmost rung comes first: what a short stage leaves out is the history."""
    one = partial(partial, setting=setting)
    small = setting.sizes.small.name
    found = [BenchmarkRow(f"nano-vllm's requests, {small}", 150, one(nano), f"{small} nano-vllm")]
    ladder = partial(large, setting, max_model_len=setting.sizes.decode_model_len)
    choices = [ladder(rung=rung) for rung in reversed(RUNGS)]
    choices[1:1] = [ladder(weights=weights) for weights in ("fp8", "int4")]
    for choice in choices:
        found.append(BenchmarkRow(f"{choice.weights} {choice.rung} load", 180, one(load, choice=choice)))
        found += [
            BenchmarkRow(
                f"{choice.weights} {choice.rung} {batch}", 60, one(decode, choice=choice, batch=batch),
                decode_row(choice.shape.name, choice.weights, batch, choice.rung),
            )
            for batch in setting.sizes.batches
        ]  # fmt: skip
    return found


def nano(_seconds: float, setting: Setting) -> MeasuredValue:
    """Output tokens per second of 256 requests that come at once, lengths and ids as nano-vllm's benchmark has them."""
    sizes = setting.sizes
    model = sizes.small
    work = nano_workload()[: sizes.requests]
    cut = sizes.length_divisor
    choice = EngineChoice(model, max_num_seqs=len(work), max_model_len=LONGEST_NANO // cut)
    engine = setting.engines.get(choice)
    requests = [
        sampled_request(str(number), [id_ % model.vocabulary for id_ in prompt[::cut]], count // cut, NANO_TEMPERATURE)
        for number, (prompt, count) in enumerate(work)
    ]  # fmt: skip
    begin = time.perf_counter()
    answers = run_until_idle(engine, requests)
    spent = time.perf_counter() - begin
    made = sum(map(len, answers.values()))
    wanted = sum(request.params.max_tokens for request in requests)
    if made != wanted:
        raise RuntimeError(f"{made} tokens were made, {wanted} were asked for")
    return MeasuredValue(made / spent, "tok/s", {"tokens": made, "seconds": spent})
