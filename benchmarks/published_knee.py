"""A published sweep of one replica, simulated: where P99 of TTFT leaps, and what the replica gives at most.

    python -m benchmarks.published_knee

Published (llm-d/llm-d-autoscaling, pull request 1249, 2026-06-08): Qwen3-32B on H100, one replica, 300 s per rate.
P99 of TTFT leaps from 136 ms to 18.8 s around 2 requests/s; at most 1,901 output tokens/s, at 3 requests/s; failures
from 4 on. Lengths, tensor parallelism and precision are not published there. The project's other runs of the model
have one GPU per replica and about 1,000 tokens of prompt and 1,000 of answer; on one H100 only weights in fp8 leave
enough KV cache for such a rate.
"""

import sys
from dataclasses import dataclass

from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import open_traffic
from tangram.capacity.sizing.assess import Assessor, FittingShape
from tangram.capacity.sizing.request import SizingRequest
from tangram.catalog import known_model
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape

MODEL, SHAPE = "Qwen3-32B", Shape("H100-80GB-SXM", WHOLE_GPU, 1, "fp8")
INPUT_TOKENS = OUTPUT_TOKENS = 1000
SECONDS = 300.0
RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
PUBLISHED_TOKENS_PER_S = 1901.0


@dataclass(frozen=True, slots=True)
class SweptRate:
    """One rate of the sweep."""

    rate: float  # requests per second
    ttft_p99_s: float
    output_tokens_per_s: float  # from the first request until the last answer ends


def sweep(seed: int = 3) -> list[SweptRate]:
    """Simulate every rate on an idle replica."""
    architecture = known_model(MODEL)
    if architecture is None:
        raise LookupError(MODEL)
    request = SizingRequest(
        INPUT_TOKENS, OUTPUT_TOKENS, 1.0, engine="vllm", max_running=256, max_model_len=8192
    )
    fitted = Assessor(architecture, Prices()).fit(SHAPE, request)
    if not isinstance(fitted, FittingShape):
        raise TypeError(fitted.message)
    swept = []
    for rate in RATES:
        sent = open_traffic(round(rate * SECONDS), rate, INPUT_TOKENS, OUTPUT_TOKENS, 1.0, seed, 8192)
        result = simulate(fitted.model, fitted.limits, sent)
        ttft = sorted(result.ttft_s)
        tokens = sum(request.output_tokens for request in sent)
        swept.append(SweptRate(rate, ttft[int(0.99 * (len(ttft) - 1))], tokens / result.duration_s))
    return swept


def main() -> int:
    print("| requests/s | P99 of TTFT | output tokens/s |\n| ---: | ---: | ---: |")
    for row in sweep():
        print(f"| {row.rate:g} | {row.ttft_p99_s:.2f} s | {row.output_tokens_per_s:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
