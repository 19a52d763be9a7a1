"""`--simulate ROW`: simulate one replica of a row step by step under its part of the load."""

from dataclasses import dataclass
from typing import Any

from tangram.capacity.load.latency import Percentiles, simulate_open
from tangram.capacity.sizing import Sizing
from tangram.catalog import InputError
from tangram.fleet import PERCENTILES

REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class RowSimulation:
    """Latencies of a row as the table has them and as the simulation measures them."""

    rank: int
    rate: float  # requests per second of the one replica
    requests: int
    ttft_s: tuple[tuple[int, float, float], ...]  # (percentile, table, simulation)
    tpot_s: tuple[tuple[int, float, float], ...]
    utilisation: float
    preemptions: int

    def document(self) -> dict[str, Any]:
        """Return the simulation as JSON and YAML show it, times in milliseconds."""
        return {
            "rank": self.rank,
            "rps": self.rate,
            "requests": self.requests,
            **{
                name: {
                    f"p{p}": {"table": table_s * 1e3, "simulation": simulated_s * 1e3}
                    for p, table_s, simulated_s in latencies
                }
                for name, latencies in (("ttft_ms", self.ttft_s), ("tpot_ms", self.tpot_s))
            },
            "utilisation": self.utilisation,
            "preemptions": self.preemptions,
        }


def row_simulation(sizing: Sizing, rank: int) -> RowSimulation:
    """Simulate row `rank`, from 1. Raises `InputError` for a rank without a row."""
    if not 1 <= rank <= len(sizing.rows):
        last = len(sizing.rows)
        ranks = f"rows are 1 to {last}" if last else "no shape serves, so there are no rows"
        raise InputError("--simulate", f"there is no row {rank}: {ranks}")
    row, request = sizing.rows[rank - 1], sizing.request
    rate = request.rps / row.replicas
    latency, result = simulate_open(
        row.model, row.limits, request.input_tokens, request.output_tokens, rate, request.cv, REQUESTS
    )
    return RowSimulation(
        rank,
        rate,
        REQUESTS,
        _beside(row.latency.ttft_s, latency.ttft_s),
        _beside(row.latency.tpot_s, latency.tpot_s),
        result.utilisation,
        result.preemptions,
    )


def _beside(table: Percentiles, simulation: Percentiles) -> tuple[tuple[int, float, float], ...]:
    return tuple((p, table.at(p), simulation.at(p)) for p in PERCENTILES)
