"""On how few cards can the goal be met? The same library as `tangram size`, for each way to read the goal.

python examples/llama-70b-chat/few.py
"""

from collections.abc import Iterator

from assumed import ENGINE, GOAL, TEAM, TRAFFIC
from markdown import table
from setups import MODEL, PER_REQUEST

from tangram.capacity.sizing import SizedShape, SizingRequest, size
from tangram.fleet import WHOLE_GPU, Shape

FORMATS = {"fp16": "fp16", "fp8": "fp8", "int4": "bf16"}  # weights: KV cache
READINGS = {"answers": TRAFFIC.output_tokens, "prompts + answers": PER_REQUEST}


def fewest(weights: str, kv: str, tokens: int, tpot_ms: float | None) -> SizedShape | None:
    """The cheapest shape that meets the goal; None: none of the catalog's does."""
    request = SizingRequest(
        TRAFFIC.input_tokens,
        TRAFFIC.output_tokens,
        GOAL.tokens_per_s / tokens,
        ttft_ms=GOAL.ttft_p50_s * 1e3,
        tpot_ms=tpot_ms,
        percentile=50,
        cv=TRAFFIC.gaps_cv,
        engine=ENGINE.name,
        kv_precision=kv,
        max_model_len=TRAFFIC.longest_request,
        max_running=ENGINE.at_once,
    )
    among = [Shape(TEAM.sku, WHOLE_GPU, tp, weights) for tp in (1, 2, 4, 8)]
    rows = size(MODEL, request, among=among).rows
    return rows[0] if rows else None


def rows() -> Iterator[tuple[str, ...]]:
    """One per reading of the goal and bound on TPOT."""
    for counted, tokens in READINGS.items():
        for tpot_ms in (None, GOAL.tpot_s * 1e3):
            cells = [_cell(fewest(weights, kv, tokens, tpot_ms)) for weights, kv in FORMATS.items()]
            bound = "none" if tpot_ms is None else f"{tpot_ms:.0f} ms"
            yield (counted, f"{GOAL.tokens_per_s / tokens:.1f}", bound, *cells)


def _cell(row: SizedShape | None) -> str:
    if row is None:
        return "-"
    mark = "*" if row.unverified else ""
    return f"{row.gpus:.0f} ({row.replicas} x TP{row.shape.tensor_parallel}, ${row.usd_per_hour:.2f}/h){mark}"


def main() -> None:
    """Print the table."""
    titles = ("2,000 tok/s of", "req/s", "P50 TPOT bound", "cards with FP16", "with FP8", "with INT4")
    print(table(titles, list(rows())))
    print("\n\\* speed not measured in this precision or on this GPU; carried over from what was.")


if __name__ == "__main__":
    main()
