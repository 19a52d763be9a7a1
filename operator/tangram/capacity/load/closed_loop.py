"""Mean TTFT and TPOT of a closed loop: N requests outstanding, each replaced as soon as it finishes.

Benchmark clients work like this. With W steps between a request and its first token, x prompts joining per
step and d requests decoding, Little's law and one departure per answer give

    N = d + x W        x = d / (output - 1)

W is one step missed (an answer ends, and the next step begins before the client has sent its next request),
the prompt's own steps, and a queue for the token budget of a step, which is one of M/D/m: a step serves m
prompts. Requests beyond the slots wait for the rate of departures. A decoding
request never waits for its own prompt: of the N - 1 others a share d / N decodes beside it. Tests compare
this with `simulate`.
"""

import math
from dataclasses import dataclass

from tangram.capacity.load.batching import UniformLoad
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.steps.clock import clock
from tangram.capacity.steps.decode_runs import Steps

MISSED = 1.0  # steps that begin before a replacement arrives, if other requests run


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Means over the requests of a benchmark at fixed concurrency."""

    ttft_s: float
    tpot_s: float
    running: float  # requests that hold a slot; the others wait
    decoding: float  # of these, past their first token
    rate: float  # requests per second


def closed_loop(
    model: Steps,
    limits: EngineLimits,
    input_tokens: float,
    output_tokens: float,
    concurrency: float,
    burst: float = 0.0,
) -> ClosedLoop:
    """Return mean TTFT and TPOT, in seconds, of requests of about one length at fixed concurrency.

    `burst` is the share of requests that were sent all at once, and so queued for each other's prefill:
    1 / waves where a benchmark measures from a cold start (clients that send ten requests per unit of
    concurrency: 0.1), 0 where it warms up, 1 where the engine keeps waves together. Published campaigns on
    vLLM and TensorRT-LLM fit 0.13 to 0.19 (ten waves, the second still half together), those on SGLang 0.4 to
    1: it computes prompts before it goes on decoding, so answers of one length begin and end together.
    """
    context = input_tokens + output_tokens / 2
    shape = UniformLoad(clock(model, context), limits, input_tokens, output_tokens, input_tokens / 2)
    # A request holds its prompt from the start and grows to its whole length: half of the answer on average.
    slots = max(1.0, limits.slots(context))
    running = min(float(concurrency), slots)
    missed = MISSED * max(0.0, min(1.0, running - 1))
    decoding = shape.decoding_of(running, missed)
    tpot = _beside(shape, running, decoding)
    ttft = shape.before_s(decoding, missed) + shape.own_s(decoding, input_tokens)
    rate = running / (ttft + (output_tokens - 1) * tpot)
    waiting = concurrency - running
    queue = waiting / rate
    first, wave_tpot = _wave(shape, running)
    first += queue * waiting / concurrency / 2
    return ClosedLoop(
        (1 - burst) * (ttft + queue) + burst * first,
        (1 - burst) * tpot + burst * wave_tpot,
        running,
        decoding,
        rate,
    )


def _beside(shape: UniformLoad, running: float, decoding: float) -> float:
    """Mean seconds between two tokens of a request among `running`, as many of which decode on average."""
    others = max(0.0, running - 1) / running
    prompts = shape.step_s(decoding) - shape.mixed_s(decoding, 0.0)
    return shape.mixed_s(1 + others * decoding, 0.0) + others * prompts


def _wave(shape: UniformLoad, running: float) -> tuple[float, float]:
    """Return mean TTFT and TPOT if all arrive at once: steps full of prompts first, then decodes."""
    budget = shape.budget(running / 2)
    steps = math.ceil(running * shape.input_tokens / budget)
    chunk = min(budget, running * shape.input_tokens)
    full = shape.mixed_s(running / 2 if steps > 1 else 0.0, chunk)
    first = (steps + 1) / 2 * full
    # A request with its first token waits for the prompts of the others before it decodes.
    others = (steps * full - first) / shape.output_tokens
    return first, shape.mixed_s(running, 0.0) + others
