"""`--simulate ROW`: one replica of a row under its part of the load, step by step, beside the table."""

from dataclasses import dataclass
from typing import Any

from tangram.capacity.load.latency import Percentiles, simulate_open
from tangram.capacity.sizing import Sizing
from tangram.catalog import InputError
from tangram.fleet import PERCENTILES

REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Simulated:
    """Seconds by percentile, of the table and of the simulation."""

    rank: int
    rate: float  # requests per second of the one replica
    requests: int
    ttft_s: tuple[tuple[int, float, float], ...]  # (percentile, table, simulation)
    tpot_s: tuple[tuple[int, float, float], ...]
    utilisation: float
    preemptions: int

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "rank": self.rank,
            "rps": self.rate,
            "requests": self.requests,
            **{
                name: {
                    f"p{p}": {"table": round(a * 1e3, 2), "simulation": round(b * 1e3, 2)}
                    for p, a, b in found
                }
                for name, found in (("ttft_ms", self.ttft_s), ("tpot_ms", self.tpot_s))
            },
            "utilisation": round(self.utilisation, 3),
            "preemptions": self.preemptions,
        }


def simulated(found: Sizing, rank: int) -> Simulated:
    """Simulate row `rank`. Raises `InputError` where there is no such row."""
    if not 1 <= rank <= len(found.rows):
        there = f"rows are 1 to {len(found.rows)}" if found.rows else "no shape serves, so there are no rows"
        raise InputError("--simulate", f"there is no row {rank}: {there}")
    row, request = found.rows[rank - 1], found.request
    rate = request.rps / row.replicas
    latency, result = simulate_open(
        row.model, row.limits, request.input_tokens, request.output_tokens, rate, request.cv, REQUESTS
    )
    return Simulated(
        rank,
        rate,
        REQUESTS,
        _beside(row.latency.ttft_s, latency.ttft_s),
        _beside(row.latency.tpot_s, latency.tpot_s),
        result.utilisation,
        result.preemptions,
    )


def _beside(table: Percentiles, simulation: Percentiles) -> tuple[tuple[int, float, float], ...]:
    return tuple((each, table.at(each), simulation.at(each)) for each in PERCENTILES)
